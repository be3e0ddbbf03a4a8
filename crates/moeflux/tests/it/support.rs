//! Engines over golden cases, for several tests.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::error::Result;
use moeflux::provider::model::Model;

/// An engine over a folder.
pub(crate) fn open(dir: &Path, backend: BackendKind, n_rows_max: usize) -> Engine {
    open_with(dir, backend, (n_rows_max, 2)).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

/// An engine over a folder with the given rows per step and threads.
pub(crate) fn open_with(
    dir: &Path,
    backend: BackendKind,
    (n_rows_max, n_threads): (usize, usize),
) -> Result<Engine> {
    let config = config(backend, Arithmetic::F32, (n_rows_max, n_threads));
    Engine::load(Model::open(dir)?, &config, &mut |_| ControlFlow::Continue(()))
}

/// An engine on the CPU backend in some arithmetic.
pub(crate) fn open_as(dir: &Path, arithmetic: Arithmetic, n_rows_max: usize) -> Engine {
    let config = config(BackendKind::Cpu, arithmetic, (n_rows_max, 2));
    Engine::load(Model::open(dir).unwrap(), &config, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// How such an engine is opened.
pub(crate) fn config(
    backend: BackendKind,
    arithmetic: Arithmetic,
    (n_rows_max, n_threads): (usize, usize),
) -> EngineConfig {
    let n_rows_max = NonZeroUsize::new(n_rows_max).unwrap();
    let n_threads = NonZeroUsize::new(n_threads).unwrap();
    EngineConfig {
        ranks: None,
        backend,
        device: None,
        arithmetic,
        kernels: None,
        n_threads,
        n_rows_max: Some(n_rows_max),
        streaming: StreamingConfig::default(),
    }
}
