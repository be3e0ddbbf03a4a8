//! I/O in bytes: aligned memory, positional reads, slots, drives, and the loader that fills slots
//! from drives.
//!
//! **Invariant:** handles files, offsets and lengths in bytes; never tensors or experts. Text from
//! outside is also escaped here ([`OneLine`]), because every crate that reads files needs that for
//! its messages.
//!
//! [`SlotMemory`] owns the memory. A [`BlockRead`] is a drive: `UringDrive` (Linux),
//! [`ThreadsDrive`] (everywhere) or [`SimulatedDrive`] (tests). A [`Loader`] splits jobs ("fill
//! this slot with these parts of these files") into reads of a drive, and handles their failures
//! until each job ends.
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! mix          pseudo-random numbers from their inputs
//! one_line     text from outside, in one line of a message
//! clock        clocks as parameters
//! memory/      aligned, slots/, and freed: what the allocator keeps
//! system/      memory, processor and disk of each system; mounts; control_group
//! files/       identity: opened, and unchanged; read_file; direct: past the page cache;
//!              overlapped: reads on Windows
//! drives/      block: the interface; threads, uring/ (Linux), simulated
//! loader/      jobs to reads of a drive
//!   error, job               what is asked for, and how it ends
//!   lane                     a drive: its load, speed and reliability
//!   index_pool               values at indices that are reused
//!   settle                   completions, retries, the other drive
//! measure      how fast a drive reads
//! probe        how fast each way reads given files
//! ```
#![allow(unsafe_code, reason = "aligned allocation; every block is documented and tested")]

mod mix;
mod one_line;
mod clock;
mod memory;
mod system;
mod files;
mod drives;
mod loader;
mod measure;
mod probe;

pub use clock::{Clock, RealClock, VirtualClock};
pub use drives::block::{BlockRead, FileIdx, ReadCompletion, ReadOutcome, ReadRequest, Wait};
pub use drives::simulated::{
    DriveSpeed, FaultSwitch, Faults, FileContents, NthFault, SimulatedDrive, SimulatedFile,
};
pub use drives::threads::{N_THREADS_MAX, ThreadsDrive};
#[cfg(target_os = "linux")]
pub use drives::uring::{DEPTH_MAX, UringDrive, UringRefused};
pub use files::direct::{BLOCK_BYTES, Caching, DriveFile, FileFacts};
pub use files::identity::{FileChange, FileIdentity, create_file, rename};
pub use files::read_file::{ReadError, ReadFile};
pub use loader::{
    DriveChoice, FilePart, FinishedLoad, LaneCounts, LoadError, LoadId, LoadJob, LoadOutcome,
    LoadPriority, Loader, LoaderCounts, LoaderSettings, N_FAILURES_BEFORE_MIRROR, N_FAILURES_MAX,
    N_INTERRUPTIONS_MAX, N_JOBS_USUAL, N_PARTS_MAX, SlotLayout, lay_out,
};
pub use measure::{ReadLoad, ReadMeasurement, ScatteredOffsets, measure};
pub use memory::aligned::AlignedBytes;
pub use memory::freed::{FREED_BYTES_KEPT, give_back_freed_memory, trim_freed_memory};
pub use memory::slots::{
    Filling, Piece, SLOT_ALIGN, Slab, SlabIdx, SlotIdx, SlotMemory, SlotState,
};
pub use one_line::{MESSAGE_CHARS_MAX, NAME_CHARS_MAX, OneLine, is_harmful};
pub use probe::{Probe, ProbeResult};
pub use system::control_group::{ControlGroup, tightest_control_group};
pub use system::mounts::{Mount, mount_of, mounts};
pub use system::{
    MemoryPressure, MemoryWatch, available_memory_bytes, free_disk_bytes, process_memory_bytes,
    process_peak_bytes, processor_name, total_memory_bytes,
};
