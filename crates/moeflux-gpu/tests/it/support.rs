//! The device of a test, since making one costs more than most cases; engines on it.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::budget::MemoryLayout;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::experts::stream::slot_shape;
use moeflux::provider::model::{Headers, Model};

use moeflux_gpu::adapter::adapters;
use moeflux_gpu::device::Gpu;
use moeflux_gpu::maker::GpuMaker;

/// The devices and their threads; the most recently used is last.
static DEVICES: Mutex<Vec<(ThreadId, Arc<Gpu>)>> = Mutex::new(Vec::new());

/// The first adapter that can be used, a software driver too: one device for each test, as long as
/// there are not more tests at a time than cores. A software driver compiles the kernels of a
/// device in one thread, and keeps them as long as the device.
pub(crate) fn gpu() -> Arc<Gpu> {
    let devices = || DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let this = thread::current().id();
    let own = devices().extract_if(.., |(owner, _)| *owner == this).next();
    let own = own.unwrap_or_else(|| (this, another_gpu()));
    let n_left = thread::available_parallelism().map_or(0, |n_cores| n_cores.get() - 1);
    let mut devices = devices();
    let n_gone = devices.len().saturating_sub(n_left);
    let gone: Vec<_> = devices.drain(..n_gone).collect();
    let device = Arc::clone(&own.1);
    devices.push(own);
    // Letting go of a device takes a while.
    drop(devices);
    drop(gone);
    device
}

/// The same adapter, opened once more.
pub(crate) fn another_gpu() -> Arc<Gpu> {
    let adapters = adapters();
    let adapter = adapters.first().expect("a test that begins with `needs_gpu!()`");
    Gpu::open(adapter).expect("the first adapter opens")
}

/// The block size of the drives for which slots are computed.
pub(crate) const BLOCK_BYTES: usize = 512;

/// Where the experts of a model are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertsAt {
    /// On the device.
    Device,
    /// In the host's memory, and in slots for a few on the device.
    Host,
    /// This percentage on the device, the others in the host's memory, where kernels read them.
    Both(u64),
    /// The same, in buffers for three of them.
    Cut(u64),
    /// In files, with this number of slots in the host's memory.
    Files(usize),
    /// The same, copied to the device even where kernels could see them.
    CopiedFiles(usize),
    /// The same, with this number of slots more in the device's own memory.
    FilesAndDevice(usize, u64),
}

/// An engine on the device, in steps of `n_rows_max` rows.
pub(crate) fn open(dir: &Path, n_rows_max: usize, experts: ExpertsAt) -> Engine {
    let config = config_of(dir, n_rows_max, experts);
    Model::open(dir)
        .and_then(|model| Engine::load(model, &config, &mut |_| ControlFlow::Continue(())))
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

/// An engine on a device of its own, whose kernels are kept in a folder.
pub(crate) fn open_kept(dir: &Path, folder: &Path) -> Engine {
    let gpu = another_gpu();
    gpu.cache_pipelines(folder);
    let config = EngineConfig {
        device: Some(Arc::new(GpuMaker::new(gpu, Some(1 << 30)))),
        ..config_of(dir, 16, ExpertsAt::Device)
    };
    Engine::load(Model::open(dir).unwrap(), &config, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// A model with routed experts; a dense one with its layers as experts.
fn with_experts(dir: &Path) -> Blueprint {
    let (blueprint, _) = Model::open(dir).unwrap().into_parts();
    blueprint.streamed.as_deref().unwrap_or(&blueprint).clone()
}

/// How such an engine is opened.
pub(crate) fn config_of(dir: &Path, n_rows_max: usize, experts: ExpertsAt) -> EngineConfig {
    const LARGE: u64 = 1 << 30;
    let maker = |memory_bytes| GpuMaker::new(gpu(), Some(memory_bytes));
    let maker = match experts {
        ExpertsAt::Device => maker(LARGE),
        ExpertsAt::Host | ExpertsAt::Files(_) => maker(1),
        ExpertsAt::CopiedFiles(_) => maker(1).copying_slots(),
        ExpertsAt::FilesAndDevice(_, n_near) => {
            let blueprint = with_experts(dir);
            let config = config_of(dir, n_rows_max, ExpertsAt::Device);
            let layout = MemoryLayout::new(&blueprint, &config).unwrap();
            let others_bytes = LARGE - layout.device_expert_bytes.unwrap();
            let slot_bytes = slot_shape(&blueprint.manifest.banks, BLOCK_BYTES).stride_bytes as u64;
            // Some of them are a prompt's.
            maker(others_bytes + (n_near + 32) * slot_bytes)
        }
        ExpertsAt::Both(percent) | ExpertsAt::Cut(percent) => {
            let blueprint = with_experts(dir);
            let config = config_of(dir, n_rows_max, ExpertsAt::Device);
            let layout = MemoryLayout::new(&blueprint, &config).unwrap();
            let others_bytes = LARGE - layout.device_expert_bytes.unwrap();
            let near_bytes = layout.memory.expert_bytes * percent / 100;
            let maker = maker(others_bytes + near_bytes).seeing_host();
            let n_experts: usize = blueprint.manifest.banks.iter().map(|bank| bank.n_experts).sum();
            match experts {
                // Slots are somewhat larger than records.
                ExpertsAt::Cut(_) => maker
                    .with_expert_buffers(layout.memory.expert_bytes * 39 / 10 / n_experts as u64),
                _ => maker,
            }
        }
    };
    let n_slots_max = match experts {
        ExpertsAt::Files(n_slots)
        | ExpertsAt::CopiedFiles(n_slots)
        | ExpertsAt::FilesAndDevice(n_slots, _) => Some(n_slots),
        ExpertsAt::Device | ExpertsAt::Host | ExpertsAt::Both(_) | ExpertsAt::Cut(_) => None,
    };
    EngineConfig {
        ranks: None,
        backend: BackendKind::Cpu,
        device: Some(Arc::new(maker)),
        arithmetic: Arithmetic::F32,
        kernels: None,
        n_threads: NonZeroUsize::MIN,
        n_rows_max: NonZeroUsize::new(n_rows_max),
        // Room for all sessions of a test.
        streaming: StreamingConfig { n_slots_max, context: 4096, ..StreamingConfig::default() },
    }
}
