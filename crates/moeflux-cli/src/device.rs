//! What `--backend` and `--gpu` name: a device for the engine, or none.
//!
//! **Invariant:** whoever asks for a GPU gets one or an error; `auto` takes one only if the whole
//! model fits there, and says so.

use std::sync::Arc;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::config::DeviceMaker;
use moeflux::provider::model::Headers;
use moeflux::{Budget, ByteCount, Error, Model, Result};
use moeflux_gpu::adapter::{Adapter, AdapterFacts, AdapterKind, adapters, choose};
use moeflux_gpu::device::Gpu;
use moeflux_gpu::maker::{GpuMaker, for_cpu_only, of_cpu_only};

use crate::args::{BackendName, ModelArgs};
use crate::gpu_check;
use crate::needs::Needs;
use crate::print;
use crate::quiet::without_noise;

/// The weights of a model that a CPU reads in a moment: to compile a GPU's kernels takes longer.
pub(crate) const SMALL_BYTES: u64 = 512 << 20;

/// A model, and the tokens that its sessions hold on a device.
pub(crate) type Candidate<'a> = (&'a Model, usize);

/// The device of a backend; `None` for the CPU.
pub(crate) fn of(
    backend: BackendName,
    args: &ModelArgs,
    (model, context): Candidate<'_>,
) -> Result<Option<Arc<dyn DeviceMaker>>> {
    match backend {
        BackendName::Cpu | BackendName::Reference => Ok(None),
        BackendName::Gpu => {
            let blueprint = model.blueprint();
            check_model(args, blueprint)?;
            let adapter = without_noise(|| choose(args.gpu.as_deref()))?;
            maker(&adapter, args, blueprint).map(Some)
        }
        BackendName::Auto => {
            let blueprint = model.blueprint();
            let Some(adapter) = auto(blueprint, context) else { return Ok(None) };
            let made = maker(&adapter, args, blueprint);
            Ok(made.map_err(|error| say_fallback(&error)).ok())
        }
    }
}

/// Whether the CPU may do what a device could not.
pub(crate) fn falls_back(error: &Error) -> bool {
    matches!(error, Error::Device { .. } | Error::NoRoom { .. } | Error::Unsupported(_))
}

/// Says that the CPU computes, and why.
pub(crate) fn say_fallback(error: &Error) {
    print::aside(&format!("note: computing on the CPU: {error}"));
}

/// Refuses a model that no GPU computes, and one whose resident weights are more than what
/// `--gpu-memory` allows.
fn check_model(args: &ModelArgs, blueprint: &Blueprint) -> Result<()> {
    check_kinds(blueprint)?;
    match args.gpu_memory {
        Some(Budget::Bytes(n_bytes)) => {
            Needs::new(blueprint).check_gpu_memory(n_bytes, "--gpu-memory allows")
        }
        _ => Ok(()),
    }
}

/// Refuses weights of a kind for which GPUs have no kernels: before they are read.
///
/// # Errors
///
/// [`Error::Unsupported`] that names the kind.
pub(crate) fn check_kinds(blueprint: &Blueprint) -> Result<()> {
    let kinds = blueprint.manifest.kinds();
    let of_cpu = of_cpu_only(kinds.iter().map(|count| count.kind));
    of_cpu.map_or(Ok(()), |kind| Err(Error::Unsupported(for_cpu_only(kind))))
}

fn maker(
    adapter: &Adapter,
    args: &ModelArgs,
    blueprint: &Blueprint,
) -> Result<Arc<dyn DeviceMaker>> {
    let gpu = Gpu::open(adapter)?;
    gpu.keep_pipelines(&crate::cache::folder());
    gpu_check::check(&gpu, blueprint)?;
    let memory_bytes = match args.gpu_memory {
        None | Some(Budget::Auto) => None,
        Some(Budget::Bytes(n_bytes)) => Some(n_bytes),
    };
    let maker = GpuMaker::new(gpu, memory_bytes);
    Ok(Arc::new(if args.precise { maker } else { maker.staging_f16() }))
}

/// The card that has room for all of a model. Says which was taken and why, or why none was;
/// nothing where there is no card, or a small model.
fn auto(blueprint: &Blueprint, context: usize) -> Option<Adapter> {
    let needs = Needs::new(blueprint);
    if needs.resident_bytes + needs.experts_bytes() < SMALL_BYTES {
        return None;
    }
    let all = without_noise(adapters);
    let refused = all.iter().find_map(|it| not_for_auto(it.facts()));
    let found = all.into_iter().find(|it| is_for_auto(it.facts()));
    let Some(adapter) = found else {
        if let Some(refused) = refused {
            print::aside(&format!("note: computing on the CPU: {refused}"));
        }
        return None;
    };
    let name = &adapter.facts().name;
    if let Err(error) = check_kinds(blueprint) {
        print::aside(&format!("note: computing on the CPU, not on {name}: {error}"));
        return None;
    }
    let needed_bytes = needs.all_bytes_on_device(context as u64);
    let (needed, room_bytes) = (ByteCount(needed_bytes), adapter.facts().room_bytes());
    let room = ByteCount(room_bytes.unwrap_or(0));
    let fits = room.0 >= needed_bytes;
    let (needed, room) = (needed.rounded(), room.rounded());
    if fits {
        print::aside(&format!(
            "note: computing on {name}: the model fits there ({needed} of {room}); --backend cpu \
             computes on the CPU"
        ));
    } else {
        print::aside(&format!(
            "note: computing on the CPU: the model needs {needed}, {name} has room for {room}; \
             --backend gpu uses it for a part"
        ));
    }
    fits.then_some(adapter)
}

/// Why a card of its own is not taken, if it is not.
fn not_for_auto(facts: &AdapterFacts) -> Option<String> {
    let name = &facts.name;
    match &facts.lacks {
        _ if !is_card(facts) => None,
        Some(lacks) => Some(format!("{name} cannot be used: {lacks}")),
        None if facts.is_second_choice() => Some(format!(
            "{name} has no driver for Vulkan; --gpu '{name}' uses it through {}",
            facts.api
        )),
        None => None,
    }
}

/// Whether it is expected to be faster than the CPU beside it: a card of its own, or Apple's GPU.
/// Others that share the CPU's memory may be slower.
fn is_card(facts: &AdapterFacts) -> bool {
    matches!(facts.kind, AdapterKind::Discrete | AdapterKind::Virtual) || facts.api == "metal"
}

/// Whether it is taken by itself. What it computes is checked before it is used.
pub(crate) fn is_for_auto(facts: &AdapterFacts) -> bool {
    is_card(facts) && !facts.is_second_choice() && facts.lacks.is_none()
}

#[cfg(test)]
mod tests {
    use moeflux_gpu::adapter::HostMemory;

    use super::*;

    #[test]
    fn a_card_that_is_not_taken_says_why() {
        let card = AdapterFacts {
            name: "X 100".into(),
            kind: AdapterKind::Discrete,
            api: "vulkan",
            driver: String::new(),
            memory_bytes: Some(24 << 30),
            host_memory: HostMemory::Seen,
            buffer_bytes_max: 4 << 30,
            binding_bytes_max: 2 << 30,
            workgroup_bytes_max: 48 << 10,
            subgroup_sizes: None,
            has_f16: true,
            matrix_edge: None,
            has_timestamps: true,
            lacks: None,
        };
        assert!(is_for_auto(&card) && not_for_auto(&card).is_none());
        let lacking = AdapterFacts { lacks: Some("it is too old".into()), ..card.clone() };
        let expected = "X 100 cannot be used: it is too old";
        assert_eq!(not_for_auto(&lacking).as_deref(), Some(expected));
        let other = AdapterFacts { api: "dx12", ..card };
        let expected = "X 100 has no driver for Vulkan; --gpu 'X 100' uses it through dx12";
        assert_eq!(not_for_auto(&other).as_deref(), Some(expected));
        // Those that share the CPU's memory are not expected to be taken.
        let shared = AdapterFacts { kind: AdapterKind::Integrated, ..other };
        assert!(not_for_auto(&shared).is_none() && !is_for_auto(&shared));
        let of_apple = AdapterFacts { api: "metal", ..shared };
        assert!(not_for_auto(&of_apple).is_none() && is_for_auto(&of_apple));
    }
}
