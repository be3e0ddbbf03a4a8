//! What `--backend` and `--gpu` name: a device for the engine, or none.
//!
//! **Invariant:** whoever asks for a GPU gets one or an error; `auto` gets the CPU where there is
//! none, and is told.

use std::sync::Arc;

use moeflux::provider::config::DeviceMaker;
use moeflux::{Budget, Error, Result};
use moeflux_gpu::adapter::choose;
use moeflux_gpu::device::Gpu;
use moeflux_gpu::maker::GpuMaker;

use crate::args::{BackendName, ModelArgs};

/// The device of a backend; `None` for the CPU.
pub(crate) fn of(backend: BackendName, args: &ModelArgs) -> Result<Option<Arc<dyn DeviceMaker>>> {
    match backend {
        BackendName::Cpu | BackendName::Reference => Ok(None),
        BackendName::Gpu => gpu(args).map(Some),
        BackendName::Auto => match gpu(args) {
            Ok(device) => Ok(Some(device)),
            Err(error) if args.gpu.is_none() => {
                say_fallback(&error);
                Ok(None)
            }
            Err(error) => Err(error),
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
    eprintln!("note: computing on the CPU: {error}");
}

fn gpu(args: &ModelArgs) -> Result<Arc<dyn DeviceMaker>> {
    let gpu = Gpu::open(&choose(args.gpu.as_deref())?)?;
    gpu.keep_pipelines(&crate::cache::folder());
    let memory_bytes = match args.gpu_memory {
        Budget::Auto => None,
        Budget::Bytes(n_bytes) => Some(n_bytes),
    };
    let maker = GpuMaker::new(gpu, memory_bytes);
    Ok(Arc::new(if args.precise { maker } else { maker.staging_f16() }))
}
