//! Kernels for x86-64.
//!
//! Decides by CPUID which tables this machine can run.

mod avx2;
mod avx512;

use crate::dispatch::KernelTable;

/// The tables that this CPU can run, slowest first.
pub(crate) fn tables() -> impl Iterator<Item = &'static KernelTable> {
    let tables = [avx2::table(), avx2::vnni::table(), avx512::table(), avx512::vnni::table()];
    tables.into_iter().flatten()
}
