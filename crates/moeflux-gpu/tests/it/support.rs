//! The device that all tests share, since making one costs more than most cases; engines on it.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use moeflux::backend::Arithmetic;
use moeflux::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::engine::Engine;

use moeflux_gpu::adapter::adapters;
use moeflux_gpu::device::Gpu;
use moeflux_gpu::maker::GpuMaker;

/// The first adapter that can be used, a software driver too.
pub(crate) fn gpu() -> Arc<Gpu> {
    static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
    let gpu = GPU.get_or_init(|| {
        let adapters = adapters();
        let adapter = adapters
            .first()
            .expect("no GPU and no software driver for Vulkan: install mesa-vulkan-drivers");
        Gpu::open(adapter).expect("the first adapter opens")
    });
    Arc::clone(gpu)
}

/// Where the experts of a model are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertsAt {
    /// On the device.
    Device,
    /// In the host's memory, and in slots for a few on the device.
    Host,
    /// In files, with slots for so many in the host's memory.
    Files(usize),
}

/// An engine on the device, in steps of so many rows.
pub(crate) fn open(dir: &Path, n_rows_max: usize, experts: ExpertsAt) -> Engine {
    let memory_bytes = match experts {
        ExpertsAt::Device => 1 << 30,
        ExpertsAt::Host | ExpertsAt::Files(_) => 1,
    };
    let n_slots_max = match experts {
        ExpertsAt::Files(n_slots) => Some(n_slots),
        ExpertsAt::Device | ExpertsAt::Host => None,
    };
    let config = EngineConfig {
        backend: BackendKind::Cpu,
        device: Some(Arc::new(GpuMaker::new(gpu(), Some(memory_bytes)))),
        arithmetic: Arithmetic::F32,
        kernels: None,
        n_threads: NonZeroUsize::MIN,
        n_rows_max: NonZeroUsize::new(n_rows_max),
        streaming: StreamingConfig { n_slots_max, ..StreamingConfig::default() },
    };
    Engine::open(dir, &config, &mut |_| ControlFlow::Continue(()))
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}
