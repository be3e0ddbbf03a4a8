//! A model's tensors: how they are bound, and the resident ones in memory.
//!
//! * `tensors` holds what a source is asked for and what is found there, `files` opens its files,
//!   and `synthetic` is a source without files. `manifest` says which bytes make up which matrix,
//!   vector and expert, and `resident` how these lie in memory.
//! * `row_table` says where the rows of a table are that is never loaded.
//! * `samples` chooses bytes to compare, and `mirror` compares a second folder with the first.
//! * `load` reads resident tensors, `shares` divides the rows of experts over several machines, and
//!   `bind` makes the manifest.
//!
//! **Invariant:** every tensor of a checkpoint is bound once, skipped by name, or an error.

mod tensors;
mod files;
mod synthetic;
mod row_table;
mod resident;
mod manifest;
mod samples;
mod mirror;
mod load;
mod shares;
mod bind;

pub(crate) use bind::bank::ExpertShape;
pub(crate) use bind::packed::described;
pub(crate) use bind::{Binder, TensorSource};
pub(crate) use files::{CheckpointFiles, ProgressCallback, ProgressMeter, check_room};
pub use files::{FiniteFormat, PageCaching, Progress};
pub(crate) use load::fill::{FiniteCheck, ReadSegment, fill_here};
pub use load::load;
pub(crate) use load::{expert_samples, table_samples};
pub use manifest::{
    BankPart, ExpertBank, ExpertOffsets, KindCount, KnownIntegers, Manifest, ManifestOrigin,
    MatrixSource, PartRole, Records, SkipReason, SkippedGroup, StoredVector, ValueSelection,
    ValueTransform, VectorSource,
};
pub(crate) use mirror::Mirror;
pub use resident::{ExpertLayout, ExpertView, MatrixSpan, OwnedMatrix, RowStride, Weights};
pub use row_table::{BlockShape, RowBlocks, RowPlace, RowRun, RowStorage, RowTable, TableValues};
pub(crate) use samples::{hash_of, sampled};
pub use shares::{OwnRows, Shares};
pub(crate) use synthetic::SyntheticFormat;
pub use synthetic::gguf_types::GgufTypes;
pub(crate) use synthetic::params_of_mlx;
pub use synthetic::{
    QuantisedRows, SyntheticCheckpoint, SyntheticKind, SyntheticRole, SyntheticTensor,
};
pub(crate) use tensors::dtype_of;
pub use tensors::{FileExtent, PartNames, block_kind};

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod tests_support;
