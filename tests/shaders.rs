//! Every shader variant that lowering makes, without a device: naga validates it, counts its bindings and its
//! workgroup memory against the limits that every WebGPU implementation has, and writes it for Vulkan, Metal
//! and Direct3D.
#![cfg(feature = "wgpu")]

use std::collections::BTreeSet;

use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, Module};
use thintensor::backend::wgpu::compose::{FILES, Variant, compose};
use thintensor::backend::wgpu::lower::{Kernel, Target, lower};
use thintensor::model::{Activation, ModelSpec};
use thintensor::plan::{KvFormat, Plan, PlanOptions};
use thintensor::program::{LogitRows, Op, StepShape, decoder};
use thintensor::quant::Format;

mod tiny;

/// Storage buffers of one kernel, in all groups.
const STORAGE_BUFFERS: usize = 8;
/// Bytes of workgroup memory.
const WORKGROUP_BYTES: u32 = 16 << 10;

/// Kernels of decode and prefill programs over every format and activation.
fn kernels(subgroups: bool) -> Vec<Kernel> {
    let target = Target { subgroups, max_grid: 65_535 };
    let mut kernels = Vec::new();
    for (format, act, kv_format) in [
        (Format::BF16, Activation::Silu, KvFormat::BF16),
        (Format::F16, Activation::GeluTanh, KvFormat::F16),
        (Format::F32, Activation::Silu, KvFormat::F32),
    ] {
        let (spec, plan) = model(format, act, kv_format);
        for (rows, logits) in [(1, LogitRows::All), (32, LogitRows::One), (32, LogitRows::All)] {
            let sample = logits == LogitRows::One || rows == 1;
            let kv_capacity = if rows == 1 { 512 } else { 256 };
            let shape = StepShape { rows, kv_capacity, logits, sample, hidden: !sample };
            let mut program = decoder::build(&spec, &plan, shape);
            let ops = 0..program.ops.len();
            kernels.extend(lower(&program, ops.clone(), target).expect("every op has a kernel"));
            // A head that is no whole number of 16-byte words takes the plain kernel.
            for op in &mut program.ops {
                if let Op::Attention { kv, .. } = op {
                    kv.head_dim = 18;
                }
            }
            kernels.extend(lower(&program, ops, target).expect("every op has a kernel"));
        }
    }
    kernels
}

fn model(format: Format, act: Activation, kv_format: KvFormat) -> (ModelSpec, Plan) {
    let pages = tiny::Tiny::new(&tiny::biases_and_qk_norm(), format, 1);
    let manifest = thintensor::format::Pages::manifest(&pages);
    let mut spec = ModelSpec::from_json(&manifest.spec).expect("a sound description");
    spec.hidden_act = act;
    let options = PlanOptions { context: 512, sequences: 2, kv_format };
    let records = thintensor::format::Pages::pages(&pages);
    let plan = Plan::new(manifest, records, &spec, options).expect("a sound model");
    (spec, plan)
}

fn variants() -> Vec<(Kernel, String)> {
    let mut seen = BTreeSet::new();
    let all = kernels(true).into_iter().chain(kernels(false));
    all.filter(|kernel| seen.insert(format!("{:?}", kernel.variant)))
        .map(|kernel| {
            let source = compose(&kernel.variant).expect("composes");
            (kernel, source)
        })
        .collect()
}

fn parsed(variant: &Variant, source: &str) -> (Module, naga::valid::ModuleInfo) {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|error| panic!("{variant:?}\n{}", error.emit_to_string(source)));
    let mut validator = Validator::new(
        ValidationFlags::all(),
        Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32,
    );
    validator
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator
        .validate(&module)
        .unwrap_or_else(|error| panic!("{variant:?}\n{}", error.emit_to_string(source)));
    (module, info)
}

#[test]
fn every_kernel_file_is_lowered_to() {
    let used: BTreeSet<&str> = variants().iter().map(|(kernel, _)| kernel.variant.file).collect();
    let kernels = FILES.iter().map(|(name, _)| *name).filter(|name| !name.contains('/'));

    let unused: Vec<&str> = kernels.filter(|name| !used.contains(name)).collect();

    assert!(unused.is_empty(), "no program here uses {unused:?}");
}

#[test]
fn every_variant_validates_and_stays_within_webgpu_limits() {
    for (kernel, source) in variants() {
        let (module, _) = parsed(&kernel.variant, &source);
        let storage = module
            .global_variables
            .iter()
            .filter(|(_, global)| matches!(global.space, AddressSpace::Storage { .. }))
            .count();
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).expect("layouts are known");
        let workgroup: u32 = module
            .global_variables
            .iter()
            .filter(|(_, global)| global.space == AddressSpace::WorkGroup)
            .map(|(_, global)| layouter[global.ty].size)
            .sum();

        let name = &kernel.variant;
        assert!(storage <= STORAGE_BUFFERS, "{name:?} binds {storage} storage buffers");
        assert!(
            workgroup <= WORKGROUP_BYTES,
            "{name:?} takes {workgroup} bytes of workgroup memory"
        );
        let threads: u32 = module.entry_points[0].workgroup_size.iter().product();
        assert!(threads <= 256, "{name:?} has {threads} invocations");
    }
}

#[test]
fn parameters_match_the_struct_of_each_shader() {
    for (kernel, source) in variants() {
        let (module, _) = parsed(&kernel.variant, &source);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).expect("layouts are known");
        let (_, params) = module
            .global_variables
            .iter()
            .find(|(_, global)| global.name.as_deref() == Some("params"))
            .expect("every kernel has parameters");

        let expected = layouter[params.ty].size;
        let given = (kernel.params.len() as u32 * 4).next_multiple_of(16);
        assert_eq!(given, expected.next_multiple_of(16), "{:?}", kernel.variant);
    }
}

#[test]
fn bindings_of_the_lowering_are_those_of_the_shader() {
    for (kernel, source) in variants() {
        let (module, _) = parsed(&kernel.variant, &source);
        let in_shader: BTreeSet<u32> = module
            .global_variables
            .iter()
            .filter_map(|(_, global)| global.binding.as_ref().map(|binding| binding.binding))
            .collect();
        let bound: BTreeSet<u32> =
            std::iter::once(0).chain(kernel.bindings.iter().map(|(at, _)| *at)).collect();

        assert_eq!(bound, in_shader, "{:?}", kernel.variant);
    }
}

#[test]
fn every_variant_is_written_for_vulkan_metal_and_direct3d() {
    for (kernel, source) in variants() {
        let (module, info) = parsed(&kernel.variant, &source);
        let name = &kernel.variant;
        let spirv = naga::back::spv::Options { lang_version: (1, 3), ..Default::default() };
        naga::back::spv::write_vec(&module, &info, &spirv, None)
            .unwrap_or_else(|error| panic!("SPIR-V of {name:?}: {error}"));
        let metal = naga::back::msl::Options {
            lang_version: (2, 4),
            fake_missing_bindings: true,
            ..Default::default()
        };
        naga::back::msl::write_string(&module, &info, &metal, &Default::default())
            .unwrap_or_else(|error| panic!("MSL of {name:?}: {error}"));
        let mut text = String::new();
        let direct3d = naga::back::hlsl::Options {
            shader_model: naga::back::hlsl::ShaderModel::V6_0,
            ..Default::default()
        };
        naga::back::hlsl::Writer::new(&mut text, &direct3d, &Default::default())
            .write(&module, &info, None)
            .unwrap_or_else(|error| panic!("HLSL of {name:?}: {error}"));
    }
}
