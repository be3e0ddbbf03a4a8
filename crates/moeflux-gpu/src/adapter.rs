//! The GPUs of this machine, as their drivers describe them, and the choice of one.
//!
//! **Invariant:** listing never fails and changes nothing; a choice that cannot be met lists the
//! available adapters. This module knows nothing of models.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use moeflux::provider::error::{ByteCount, Error, Remedy, Result};

use crate::host_import::memory_bytes;

/// Kind of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// A card with its own memory.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A part of a card, assigned by a hypervisor.
    Virtual,
    /// The CPU, through a software driver: correct, but slow.
    Software,
    /// Not reported by the driver.
    Other,
}

impl AdapterKind {
    const fn of(kind: wgpu::DeviceType) -> Self {
        match kind {
            wgpu::DeviceType::DiscreteGpu => Self::Discrete,
            wgpu::DeviceType::IntegratedGpu => Self::Integrated,
            wgpu::DeviceType::VirtualGpu => Self::Virtual,
            wgpu::DeviceType::Cpu => Self::Software,
            wgpu::DeviceType::Other => Self::Other,
        }
    }

    /// Returns the display name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Software => "software",
            Self::Other => "unknown kind",
        }
    }

    /// Returns the preference rank; lower is preferred.
    const fn rank(self) -> u8 {
        match self {
            Self::Discrete => 0,
            Self::Integrated => 1,
            Self::Virtual => 2,
            Self::Other => 3,
            Self::Software => 4,
        }
    }
}

/// How an adapter accesses host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMemory {
    /// Host memory is its own memory.
    Shared,
    /// Kernels read host memory directly.
    Seen,
    /// By copies.
    Copied,
}

impl HostMemory {
    const fn of(kind: AdapterKind, features: wgpu::Features) -> Self {
        match kind {
            AdapterKind::Integrated | AdapterKind::Software | AdapterKind::Other => Self::Shared,
            AdapterKind::Discrete | AdapterKind::Virtual
                if features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS) =>
            {
                Self::Seen
            }
            AdapterKind::Discrete | AdapterKind::Virtual => Self::Copied,
        }
    }

    /// Returns the display name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Seen => "seen",
            Self::Copied => "copied",
        }
    }
}

/// Description and capabilities of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFacts {
    /// Name, as the driver reports it.
    pub name: String,
    /// Kind of the adapter.
    pub kind: AdapterKind,
    /// "vulkan", "metal", "dx12".
    pub api: &'static str,
    /// Driver and its version.
    pub driver: String,
    /// Memory, if the driver reports it. Adapters without their own memory report the CPU's.
    pub memory_bytes: Option<u64>,
    /// How it accesses host memory.
    pub host_memory: HostMemory,
    /// Largest buffer.
    pub buffer_bytes_max: u64,
    /// Largest part of a buffer that a kernel can bind.
    pub binding_bytes_max: u64,
    /// Memory shared by the invocations of a workgroup.
    pub workgroup_bytes_max: u32,
    /// Smallest and largest subgroup; `None` if kernels cannot use them.
    pub subgroup_sizes: Option<(u32, u32)>,
    /// Whether kernels can compute in half precision.
    pub has_f16: bool,
    /// Edge of the matrices that subgroups of 32 multiply in half precision, with single-precision
    /// sums. `None` unless kernels support it.
    pub matrix_edge: Option<u32>,
    /// Whether kernels can be timed.
    pub has_timestamps: bool,
    /// Reason why the adapter cannot be used, if any.
    pub lacks: Option<String>,
}

impl AdapterFacts {
    /// Returns whether the adapter is used only by name. Windows offers two APIs for a card; the
    /// tests run on the other one.
    #[must_use]
    pub fn is_second_choice(&self) -> bool {
        self.api == SECOND_API
    }

    /// Returns the memory a model may use by default, if the driver reports how much there is.
    #[must_use]
    pub fn room_bytes(&self) -> Option<u64> {
        self.memory_bytes.map(|n_bytes| match self.kind {
            // Metal's recommendation already leaves enough to other programs.
            _ if self.api == "metal" => n_bytes,
            AdapterKind::Discrete | AdapterKind::Virtual => room_of_card(n_bytes),
            _ => n_bytes - n_bytes / OTHERS_SHARE_OF_SHARED,
        })
    }
}

impl fmt::Display for AdapterFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {}", self.name, self.kind.name(), self.api)?;
        if !self.driver.is_empty() {
            write!(f, ", {}", self.driver)?;
        }
        f.write_str(")")
    }
}

/// See [`AdapterFacts::is_second_choice`].
const SECOND_API: &str = "dx12";

/// Divisors of the memory that is left to other programs: of a card's own memory, and of memory
/// shared with the CPU.
const OTHERS_SHARE_OF_CARD: u64 = 16;
const OTHERS_SHARE_OF_SHARED: u64 = 2;

/// Returns the default memory of a model on a card with its own memory.
#[must_use]
pub fn room_of_card(memory_bytes: u64) -> u64 {
    memory_bytes - memory_bytes / OTHERS_SHARE_OF_CARD
}

/// Storage buffers that one kernel binds.
pub(crate) const N_BUFFERS_MIN: u32 = 8;
/// Bytes of a kernel's parameters.
pub(crate) const PARAM_BYTES_MAX: u32 = 128;
/// Limits that every adapter of the last ten years meets; weights are cut into slices of this size.
const BINDING_BYTES_MIN: u64 = 64 << 20;
const WORKGROUP_BYTES_MIN: u32 = 16 << 10;
pub(crate) const N_INVOCATIONS_MIN: u32 = 256;
/// Rows and columns of cooperative matrices.
const MATRIX_EDGE: u32 = 16;
/// Features required by kernels with cooperative matrices.
pub(crate) const MATRIX_FEATURES: wgpu::Features = wgpu::Features::SHADER_F16
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);

/// An adapter that can be opened.
#[derive(Debug)]
pub struct Adapter {
    pub(crate) inner: wgpu::Adapter,
    facts: AdapterFacts,
}

impl Adapter {
    /// Returns its description and capabilities.
    #[must_use]
    pub fn facts(&self) -> &AdapterFacts {
        &self.facts
    }
}

/// Returns all adapters in order of preference.
#[must_use]
pub fn adapters() -> Vec<Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::PRIMARY;
    // Validation layers are for driver developers.
    descriptor.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(descriptor);
    let found = block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let found = found.into_iter().map(|inner| {
        let info = inner.get_info();
        (Adapter { facts: facts_of(&inner), inner }, (info.vendor, info.device))
    });
    let mut adapters = without_duplicates(found.collect(), |it| &it.facts);
    adapters.sort_by_key(|it| {
        (it.facts.lacks.is_some(), it.facts.is_second_choice(), it.facts.kind.rank())
    });
    adapters
}

/// Removes the second API of each card that the first one can use. Cards are identified by vendor
/// and device number. Two cards of one model appear twice in both APIs.
fn without_duplicates<T>(
    found: Vec<(T, (u32, u32))>,
    facts: impl Fn(&T) -> &AdapterFacts,
) -> Vec<T> {
    let is_second = |it: &T| facts(it).is_second_choice();
    let is_usable = |it: &T| facts(it).lacks.is_none();
    let first = found.iter().filter(|(it, _)| !is_second(it) && is_usable(it));
    let known: Vec<(u32, u32)> = first.map(|(_, card)| *card).collect();
    let left = found.into_iter().filter(|(it, card)| !is_second(it) || !known.contains(card));
    left.map(|(it, _)| it).collect()
}

/// Returns the adapter at an index of the list, or the first one whose name contains `wanted`.
/// Without `wanted`, returns the first one that is neither a software driver nor used only by name.
///
/// # Errors
///
/// [`Error::Device`] if no adapter matches, with a list of all adapters, or if the adapter cannot
/// be used.
pub fn choose(wanted: Option<&str>) -> Result<Adapter> {
    let mut adapters = adapters();
    let names: Vec<String> = adapters.iter().map(|it| it.facts.to_string()).collect();
    let found = index_of(wanted, &adapters.iter().map(|it| &it.facts).collect::<Vec<_>>());
    let Some(place) = found else {
        return Err(not_found(wanted, &names));
    };
    let adapter = adapters.swap_remove(place);
    match &adapter.facts.lacks {
        Some(lacks) => {
            let problem = format!("this GPU cannot be used: {lacks}");
            let (device, remedy) = (adapter.facts.name.clone(), Some(Remedy::AnotherDevice));
            Err(Error::Device { device, problem, remedy })
        }
        None => Ok(adapter),
    }
}

fn index_of(wanted: Option<&str>, adapters: &[&AdapterFacts]) -> Option<usize> {
    let Some(wanted) = wanted else {
        let is_usual =
            |it: &&AdapterFacts| it.kind != AdapterKind::Software && !it.is_second_choice();
        return adapters.iter().position(is_usual);
    };
    if let Ok(idx) = wanted.parse::<usize>() {
        return (idx < adapters.len()).then_some(idx);
    }
    let wanted = wanted.to_lowercase();
    adapters.iter().position(|it| it.name.to_lowercase().contains(&wanted))
}

fn not_found(wanted: Option<&str>, names: &[String]) -> Error {
    let named = names.iter().enumerate().map(|(idx, name)| format!("{idx}: {name}"));
    let there = named.collect::<Vec<_>>().join("; ");
    let device = wanted.map_or("GPU".to_owned(), |wanted| format!("GPU {wanted:?}"));
    let problem = match (names.is_empty(), wanted) {
        (true, _) => "no driver for Vulkan, Metal or DX12 was found".to_owned(),
        (false, Some(_)) => format!("not found; available: {there}"),
        (false, None) => {
            format!("no GPU with a driver for Vulkan or Metal found; available: {there}")
        }
    };
    let remedy = (!names.is_empty()).then_some(Remedy::AnotherDevice);
    Error::Device { device, problem, remedy }
}

fn facts_of(adapter: &wgpu::Adapter) -> AdapterFacts {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let has = |feature| features.contains(feature);
    let driver = format!("{} {}", info.driver, info.driver_info);
    AdapterFacts {
        kind: AdapterKind::of(info.device_type),
        api: match info.backend {
            wgpu::Backend::Vulkan => "vulkan",
            wgpu::Backend::Metal => "metal",
            wgpu::Backend::Dx12 => "dx12",
            _ => "gpu",
        },
        driver: driver.trim().to_owned(),
        memory_bytes: memory_bytes(adapter),
        host_memory: HostMemory::of(AdapterKind::of(info.device_type), features),
        buffer_bytes_max: limits.max_buffer_size,
        binding_bytes_max: limits.max_storage_buffer_binding_size,
        workgroup_bytes_max: limits.max_compute_workgroup_storage_size,
        subgroup_sizes: has(wgpu::Features::SUBGROUP)
            .then_some((info.subgroup_min_size, info.subgroup_max_size)),
        has_f16: has(wgpu::Features::SHADER_F16),
        matrix_edge: (has(MATRIX_FEATURES)
            && (info.subgroup_min_size, info.subgroup_max_size) == (32, 32)
            && adapter.cooperative_matrix_properties().iter().any(is_of_f16))
        .then_some(MATRIX_EDGE),
        has_timestamps: has(wgpu::Features::TIMESTAMP_QUERY),
        lacks: lacks(&limits, features),
        name: info.name,
    }
}

/// Returns whether the kernels with cooperative matrices support these properties.
fn is_of_f16(it: &wgpu::CooperativeMatrixProperties) -> bool {
    [it.m_size, it.n_size, it.k_size] == [MATRIX_EDGE; 3]
        && it.ab_type == wgpu::CooperativeScalarType::F16
        && it.cr_type == wgpu::CooperativeScalarType::F32
}

/// Returns the reason why an adapter with these limits cannot be used.
fn lacks(limits: &wgpu::Limits, features: wgpu::Features) -> Option<String> {
    if !features.contains(wgpu::Features::IMMEDIATES) {
        return Some("its driver has no immediates (push constants)".to_owned());
    }
    let all = [
        ("storage buffers of a kernel", limits.max_storage_buffers_per_shader_stage, N_BUFFERS_MIN),
        ("bytes of immediates", limits.max_immediate_size, PARAM_BYTES_MAX),
        (
            "bytes of workgroup memory",
            limits.max_compute_workgroup_storage_size,
            WORKGROUP_BYTES_MIN,
        ),
        (
            "invocations of a workgroup",
            limits.max_compute_invocations_per_workgroup,
            N_INVOCATIONS_MIN,
        ),
    ];
    let few = all.iter().find(|(_, has, needed)| has < needed);
    if let Some((what, has, needed)) = few {
        return Some(format!("{has} {what}, but {needed} are needed"));
    }
    let binding = limits.max_storage_buffer_binding_size;
    (binding < BINDING_BYTES_MIN).then(|| {
        format!(
            "kernels can address at most {}, but {} are needed",
            ByteCount(binding),
            ByteCount(BINDING_BYTES_MIN)
        )
    })
}

/// Waits for a future. Those of wgpu's own drivers are ready at once.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str, kind: AdapterKind) -> AdapterFacts {
        AdapterFacts {
            name: name.to_owned(),
            kind,
            api: "vulkan",
            driver: String::new(),
            memory_bytes: None,
            host_memory: HostMemory::of(kind, wgpu::Features::empty()),
            buffer_bytes_max: 1 << 30,
            binding_bytes_max: 1 << 30,
            workgroup_bytes_max: 1 << 15,
            subgroup_sizes: None,
            has_f16: false,
            matrix_edge: None,
            has_timestamps: false,
            lacks: None,
        }
    }

    #[test]
    fn a_gpu_is_chosen_by_index_or_part_of_its_name() {
        let all = [
            facts("NVIDIA H100", AdapterKind::Discrete),
            facts("llvmpipe (LLVM)", AdapterKind::Software),
        ];
        let all: Vec<&AdapterFacts> = all.iter().collect();
        for (wanted, expected) in [
            (None, Some(0)),
            (Some("0"), Some(0)),
            (Some("1"), Some(1)),
            (Some("2"), None),
            (Some("h100"), Some(0)),
            (Some("LLVMpipe"), Some(1)),
            (Some("radeon"), None),
        ] {
            assert_eq!(index_of(wanted, &all), expected, "{wanted:?}");
        }
        assert_eq!(index_of(None, &all[1..]), None, "a software driver is asked for by name");
        let second = AdapterFacts { api: "dx12", ..facts("X", AdapterKind::Discrete) };
        assert_eq!(index_of(None, &[&second]), None, "so is the second interface to a card");
        assert_eq!(index_of(Some("x"), &[&second]), Some(0));
    }

    #[test]
    fn a_card_with_two_interfaces_is_one() {
        let card = |name: &str, api, lacks: Option<&str>| AdapterFacts {
            api,
            lacks: lacks.map(str::to_owned),
            ..facts(name, AdapterKind::Discrete)
        };
        let found = vec![
            (card("a by DX12", "dx12", None), (1, 1)),
            (card("b by DX12", "dx12", None), (1, 2)),
            (card("c by DX12", "dx12", None), (2, 1)),
            (card("a", "vulkan", None), (1, 1)),
            (card("c, too old", "vulkan", Some("it is too old")), (2, 1)),
        ];
        let left = without_duplicates(found, |it| it);
        let names: Vec<&str> = left.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["b by DX12", "c by DX12", "a", "c, too old"]);
    }

    #[test]
    fn a_missing_gpu_is_reported_with_the_available_ones() {
        let names = ["X (discrete, vulkan)".to_owned()];
        assert_eq!(
            not_found(Some("Y"), &names).to_string(),
            "GPU \"Y\": not found; available: 0: X (discrete, vulkan); choose another device"
        );
        assert_eq!(
            not_found(None, &names).to_string(),
            "GPU: no GPU with a driver for Vulkan or Metal found; available: 0: X (discrete, \
             vulkan); choose another device"
        );
        assert_eq!(
            not_found(None, &[]).to_string(),
            "GPU: no driver for Vulkan, Metal or DX12 was found"
        );
    }

    #[test]
    fn matrices_of_other_sizes_or_kinds_are_not_taken() {
        use wgpu::CooperativeScalarType::{F16, F32};
        for (size, ab_type, cr_type, expected) in [
            (16, F16, F32, true),
            (8, F16, F32, false),
            (16, F16, F16, false),
            (16, F32, F32, false),
        ] {
            let properties = wgpu::CooperativeMatrixProperties {
                m_size: size,
                n_size: size,
                k_size: size,
                ab_type,
                cr_type,
                saturating_accumulation: false,
            };
            assert_eq!(is_of_f16(&properties), expected, "{properties:?}");
        }
    }

    #[test]
    fn access_to_host_memory_depends_on_kind_and_driver() {
        use AdapterKind::{Discrete, Integrated, Software};
        let mappable = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
        for (kind, features, expected) in [
            (Discrete, mappable, HostMemory::Seen),
            (Discrete, wgpu::Features::empty(), HostMemory::Copied),
            (Integrated, mappable, HostMemory::Shared),
            (Software, mappable, HostMemory::Shared),
        ] {
            assert_eq!(HostMemory::of(kind, features), expected, "{kind:?}");
        }
    }

    #[test]
    fn limits_that_are_too_small_are_named() {
        let limits = wgpu::Limits { max_immediate_size: 128, ..wgpu::Limits::default() };
        assert_eq!(lacks(&limits, wgpu::Features::IMMEDIATES), None);
        assert!(lacks(&limits, wgpu::Features::empty()).is_some());
        let few = wgpu::Limits { max_storage_buffers_per_shader_stage: 4, ..limits };
        assert_eq!(
            lacks(&few, wgpu::Features::IMMEDIATES),
            Some("4 storage buffers of a kernel, but 8 are needed".to_owned())
        );
    }
}
