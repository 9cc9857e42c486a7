//! A program resolved against buffers: pipelines, bind groups and parameters, made once and encoded again
//! for every step.

use std::collections::HashMap;
use std::sync::Arc;

use super::compose::{Variant, compose};
use super::lower::{Binding, Kernel};
use super::shader;

/// One dispatch, ready to encode.
pub(super) struct Dispatch {
    pipeline: Arc<wgpu::ComputePipeline>,
    bind_group: wgpu::BindGroup,
    grid: [u32; 3],
}

/// The dispatches of each segment, and the buffers only they use.
pub(super) struct Compiled {
    pub(super) segments: Vec<Vec<Dispatch>>,
    pub(super) rows: u32,
    pub(super) step: (wgpu::Buffer, u64),
}

/// A variant, and for each binding whether it is a uniform, read or written.
type Key = (Variant, Vec<(u32, u8)>);

/// Pipelines by variant; bind-group layouts differ by what is bound, so both are in the key.
#[derive(Default)]
pub(super) struct Pipelines {
    made: HashMap<Key, Arc<wgpu::ComputePipeline>>,
}

impl Pipelines {
    /// The pipeline of a kernel, made at first use.
    pub(super) fn get(
        &mut self,
        device: &wgpu::Device,
        kernel: &Kernel,
        checked: bool,
    ) -> Arc<wgpu::ComputePipeline> {
        let kinds: Vec<(u32, u8)> =
            kernel.bindings.iter().map(|(at, binding)| (*at, kind(binding))).collect();
        let key = (kernel.variant.clone(), kinds);
        if let Some(pipeline) = self.made.get(&key) {
            return Arc::clone(pipeline);
        }
        let pipeline = Arc::new(make(device, kernel, checked));
        self.made.insert(key, Arc::clone(&pipeline));
        pipeline
    }

    /// Pipelines made so far.
    pub(super) fn len(&self) -> usize {
        self.made.len()
    }
}

fn kind(binding: &Binding) -> u8 {
    match binding {
        Binding::Step => 0,
        Binding::Read(_) | Binding::ReadScratch => 1,
        Binding::Write(_) | Binding::WriteScratch => 2,
    }
}

fn make(device: &wgpu::Device, kernel: &Kernel, checked: bool) -> wgpu::ComputePipeline {
    let name = kernel.variant.file;
    let source =
        compose(&kernel.variant).expect("every variant that lowering makes composes: tested");
    let module = shader::module(device, name, source, checked);
    let buffer = |binding, kind| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: match kind {
                0 => wgpu::BufferBindingType::Uniform,
                1 => wgpu::BufferBindingType::Storage { read_only: true },
                _ => wgpu::BufferBindingType::Storage { read_only: false },
            },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    };
    let mut entries = vec![buffer(0, 0)];
    entries.extend(kernel.bindings.iter().map(|(at, binding)| buffer(*at, kind(binding))));
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some(name),
        entries: &entries,
    });
    let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(name),
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(name),
        layout: Some(&layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            constants: &[],
            zero_initialize_workgroup_memory: false,
        },
        cache: None,
    })
}

/// Parameters of all kernels in one buffer, each at a multiple of 256.
pub(super) fn parameters(device: &wgpu::Device, kernels: &[&Kernel]) -> (wgpu::Buffer, Vec<u64>) {
    let mut bytes: Vec<u8> = Vec::new();
    let mut offsets = Vec::with_capacity(kernels.len());
    for kernel in kernels {
        bytes.resize(bytes.len().next_multiple_of(256), 0);
        offsets.push(bytes.len() as u64);
        bytes.extend_from_slice(bytemuck::cast_slice(&kernel.params));
    }
    bytes.resize(bytes.len().next_multiple_of(256).max(256), 0);
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("parameters"),
        size: bytes.len() as u64,
        usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: true,
    });
    if let Ok(mut view) = buffer.get_mapped_range_mut(..) {
        view.copy_from_slice(&bytes);
    }
    buffer.unmap();
    (buffer, offsets)
}

/// The bytes of a uniform struct of this many u32, padded as WGSL wants it.
pub(super) fn uniform_bytes(params: usize) -> u64 {
    (params as u64 * 4).next_multiple_of(16)
}

impl Dispatch {
    pub(super) fn new(
        device: &wgpu::Device,
        pipeline: Arc<wgpu::ComputePipeline>,
        entries: &[wgpu::BindGroupEntry<'_>],
        grid: [u32; 3],
    ) -> Self {
        let layout = pipeline.get_bind_group_layout(0);
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &layout, entries };
        let bind_group = device.create_bind_group(&descriptor);
        Dispatch { pipeline, bind_group, grid }
    }
}

/// Encodes dispatches into one pass.
pub(super) fn encode(encoder: &mut wgpu::CommandEncoder, dispatches: &[Dispatch]) {
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    let mut last: Option<&Arc<wgpu::ComputePipeline>> = None;
    for dispatch in dispatches {
        if !last.is_some_and(|last| Arc::ptr_eq(last, &dispatch.pipeline)) {
            pass.set_pipeline(&dispatch.pipeline);
            last = Some(&dispatch.pipeline);
        }
        pass.set_bind_group(0, &dispatch.bind_group, &[]);
        let [x, y, z] = dispatch.grid;
        pass.dispatch_workgroups(x, y, z);
    }
}
