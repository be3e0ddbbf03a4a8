//! What `--backend` and `--gpu` name: a device for the engine, or none.
//!
//! **Invariant:** whoever asks for a GPU gets one or an error; `auto` takes one only if the whole
//! model fits there, and says so.

use std::path::Path;
use std::sync::Arc;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::config::DeviceMaker;
use moeflux::{Budget, ByteCount, Error, Result};
use moeflux_gpu::adapter::{Adapter, AdapterFacts, AdapterKind, adapters, choose};
use moeflux_gpu::device::Gpu;
use moeflux_gpu::maker::GpuMaker;

use crate::args::{BackendName, ModelArgs};
use crate::needs::Needs;
use crate::print;
use crate::quiet::without_noise;

/// The API whose runs of all tests are recorded: others have to be asked for.
const API_OF_AUTO: &str = "vulkan";

/// The weights of a model that a CPU reads in a moment: to compile a GPU's kernels takes longer.
pub(crate) const SMALL_BYTES: u64 = 512 << 20;

/// A model, and the tokens that its sessions hold on a device.
pub(crate) type Candidate<'a> = (&'a Path, usize);

/// The device of a backend; `None` for the CPU.
pub(crate) fn of(
    backend: BackendName,
    args: &ModelArgs,
    candidate: Candidate<'_>,
) -> Result<Option<Arc<dyn DeviceMaker>>> {
    match backend {
        BackendName::Cpu | BackendName::Reference => Ok(None),
        BackendName::Gpu => {
            check_memory(args, candidate.0)?;
            let adapter = without_noise(|| choose(args.gpu.as_deref()))?;
            maker(&adapter, args).map(Some)
        }
        BackendName::Auto => match auto(candidate)? {
            Some(adapter) => Ok(maker(&adapter, args).map_err(|error| say_fallback(&error)).ok()),
            None => Ok(None),
        },
    }
}

/// Whether the CPU may do what a device could not.
pub(crate) fn falls_back(backend: BackendName, error: &Error) -> bool {
    let is_of_device =
        matches!(error, Error::Device { .. } | Error::NoRoom { .. } | Error::Unsupported(_));
    backend == BackendName::Auto && is_of_device
}

/// Says that the CPU computes, and why.
pub(crate) fn say_fallback(error: &Error) {
    print::aside(&format!("note: computing on the CPU: {error}"));
}

/// Refuses a model whose resident weights are more than what `--gpu-memory` allows.
fn check_memory(args: &ModelArgs, dir: &Path) -> Result<()> {
    let Some(Budget::Bytes(n_bytes)) = args.gpu_memory else { return Ok(()) };
    let (blueprint, _) = Blueprint::open(dir)?;
    Needs::new(&blueprint).check_gpu_memory(n_bytes)
}

fn maker(adapter: &Adapter, args: &ModelArgs) -> Result<Arc<dyn DeviceMaker>> {
    let gpu = Gpu::open(adapter)?;
    gpu.keep_pipelines(&crate::cache::folder());
    let memory_bytes = match args.gpu_memory {
        None | Some(Budget::Auto) => None,
        Some(Budget::Bytes(n_bytes)) => Some(n_bytes),
    };
    let maker = GpuMaker::new(gpu, memory_bytes);
    Ok(Arc::new(if args.precise { maker } else { maker.staging_f16() }))
}

/// The card that has room for all of a model. Says which was taken and why; nothing where there is
/// no card, or a small model.
fn auto((dir, context): Candidate<'_>) -> Result<Option<Adapter>> {
    let (blueprint, _) = Blueprint::open(dir)?;
    let needs = Needs::new(&blueprint);
    if needs.resident_bytes + needs.experts_bytes() < SMALL_BYTES {
        return Ok(None);
    }
    let found = without_noise(adapters).into_iter().find(|it| is_for_auto(it.facts()));
    let Some(adapter) = found else { return Ok(None) };
    let needed_bytes = needs.all_bytes_on_device(context as u64);
    let name = &adapter.facts().name;
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
    Ok(fits.then_some(adapter))
}

/// A card of its own: whether one that shares the CPU's memory is faster is not known beforehand.
pub(crate) fn is_for_auto(facts: &AdapterFacts) -> bool {
    let is_card = matches!(facts.kind, AdapterKind::Discrete | AdapterKind::Virtual);
    is_card && facts.api == API_OF_AUTO && facts.lacks.is_none()
}
