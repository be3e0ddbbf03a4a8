//! Kernels for aarch64.
//!
//! NEON is part of the architecture's baseline, but is still detected.

mod neon;

use crate::table::KernelTable;

/// Returns the tables that this CPU can run, slowest first.
pub(crate) fn tables() -> impl Iterator<Item = &'static KernelTable> {
    [neon::table(), neon::dotprod::table(), neon::i8mm::table()].into_iter().flatten()
}
