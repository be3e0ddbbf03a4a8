//! Kernels for x86-64.
//!
//! Decides by CPUID which tables this machine can run.

mod avx2;
mod avx512;

use crate::dispatch::KernelTable;

/// The tables that this CPU can run, slowest first.
pub(crate) fn tables() -> impl Iterator<Item = &'static KernelTable> {
    avx2::table().into_iter().chain(avx512::table())
}
