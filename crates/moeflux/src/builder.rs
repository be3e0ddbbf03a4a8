//! How a program opens an engine: the folder, and what should differ from the command's defaults.
//!
//! Fills an [`EngineConfig`] and knows nothing of what is made of it.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::Arithmetic;
use crate::config::{
    BackendKind, Budget, CONTEXT_DEFAULT, DeviceMaker, EngineConfig, ReadWay, StreamingConfig,
    n_threads_default,
};
use crate::engine::Engine;
use crate::error::Result;
use crate::experts::stream::{Drives, ReadFor};
use crate::format::Checkpoint;
use crate::weights::Progress;

/// Opens an [`Engine`]. What is not set is as in the command `moeflux`.
///
/// ```no_run
/// let engine = moeflux::Engine::builder("models/qwen3").memory(24 << 30).context(8192).open()?;
/// # Ok::<(), moeflux::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is read before `open`"]
pub struct EngineBuilder {
    dir: PathBuf,
    config: EngineConfig,
    #[cfg(feature = "text")]
    tokenizer: Option<PathBuf>,
}

impl Engine {
    /// Begins to open the model in `dir`: a folder with `config.json` and `*.safetensors`.
    pub fn builder(dir: impl AsRef<Path>) -> EngineBuilder {
        let config = EngineConfig {
            ranks: None,
            backend: BackendKind::Cpu,
            device: None,
            arithmetic: Arithmetic::Int8,
            kernels: None,
            n_threads: n_threads_default(),
            n_rows_max: None,
            streaming: StreamingConfig {
                context: CONTEXT_DEFAULT,
                way: ReadWay::Measured,
                ..StreamingConfig::default()
            },
        };
        EngineBuilder {
            dir: dir.as_ref().to_owned(),
            config,
            #[cfg(feature = "text")]
            tokenizer: None,
        }
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

    /// Computes on a device instead of the CPU, as `moeflux-gpu` makes one.
    pub fn device(mut self, device: Arc<dyn DeviceMaker>) -> Self {
        self.config.device = Some(device);
        self
    }

    /// A `tokenizer.json` of any name, which replaces the model's own tokenizer in
    /// [`Engine::text`]: for a GGUF file whose tokenizer is not known.
    #[cfg(feature = "text")]
    pub fn tokenizer(mut self, file: impl AsRef<Path>) -> Self {
        self.tokenizer = Some(file.as_ref().to_owned());
        self
    }

    /// Changes what has no method of its own. No promise of stability: see [`crate::provider`].
    pub fn configure(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// Reads the model. Experts that have room in memory may follow while it runs: see
    /// [`Engine::read_rest`].
    ///
    /// # Errors
    ///
    /// What is wrong with the checkpoint, the options or the machine:
    /// [`Error::fault`](crate::Error::fault) tells them apart.
    pub fn open(&self) -> Result<Engine> {
        self.open_watched(&mut |_| ControlFlow::Continue(()))
    }

    /// The same; `watch` hears how much of the weights was read, and may break it off.
    ///
    /// # Errors
    ///
    /// As [`EngineBuilder::open`], and [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn open_watched(
        &self,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Engine> {
        Engine::open(&self.dir, &self.config, watch).map(|engine| self.finished(engine))
    }

    /// The same; experts are read from `drives`. No promise of stability: see [`crate::provider`].
    ///
    /// # Errors
    ///
    /// As [`EngineBuilder::open_watched`].
    pub fn open_on(
        &self,
        drives: &mut dyn FnMut(&Checkpoint, ReadFor) -> Result<Drives>,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Engine> {
        Engine::open_on(&self.dir, &self.config, drives, watch).map(|engine| self.finished(engine))
    }

    #[cfg(feature = "text")]
    fn finished(&self, engine: Engine) -> Engine {
        engine.with_tokenizer(self.tokenizer.clone())
    }

    #[cfg(not(feature = "text"))]
    fn finished(&self, engine: Engine) -> Engine {
        engine
    }
}
