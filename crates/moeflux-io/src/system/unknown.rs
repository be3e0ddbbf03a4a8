//! Systems without any query.

use super::{MemoryPressure, ProcessMemory};

pub(super) fn total_memory_bytes() -> Option<u64> {
    None
}

pub(super) fn available_memory_bytes() -> Option<u64> {
    None
}

pub(super) fn process_memory_bytes() -> Option<ProcessMemory> {
    None
}

pub(super) fn processor_name() -> Option<String> {
    None
}

/// Reports nothing.
#[derive(Debug)]
pub(super) struct PressureWatch;

impl PressureWatch {
    pub(super) fn open() -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "other systems store handles in it")]
    pub(super) fn sample(&mut self) -> MemoryPressure {
        MemoryPressure::default()
    }
}
