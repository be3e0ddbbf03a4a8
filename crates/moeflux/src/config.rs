//! Configuration of an engine: what computes, how much memory it may use, how experts are read.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use moeflux_kernels::KernelTable;

use crate::backend::{Arithmetic, Backend};
use crate::blueprint::Blueprint;
use crate::error::Result;
use crate::experts::stream::{Drives, MappedSlots, ReadPurpose};
use crate::families::ModelPlan;
use crate::format::Checkpoint;
use crate::ids::LayerIdx;
use crate::ranks::RankGroup;
use crate::weights::{ExpertLayout, Weights};

/// Default number of rows of a step: enough to make reading a weight cheap compared with using it.
pub const N_ROWS_DEFAULT: usize = 512;

/// Default number of tokens, over all sessions, for which memory is reserved.
pub const CONTEXT_DEFAULT: usize = 4096;

/// Upper bound on the rows of a step. More rows enlarge the workspace without any gain in speed.
pub const N_ROWS_MAX: usize = 1 << 16;

/// Returns the default number of compute threads: one per physical performance core.
#[must_use]
pub fn n_threads_default() -> NonZeroUsize {
    moeflux_threads::n_compute_threads()
}

/// The backend that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Scalar and slow; the reference for the other backends.
    Reference,
    /// Threads and vector instructions.
    Cpu,
}

/// Creates a backend on a device that the engine knows nothing about.
pub trait DeviceMaker: fmt::Debug + Send + Sync {
    /// Returns how many bytes a model may take on the device, if that is known. A model that fits
    /// runs there completely, with all its experts.
    fn room_bytes(&self) -> Option<u64>;

    /// Returns whether kernels can read experts in host memory. If so, experts that do not fit on
    /// the device stay there.
    fn sees_host(&self) -> bool {
        false
    }

    /// Returns whether device and host share one memory, so that each byte used by one is lost to
    /// the other.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Checks that the device computes the layers of this model as a CPU does. Called before any
    /// weight is read.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Device`] if it does not.
    fn check(&self, blueprint: &Blueprint) -> Result<()> {
        let _ = blueprint;
        Ok(())
    }

    /// Creates a backend with these weights.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Device`] if the device fails; [`crate::error::Error::NoRoom`] if
    /// memory is short.
    fn make(&self, parts: &DeviceParts<'_>) -> Result<Box<dyn Backend>>;
}

/// A device that computes instead of the CPU; `moeflux-gpu` provides one.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Arc<dyn DeviceMaker>);

impl From<Arc<dyn DeviceMaker>> for Device {
    fn from(maker: Arc<dyn DeviceMaker>) -> Self {
        Self(maker)
    }
}

/// The parts that a backend on a device is created from.
#[derive(Clone, Copy, Debug)]
pub struct DeviceParts<'a> {
    /// Resident weights, to be copied to the device.
    pub weights: &'a Weights,
    /// Everything that will be run.
    pub plan: &'a ModelPlan,
    /// Maximum rows of a step; the device may choose fewer.
    pub n_rows_max: usize,
    /// Layout of an expert's record, for each layer with routed experts.
    pub experts: &'a [(LayerIdx, ExpertLayout)],
    /// Bytes on the device that routed experts may take; `None` if unknown.
    pub expert_bytes: Option<u64>,
    /// Bytes of further routed experts that will stay in host memory.
    pub host_bytes: u64,
    /// Layout of the slots with the experts to compute, where experts are streamed.
    pub slots: Option<&'a MappedSlots>,
}

/// Memory that an engine may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Budget {
    /// As much as the machine can spare.
    #[default]
    Auto,
    /// This many bytes for the whole process.
    Bytes(u64),
}

/// How to read experts that are not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadWay {
    /// The faster way, according to a short measurement.
    Measured,
    /// Bypassing the page cache, where the file system supports that.
    #[default]
    Direct,
    /// Through the page cache, which may keep experts that the engine's own pool does not.
    PageCache,
}

/// Opens the files of a model as drives, in place of the engine: tests simulate drives.
pub trait DriveMaker: fmt::Debug + Send + Sync {
    /// Opens the drives that experts are read from.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened.
    fn open(&self, checkpoint: &Checkpoint, read_for: ReadPurpose) -> Result<Drives>;
}

/// How much memory there is, and how experts that do not fit are read.
#[derive(Clone, Debug)]
pub struct StreamingConfig {
    /// Memory of the whole process.
    pub budget: Budget,
    /// The part of it that the program keeps for its own work: texts, requests, answers.
    pub beside_bytes: u64,
    /// Tokens, over all sessions, for which memory is reserved.
    pub context: usize,
    /// How experts are read.
    pub way: ReadWay,
    /// What opens the files that experts are read from; `None` if the engine does, in the given
    /// `way`.
    pub drives: Option<Arc<dyn DriveMaker>>,
    /// A folder on another drive that holds the same files.
    pub mirror: Option<PathBuf>,
    /// Whether experts may be prefetched.
    pub prefetches: bool,
    /// Whether everything read from the weights is verified each time, where there are checksums:
    /// in packed folders, and where `moeflux doctor --deep` has written some.
    pub checks_sums: bool,
    /// Upper bound on the experts in memory, whatever the budget.
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
            prefetches: true,
            checks_sums: true,
            n_slots_max: None,
        }
    }
}

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The backend that computes.
    pub backend: BackendKind,
    /// The device that computes instead of `backend`, if given.
    pub device: Option<Arc<dyn DeviceMaker>>,
    /// Arithmetic of the CPU backend; the reference always uses f32.
    pub arithmetic: Arithmetic,
    /// Kernels of the CPU backend; by default the fastest that this CPU supports. All compute the
    /// same bits.
    pub kernels: Option<&'static KernelTable>,
    /// Number of compute threads.
    pub n_threads: NonZeroUsize,
    /// Rows computed in one step, at most [`N_ROWS_MAX`]. The default is [`N_ROWS_DEFAULT`]. Where
    /// experts are streamed, a longer prompt then borrows memory from slots for longer steps,
    /// because each expert is read once per step.
    pub n_rows_max: Option<NonZeroUsize>,
    /// How much memory there is, and how experts that do not fit are read.
    pub streaming: StreamingConfig,
    /// The ranks that run the model together, if there are several.
    pub ranks: Option<RankGroup>,
}

impl Default for EngineConfig {
    /// The configuration of the command `moeflux` without options.
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
