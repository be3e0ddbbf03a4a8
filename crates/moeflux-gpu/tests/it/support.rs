//! The device that all tests share: making one costs more than most cases.

use std::sync::{Arc, OnceLock};

use moeflux_gpu::adapter::adapters;
use moeflux_gpu::device::Gpu;

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
