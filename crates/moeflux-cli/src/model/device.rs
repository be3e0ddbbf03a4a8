//! The device selected by `--backend` and `--gpu`, if any.
//!
//! **Invariant:** an explicit request for a GPU yields one or an error; `auto` uses one only if the
//! whole model fits, and says so.

use std::sync::Arc;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::config::DeviceMaker;
use moeflux::provider::model::Headers;
use moeflux::{Budget, ByteCount, Error, Model, Result};
use moeflux_gpu::adapter::{Adapter, AdapterFacts, adapters, choose};
use moeflux_gpu::auto::{AutoRejection, auto_rejection, is_for_auto};
use moeflux_gpu::device::Gpu;
use moeflux_gpu::maker::{GpuMaker, cpu_only_message, first_cpu_only_kind};

use crate::model::gpu_check;
use crate::model::needs::Needs;
use crate::options::args::{BackendName, ModelArgs};
use crate::output::print;
use crate::output::quiet::without_noise;

/// Models up to this size take less time to read into CPU memory than a GPU's kernels take to
/// compile.
pub(crate) const SMALL_BYTES: u64 = 512 << 20;

/// A model, and the number of tokens that its sessions hold on a device.
pub(crate) type ModelWithContext<'a> = (&'a Model, usize);

/// Returns the device of a backend; `None` if the CPU computes.
///
/// # Errors
///
/// Of an explicit request for a GPU: see `check_model` and `maker`, or if there is no such GPU.
pub(crate) fn of(
    backend: BackendName,
    args: &ModelArgs,
    (model, context): ModelWithContext<'_>,
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
            Ok(made.map_err(|error| note_fallback(&error)).ok())
        }
    }
}

/// Returns whether the CPU may be used after this error of a device.
pub(crate) fn falls_back(error: &Error) -> bool {
    matches!(error, Error::Device { .. } | Error::NoRoom { .. } | Error::Unsupported(_))
}

/// Prints that the CPU is used, and why.
pub(crate) fn note_fallback(error: &Error) {
    print::stderr_line(&format!("note: computing on the CPU: {error}"));
}

/// Refuses a model that no GPU can compute, and one whose resident weights exceed `--gpu-memory`.
fn check_model(args: &ModelArgs, blueprint: &Blueprint) -> Result<()> {
    check_kinds(blueprint)?;
    let least = blueprint.streamed.as_deref().unwrap_or(blueprint);
    match args.gpu_memory {
        Some(Budget::Bytes(n_bytes)) => {
            Needs::new(least).check_gpu_memory(n_bytes, "--gpu-memory allows")
        }
        _ => Ok(()),
    }
}

/// Refuses weights of a kind without GPU kernels, before they are read.
///
/// # Errors
///
/// [`Error::Unsupported`] with the name of the kind.
pub(crate) fn check_kinds(blueprint: &Blueprint) -> Result<()> {
    let kinds = blueprint.manifest.kinds();
    let cpu_only = first_cpu_only_kind(kinds.iter().map(|count| count.kind));
    cpu_only.map_or(Ok(()), |kind| Err(Error::Unsupported(cpu_only_message(kind))))
}

/// Opens a GPU and checks that it can compute the model.
fn maker(
    adapter: &Adapter,
    args: &ModelArgs,
    blueprint: &Blueprint,
) -> Result<Arc<dyn DeviceMaker>> {
    let gpu = Gpu::open(adapter)?;
    gpu.cache_pipelines(&crate::system::cache::folder());
    gpu_check::check(&gpu, blueprint)?;
    let memory_bytes = match args.gpu_memory {
        None | Some(Budget::Auto) => None,
        Some(Budget::Bytes(n_bytes)) => Some(n_bytes),
    };
    let maker = GpuMaker::new(gpu, memory_bytes);
    Ok(Arc::new(if args.precise { maker } else { maker.staging_f16() }))
}

/// Returns a GPU with room for the whole model. Prints the choice and its reason, or why no GPU is
/// used; prints nothing if there is no GPU, or if the model is small.
fn auto(blueprint: &Blueprint, context: usize) -> Option<Adapter> {
    let needs = Needs::new(blueprint);
    if needs.resident_bytes + needs.experts_bytes() < SMALL_BYTES {
        return None;
    }
    let all = without_noise(adapters);
    let refused = all.iter().find_map(|it| refusal(it.facts()));
    let found = all.into_iter().find(|it| is_for_auto(it.facts()));
    let Some(adapter) = found else {
        if let Some(refused) = refused {
            print::stderr_line(&format!("note: computing on the CPU: {refused}"));
        }
        return None;
    };
    let name = &adapter.facts().name;
    if let Err(error) = check_kinds(blueprint) {
        print::stderr_line(&format!("note: computing on the CPU, not on {name}: {error}"));
        return None;
    }
    let needed_bytes = needs.all_bytes_on_device(context as u64);
    let (needed, room_bytes) = (ByteCount(needed_bytes), adapter.facts().room_bytes());
    let room = ByteCount(room_bytes.unwrap_or(0));
    let fits = room.0 >= needed_bytes;
    let (needed, room) = (needed.rounded(), room.rounded());
    if fits {
        print::stderr_line(&format!(
            "note: computing on {name}: the model fits there ({needed} of {room}); --backend cpu \
             computes on the CPU"
        ));
    } else {
        print::stderr_line(&format!(
            "note: computing on the CPU: the model needs {needed}, {name} has room for {room}; \
             --backend gpu uses it for part of the model"
        ));
    }
    fits.then_some(adapter)
}

/// Returns the reason why `auto` does not use a GPU; `None` if it may.
fn refusal(facts: &AdapterFacts) -> Option<String> {
    let AdapterFacts { name, api, .. } = facts;
    Some(match auto_rejection(facts)? {
        AutoRejection::SecondChoice => {
            format!("{name} has no driver for Vulkan; --gpu '{name}' uses it through {api}")
        }
        AutoRejection::Lacks(lacks) => format!("{name} cannot be used: {lacks}"),
        _ => format!("{name} cannot be used"),
    })
}
