//! How a program loads an engine: a model, and what should differ from the command's defaults.
//!
//! Fills an [`EngineConfig`] and knows nothing of what is made of it.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use crate::backend::Arithmetic;
use crate::config::{Budget, Device, EngineConfig, ReadWay};
use crate::engine::Engine;
use crate::error::Result;
use crate::model::Model;
use crate::weights::Progress;

/// Loads an [`Engine`]. What is not set is as in the command `moeflux`.
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
    /// Begins to load a model.
    pub fn builder(model: Model) -> EngineBuilder {
        EngineBuilder { model, config: EngineConfig::default() }
    }
}

/// Changes what has no method of its own. No promise of stability.
pub trait Configure {
    /// The same with some settings changed.
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
    /// Bytes that the whole process may use; experts without room in them are read from the drive.
    /// By default as much as the machine can spare.
    pub fn memory(mut self, n_bytes: u64) -> Self {
        self.config.streaming.budget = Budget::Bytes(n_bytes);
        self
    }

    /// Bytes of [`Self::memory`] that the program keeps for its own work beside the engine.
    pub fn beside(mut self, n_bytes: u64) -> Self {
        self.config.streaming.beside_bytes = n_bytes;
        self
    }

    /// Tokens of sessions for which memory is kept from the beginning; 4096 by default. Sessions
    /// that grow beyond take memory from experts.
    pub fn context(mut self, n_tokens: usize) -> Self {
        self.config.streaming.context = n_tokens;
        self
    }

    /// How the CPU computes; [`Arithmetic::Int8`] by default.
    pub fn arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.config.arithmetic = arithmetic;
        self
    }

    /// Threads that compute; by default one per physical performance core.
    pub fn threads(mut self, n_threads: NonZeroUsize) -> Self {
        self.config.n_threads = n_threads;
        self
    }

    /// Tokens of a prompt that are computed together. This changes speed and memory, never a
    /// result. By default 512; more for a long prompt if experts are streamed, fewer if memory is
    /// short.
    pub fn rows_per_step(mut self, n_rows_max: NonZeroUsize) -> Self {
        self.config.n_rows_max = Some(n_rows_max);
        self
    }

    /// How experts are read that have no room in memory; by default the way that a measurement of
    /// at most 1.6 s finds faster.
    pub fn read_way(mut self, way: ReadWay) -> Self {
        self.config.streaming.way = way;
        self
    }

    /// A folder on another drive with the same files: reads are spread over both.
    pub fn mirror(mut self, dir: impl AsRef<Path>) -> Self {
        self.config.streaming.mirror = Some(dir.as_ref().to_owned());
        self
    }

    /// Trusts the drive: what is read is not compared with its checksums.
    pub fn without_checksums(mut self) -> Self {
        self.config.streaming.checks_sums = false;
        self
    }

    /// Computes on a device instead of the CPU, where there is one.
    pub fn device(mut self, device: impl Into<Option<Device>>) -> Self {
        self.config.device = device.into().map(|Device(maker)| maker);
        self
    }

    /// Reads the weights. Experts that have room in memory may follow while the engine runs: see
    /// [`Engine::read_rest`].
    ///
    /// # Errors
    ///
    /// What is wrong with the weights, the options or the machine:
    /// [`Error::fault`](crate::Error::fault) tells them apart.
    pub fn load(self) -> Result<Engine> {
        self.load_watched(&mut |_| ControlFlow::Continue(()))
    }

    /// The same; `watch` hears how much of the weights was read, and may break it off.
    ///
    /// # Errors
    ///
    /// As [`EngineBuilder::load`], and [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn load_watched(
        self,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Engine> {
        Engine::load(self.model, &self.config, watch)
    }
}
