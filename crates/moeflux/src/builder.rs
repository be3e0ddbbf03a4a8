//! How a program loads an engine: from a model, and from settings that differ from the defaults.
//!
//! Only fills an [`EngineConfig`]; the engine interprets it.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use crate::backend::Arithmetic;
use crate::config::{Budget, Device, EngineConfig, ReadWay};
use crate::engine::Engine;
use crate::error::Result;
use crate::model::Model;
use crate::weights::Progress;

/// Configures and loads an [`Engine`]. Defaults are those of the command `moeflux`.
///
/// ```no_run
/// let model = moeflux::Model::open("models/qwen3")?;
/// let engine = moeflux::Engine::builder(model).memory(24 << 30).context(8192).load()?;
/// # Ok::<(), moeflux::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "no weight is read before `load`"]
pub struct EngineBuilder {
    model: Model,
    config: EngineConfig,
}

impl Engine {
    /// Returns a builder that loads this model.
    pub fn builder(model: Model) -> EngineBuilder {
        EngineBuilder { model, config: EngineConfig::default() }
    }
}

/// Access to settings that have no method of their own. Without any promise of stability.
pub trait Configure {
    /// Returns the builder after `change` has edited its configuration.
    #[must_use]
    fn configure(self, change: impl FnOnce(&mut EngineConfig)) -> Self;
}

impl Configure for EngineBuilder {
    fn configure(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.config);
        self
    }
}

impl EngineBuilder {
    /// Limits the memory of the whole process. Experts that do not fit are read from the drive. By
    /// default, the limit is what the machine can spare.
    pub fn memory(mut self, n_bytes: u64) -> Self {
        self.config.streaming.budget = Budget::Bytes(n_bytes);
        self
    }

    /// Reserves a part of [`Self::memory`] for the program's own work beside the engine.
    pub fn beside(mut self, n_bytes: u64) -> Self {
        self.config.streaming.beside_bytes = n_bytes;
        self
    }

    /// Reserves memory for sessions with this many tokens in total; 4096 by default. Sessions that
    /// grow beyond it take memory from experts.
    pub fn context(mut self, n_tokens: usize) -> Self {
        self.config.streaming.context = n_tokens;
        self
    }

    /// Sets the arithmetic of the CPU; [`Arithmetic::Int8`] by default.
    pub fn arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.config.arithmetic = arithmetic;
        self
    }

    /// Sets the number of compute threads; by default one per physical performance core.
    pub fn threads(mut self, n_threads: NonZeroUsize) -> Self {
        self.config.n_threads = n_threads;
        self
    }

    /// Sets how many tokens of a prompt are computed together. This changes speed and memory, never
    /// a result. The default is 512; it is higher for a long prompt if experts are streamed, and
    /// lower if memory is short.
    pub fn rows_per_step(mut self, n_rows_max: NonZeroUsize) -> Self {
        self.config.n_rows_max = Some(n_rows_max);
        self
    }

    /// Sets how experts that do not fit into memory are read. By default, a measurement of at most
    /// 1.6 s chooses the faster way.
    pub fn read_way(mut self, way: ReadWay) -> Self {
        self.config.streaming.way = way;
        self
    }

    /// Sets a folder on another drive that holds the same files; reads are spread over both drives.
    pub fn mirror(mut self, dir: impl AsRef<Path>) -> Self {
        self.config.streaming.mirror = Some(dir.as_ref().to_owned());
        self
    }

    /// Turns off checksums: data read from the drive is not verified.
    pub fn without_checksums(mut self) -> Self {
        self.config.streaming.checks_sums = false;
        self
    }

    /// Computes on a device instead of the CPU. `None` selects the CPU.
    pub fn device(mut self, device: impl Into<Option<Device>>) -> Self {
        self.config.device = device.into().map(|Device(maker)| maker);
        self
    }

    /// Reads the weights and returns the engine. Experts that fit into memory may still be loading
    /// while it runs: see [`Engine::read_rest`].
    ///
    /// # Errors
    ///
    /// If the weights, the options or the machine do not allow it:
    /// [`Error::fault`](crate::Error::fault) tells these apart.
    pub fn load(self) -> Result<Engine> {
        self.load_watched(&mut |_| ControlFlow::Continue(()))
    }

    /// As [`EngineBuilder::load`], with progress: `watch` receives the bytes read so far, and may
    /// cancel.
    ///
    /// # Errors
    ///
    /// As [`EngineBuilder::load`]; also [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn load_watched(
        self,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Engine> {
        Engine::load(self.model, &self.config, watch)
    }
}
