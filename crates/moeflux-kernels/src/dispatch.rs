//! Selection of a table of kernels.
//!
//! **Invariant:** a table is returned only if the CPU has its features.

use std::sync::OnceLock;

use crate::scalar;
use crate::table::KernelTable;

/// Returns the fastest table that this CPU can run.
#[must_use]
pub fn best() -> &'static KernelTable {
    static BEST: OnceLock<&'static KernelTable> = OnceLock::new();
    BEST.get_or_init(|| available().last().copied().unwrap_or(&scalar::TABLE))
}

/// Returns the table of this name, if this CPU can run it.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static KernelTable> {
    available().into_iter().find(|table| table.name == name)
}

/// Returns every table that this CPU can run, slowest first. Tests run all of them.
#[must_use]
pub fn available() -> Vec<&'static KernelTable> {
    let mut tables = vec![&scalar::TABLE];
    #[cfg(target_arch = "x86_64")]
    tables.extend(crate::x86_64::tables());
    #[cfg(target_arch = "aarch64")]
    tables.extend(crate::aarch64::tables());
    tables
}

/// Returns a table that emulates units a CPU may lack: slow, for tests.
#[cfg(any(test, feature = "emulated"))]
#[must_use]
pub fn emulated() -> Option<&'static KernelTable> {
    #[cfg(target_arch = "x86_64")]
    return crate::x86_64::emulated_amx();
    #[cfg(not(target_arch = "x86_64"))]
    None
}
