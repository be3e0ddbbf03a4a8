//! A model's tensors: how they are bound, and the resident ones in memory.
//!
//! **Invariant:** every tensor of a checkpoint is bound once, skipped by name, or an error.

mod found;
mod files;
mod gguf_types;
mod imagined;
mod resident;
mod manifest;
mod samples;
mod mirror;
mod fill;
mod leftover;
mod load;
mod packed;
mod table;
mod stored;
mod bank;
mod share;
mod binder;

pub(crate) use bank::ExpertShape;
pub(crate) use binder::{Binder, TensorSource};
pub(crate) use files::{CheckpointFiles, ProgressCallback, ProgressMeter, check_room};
pub use files::{FiniteFormat, PageCaching, Progress};
pub(crate) use fill::{FiniteCheck, ReadSegment, fill_here};
pub(crate) use found::dtype_of;
pub use found::{FileExtent, PartNames, block_kind};
pub use gguf_types::GgufTypes;
pub(crate) use imagined::SyntheticFormat;
pub(crate) use imagined::params_of_mlx;
pub use imagined::{
    QuantisedRows, SyntheticCheckpoint, SyntheticKind, SyntheticRole, SyntheticTensor,
};
pub(crate) use load::expert_samples;
pub use load::load;
pub use manifest::{
    BankPart, ExpertBank, ExpertOffsets, KindCount, Manifest, ManifestOrigin, MatrixSource,
    PartRole, Records, SkipReason, SkippedGroup, StoredVector, ValueSelection, ValueTransform,
    VectorSource,
};
pub(crate) use mirror::Mirror;
pub(crate) use packed::described;
pub use resident::{ExpertLayout, ExpertView, MatrixSpan, OwnedMatrix, RowStride, Weights};
pub(crate) use samples::{hash_of, sampled};
pub use share::{OwnRows, Shares};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod native_tests;
#[cfg(test)]
pub(crate) mod tests_support;
