//! A model's tensors: which are bound to what, and the resident ones in memory.
//!
//! **Invariant:** every tensor of a checkpoint is bound once, skipped by name, or an error.

mod binder;
mod imagined;
mod load;
mod manifest;
mod resident;

pub use binder::{Binder, ExpertShape, Source};
pub use imagined::{Imagined, ImaginedCheckpoint, ImaginedRole, ImaginedTensor, QuantisedRows};
pub use load::{Progress, Watch, load};
pub use manifest::{
    BankPart, ExpertBank, Extent, KindCount, Manifest, MatrixSource, Origin, PartRole, Places,
    SkipReason, SkippedGroup, StoredVector, VectorSource,
};
pub use resident::{ExpertLayout, ExpertView, MatrixSpan, OwnedMatrix, Weights};
