//! Kernels for x86-64.
//!
//! Detects by CPUID which tables this machine can run.

mod avx2;
mod avx512;

#[cfg(any(test, feature = "emulated"))]
pub(crate) use avx512::amx::emulated as emulated_amx;

use crate::table::KernelTable;

/// Returns the tables that this CPU can run, slowest first.
pub(crate) fn tables() -> impl Iterator<Item = &'static KernelTable> {
    let (avx2, avx512) =
        ([avx2::table(), avx2::vnni::table()], [avx512::table(), avx512::vnni::table()]);
    avx2.into_iter().chain(avx512).chain([avx512::amx::table()]).flatten()
}
