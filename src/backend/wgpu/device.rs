//! Finding adapters, ranking them, and opening one with the features and limits the kernels use.

use wgpu::{Backends, DeviceType, Features, Limits};

use super::super::{DeviceInfo, Error, LimitChoice, OpenOptions};
use super::lower::Target;

/// An adapter and what opening it gave.
pub(super) struct Opened {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) info: DeviceInfo,
    pub(super) target: Target,
    pub(super) checked: bool,
}

/// What is known of an adapter before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFacts {
    /// The driver's name for it.
    pub name: String,
    /// "vulkan", "metal", "dx12".
    pub api: String,
    /// Discrete, integrated, virtual, or a processor that rasterises.
    pub kind: Kind,
}

/// Kinds of adapters, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A card with memory of its own.
    Discrete,
    /// Shares the processor's memory.
    Integrated,
    /// Behind a hypervisor, or of a kind the driver does not say.
    Virtual,
    /// A rasteriser on the processor; used only when named.
    Rasteriser,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Discrete => "discrete",
            Kind::Integrated => "integrated",
            Kind::Virtual => "virtual",
            Kind::Rasteriser => "cpu",
        }
    }
}

/// Indices of the adapters that may be chosen unasked, best first: discrete before integrated before virtual,
/// rasterisers never; the same card under a second API counts once.
#[must_use]
pub fn rank(adapters: &[AdapterFacts]) -> Vec<usize> {
    let mut order: Vec<usize> =
        (0..adapters.len()).filter(|&index| adapters[index].kind != Kind::Rasteriser).collect();
    let api =
        |facts: &AdapterFacts| ["vulkan", "metal", "dx12"].iter().position(|api| *api == facts.api);
    order.sort_by_key(|&index| (adapters[index].kind, api(&adapters[index]), index));
    let mut seen = Vec::new();
    order.retain(|&index| {
        let fresh = !seen.contains(&&adapters[index].name);
        seen.push(&adapters[index].name);
        fresh
    });
    order
}

/// The adapter a name asks for: `wgpu`, `wgpu:N`, or part of an adapter's name.
///
/// **Errors**: [`Error::NoSuchDevice`]; [`Error::Ambiguous`] where several match.
pub fn choose(adapters: &[AdapterFacts], name: &str) -> Result<usize, Error> {
    let none = || Error::NoSuchDevice { name: name.to_owned(), available: listing(adapters) };
    let lower = name.to_ascii_lowercase();
    if lower == "wgpu" {
        return rank(adapters).first().copied().ok_or_else(none);
    }
    if let Some(index) = lower.strip_prefix("wgpu:") {
        return index.parse().ok().filter(|&index: &usize| index < adapters.len()).ok_or_else(none);
    }
    let matching: Vec<usize> = (0..adapters.len())
        .filter(|&index| adapters[index].name.to_ascii_lowercase().contains(&lower))
        .collect();
    let mut names: Vec<&str> =
        matching.iter().map(|&index| adapters[index].name.as_str()).collect();
    names.dedup();
    match (matching.first(), names.len()) {
        (Some(&index), 1) if !lower.is_empty() => Ok(index),
        (Some(_), _) if !lower.is_empty() => {
            Err(Error::Ambiguous { name: name.to_owned(), matching: listing(adapters) })
        }
        (Some(_) | None, _) => Err(none()),
    }
}

/// Adapters as `wgpu:N name (api, kind)`.
#[must_use]
pub fn listing(adapters: &[AdapterFacts]) -> Vec<String> {
    let line = |(index, facts): (usize, &AdapterFacts)| {
        format!("wgpu:{index} {} ({}, {})", facts.name, facts.api, facts.kind.name())
    };
    adapters.iter().enumerate().map(line).collect()
}

fn instance() -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = Backends::VULKAN | Backends::METAL | Backends::DX12;
    // Validation of indirect calls costs passes we never make; debug layers are the host's choice.
    descriptor.flags = wgpu::InstanceFlags::empty();
    wgpu::Instance::new(descriptor)
}

fn facts(adapter: &wgpu::Adapter) -> AdapterFacts {
    let info = adapter.get_info();
    let rasterises = ["llvmpipe", "lavapipe", "swiftshader", "basic render"]
        .iter()
        .any(|name| info.name.to_ascii_lowercase().contains(name));
    let kind = match info.device_type {
        _ if rasterises => Kind::Rasteriser,
        DeviceType::DiscreteGpu => Kind::Discrete,
        DeviceType::IntegratedGpu => Kind::Integrated,
        DeviceType::VirtualGpu | DeviceType::Other => Kind::Virtual,
        DeviceType::Cpu => Kind::Rasteriser,
    };
    AdapterFacts { name: info.name, api: format!("{:?}", info.backend).to_ascii_lowercase(), kind }
}

/// Every adapter there is.
#[must_use]
pub fn adapters() -> Vec<AdapterFacts> {
    let found = pollster::block_on(instance().enumerate_adapters(Backends::all()));
    found.iter().map(facts).collect()
}

/// Features the kernels use where they are offered, and the limits they want.
#[must_use]
pub fn wgpu_requirements(adapter: &wgpu::Adapter) -> (Features, Limits) {
    let wanted = Features::SUBGROUP | Features::TIMESTAMP_QUERY | Features::PIPELINE_CACHE;
    (adapter.features() & wanted, adapter.limits())
}

pub(super) fn open(options: &OpenOptions) -> Result<Opened, Error> {
    let instance = instance();
    let found = pollster::block_on(instance.enumerate_adapters(Backends::all()));
    let known: Vec<AdapterFacts> = found.iter().map(facts).collect();
    let index = choose(&known, &options.device)?;
    let adapter = &found[index];
    let (mut features, mut limits) = wgpu_requirements(adapter);
    match options.limits {
        LimitChoice::Adapter => {}
        LimitChoice::WebGpu => limits = Limits::default(),
        LimitChoice::Binding(bytes) => {
            limits.max_storage_buffer_binding_size =
                bytes.min(limits.max_storage_buffer_binding_size);
        }
    }
    if !options.features {
        features = Features::empty();
    }
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("thin"),
        required_features: features,
        required_limits: limits,
        memory_hints: wgpu::MemoryHints::MemoryUsage,
        ..Default::default()
    };
    let (device, queue) =
        pollster::block_on(adapter.request_device(&descriptor)).map_err(|error| Error::Device {
            device: known[index].name.clone(),
            reason: error.to_string(),
        })?;
    let limits = device.limits();
    let info = adapter.get_info();
    let largest = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    Ok(Opened {
        info: DeviceInfo {
            name: known[index].name.clone(),
            api: known[index].api.clone(),
            kind: known[index].kind.name().into(),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            lookahead: 1,
            unified_memory: known[index].kind != Kind::Discrete,
            max_binding_bytes: largest,
        },
        target: Target {
            subgroups: features.contains(Features::SUBGROUP),
            max_grid: limits.max_compute_workgroups_per_dimension,
        },
        checked: options.checked,
        device,
        queue,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str, kind: Kind) -> AdapterFacts {
        AdapterFacts { name: name.into(), api: "vulkan".into(), kind }
    }

    #[test]
    fn r1_a_discrete_card_comes_before_an_integrated_one_in_any_order() {
        let card = facts("NVIDIA GeForce RTX 5070 Ti", Kind::Discrete);
        let shared = facts("AMD Radeon(TM) Graphics", Kind::Integrated);

        assert_eq!(rank(&[card.clone(), shared.clone()]), [0, 1]);
        assert_eq!(rank(&[shared, card]), [1, 0]);
    }

    #[test]
    fn r3_a_rasteriser_is_chosen_only_when_it_is_named() {
        let only = [facts("llvmpipe (LLVM 15.0.6, 256 bits)", Kind::Rasteriser)];

        assert!(rank(&only).is_empty());
        assert!(choose(&only, "wgpu").is_err());
        assert!(matches!(choose(&only, "LLVMpipe"), Ok(0)));
        assert!(matches!(choose(&only, "wgpu:0"), Ok(0)));
    }

    #[test]
    fn r2_a_name_that_matches_nothing_or_several_adapters_is_an_error_that_lists_them() {
        let two = [facts("Radeon A", Kind::Discrete), facts("Radeon B", Kind::Discrete)];

        assert!(matches!(choose(&two, "radeon"), Err(Error::Ambiguous { .. })));
        match choose(&two, "geforce") {
            Err(Error::NoSuchDevice { available, .. }) => assert_eq!(available.len(), 2),
            other => panic!("{other:?}"),
        }
    }
}
