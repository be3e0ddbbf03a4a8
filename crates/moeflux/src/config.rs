//! How an engine is opened: what computes, with how much memory, how the rest is read.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use moeflux_kernels::KernelTable;

use crate::backend::{Arithmetic, Backend};
use crate::blueprint::Blueprint;
use crate::error::Result;
use crate::experts::stream::{Drives, ReadFor, SeenSlots};
use crate::families::ModelPlan;
use crate::format::Checkpoint;
use crate::ids::LayerIdx;
use crate::ranks::RankGroup;
use crate::weights::{ExpertLayout, Weights};

/// Rows of one step unless told otherwise: enough that reading a weight is cheap beside using it.
pub const N_ROWS_DEFAULT: usize = 512;

/// Tokens of all sessions together for which room is kept unless told otherwise.
pub const CONTEXT_DEFAULT: usize = 4096;

/// More rows make the workspace large and nothing faster.
pub const N_ROWS_MAX: usize = 1 << 16;

/// Threads that compute unless told otherwise: one per physical performance core.
#[must_use]
pub fn n_threads_default() -> NonZeroUsize {
    moeflux_threads::n_compute_threads()
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Scalar and slow: what the others are compared with.
    Reference,
    /// Threads and vector instructions.
    Cpu,
}

/// Makes a backend on a device that the engine knows nothing of.
pub trait DeviceMaker: fmt::Debug + Send + Sync {
    /// Bytes that a model may take on the device, where anybody can say. One that fits is computed
    /// there whole, with all its experts.
    fn room_bytes(&self) -> Option<u64>;

    /// Whether kernels read experts where they lie in the host's memory, so that those for which
    /// the device has no room stay there.
    fn sees_host(&self) -> bool {
        false
    }

    /// Whether the device's memory is the host's: a byte of one is a byte less of the other.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Whether the device computes layers of these kinds as a CPU does: asked before any weight is
    /// read.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Device`].
    fn check(&self, blueprint: &Blueprint) -> Result<()> {
        let _ = blueprint;
        Ok(())
    }

    /// A backend with these weights.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Device`], [`crate::error::Error::NoRoom`].
    fn make(&self, parts: &DeviceParts<'_>) -> Result<Box<dyn Backend>>;
}

/// A device that computes in the place of the CPU: `moeflux-gpu` makes one.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Arc<dyn DeviceMaker>);

impl From<Arc<dyn DeviceMaker>> for Device {
    fn from(maker: Arc<dyn DeviceMaker>) -> Self {
        Self(maker)
    }
}

/// What a backend on a device is made of.
#[derive(Clone, Copy, Debug)]
pub struct DeviceParts<'a> {
    /// Copied to the device.
    pub weights: &'a Weights,
    /// All that will be run.
    pub plan: &'a ModelPlan,
    /// Rows of a step; the device may take fewer.
    pub n_rows_max: usize,
    /// How experts of each layer that has some lie in a record.
    pub experts: &'a [(LayerIdx, ExpertLayout)],
    /// Bytes of routed experts that there is room for on the device; `None`: nobody can say.
    pub expert_bytes: Option<u64>,
    /// Bytes of routed experts that will be kept beside those, in the host's memory.
    pub far_bytes: u64,
    /// How slots look from which experts will be computed, where they are streamed.
    pub slots: Option<&'a SeenSlots>,
}

/// What an engine may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Budget {
    /// What the machine can spare.
    #[default]
    Auto,
    /// So many bytes, of the whole process.
    Bytes(u64),
}

/// How experts that are not in memory are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadWay {
    /// Whichever a measurement of a moment finds faster.
    Measured,
    /// Past the page cache, where the file system can do that.
    #[default]
    Direct,
    /// Through the page cache, which may keep what the engine's own pool does not.
    PageCache,
}

/// Opens the files of a model as drives, in the place of the engine: simulated ones in tests.
pub trait DriveMaker: fmt::Debug + Send + Sync {
    /// The drives that experts are read from.
    ///
    /// # Errors
    ///
    /// When a file cannot be opened.
    fn open(&self, checkpoint: &Checkpoint, read_for: ReadFor) -> Result<Drives>;
}

/// How much memory there is, and how the rest is read.
#[derive(Clone, Debug)]
pub struct StreamingConfig {
    /// Of the whole process.
    pub budget: Budget,
    /// Of these, what the program keeps for its work beside the engine: texts, requests, answers.
    pub beside_bytes: u64,
    /// Tokens of all sessions together for which room is kept.
    pub context: usize,
    /// How experts are read.
    pub way: ReadWay,
    /// What opens the files that experts are read from; `None`: the engine does, as `way` says.
    pub drives: Option<Arc<dyn DriveMaker>>,
    /// A folder on another drive with the same files.
    pub mirror: Option<PathBuf>,
    /// Whether experts may be read before they are asked for.
    pub looks_ahead: bool,
    /// Whether all that is read of weights is compared with its checksum, each time, where there
    /// are checksums: in packed folders, and where `moeflux doctor --deep` has written some.
    pub checks_sums: bool,
    /// At most so many experts in memory, whatever the budget.
    pub n_slots_max: Option<usize>,
}

impl Default for StreamingConfig {
    fn default() -> Self {
        Self {
            budget: Budget::Auto,
            beside_bytes: 0,
            context: 0,
            way: ReadWay::default(),
            drives: None,
            mirror: None,
            looks_ahead: true,
            checks_sums: true,
            n_slots_max: None,
        }
    }
}

/// How an engine is opened.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// What computes.
    pub backend: BackendKind,
    /// What computes instead of `backend`, if there is something.
    pub device: Option<Arc<dyn DeviceMaker>>,
    /// How the CPU backend computes; the reference always takes f32.
    pub arithmetic: Arithmetic,
    /// Kernels of the CPU backend: by default the fastest that this CPU has. All give the same
    /// bits.
    pub kernels: Option<&'static KernelTable>,
    /// Threads that compute.
    pub n_threads: NonZeroUsize,
    /// Rows computed in one step, at most [`N_ROWS_MAX`]. By default [`N_ROWS_DEFAULT`]; where
    /// experts are streamed a longer prompt borrows memory of slots for longer steps, since each
    /// expert is read once per step.
    pub n_rows_max: Option<NonZeroUsize>,
    /// How much memory there is, and how the rest is read.
    pub streaming: StreamingConfig,
    /// Where this is one of several ranks that run the model together.
    pub ranks: Option<RankGroup>,
}

impl Default for EngineConfig {
    /// As the command `moeflux` has it without options.
    fn default() -> Self {
        let streaming = StreamingConfig {
            context: CONTEXT_DEFAULT,
            way: ReadWay::Measured,
            ..StreamingConfig::default()
        };
        Self {
            backend: BackendKind::Cpu,
            device: None,
            arithmetic: Arithmetic::Int8,
            kernels: None,
            n_threads: n_threads_default(),
            n_rows_max: None,
            streaming,
            ranks: None,
        }
    }
}
