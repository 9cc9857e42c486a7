//! The one place that makes shader modules, with naga's run-time checks or without.

/// A module of `source`. Unchecked, it saves the index clamps that cost a naive matvec a factor of 3.8
/// (H200, Vulkan); every index our kernels load from memory is clamped in the kernel itself.
pub(super) fn module(
    device: &wgpu::Device,
    name: &str,
    source: String,
    checked: bool,
) -> wgpu::ShaderModule {
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(name),
        source: wgpu::ShaderSource::Wgsl(source.into()),
    };
    if checked {
        return device.create_shader_module(descriptor);
    }
    // SAFETY: the kernels in `shaders/` bound every index by parameters that `program::check` and `compile`
    // compared with the buffers, and clamp every index they load from memory; their loops end.
    unsafe {
        device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
    }
}
