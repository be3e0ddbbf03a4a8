//! Where experts would be beside a GPU: on it, in memory that it reads, on the drive.
//!
//! **Invariant:** arithmetic alone; an expert is counted once.

use moeflux::provider::error::grouped;
use serde_json::{Value, json};

use crate::needs::Needs;
use crate::size::binary;

/// Experts by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiers {
    gpu_bytes: u64,
    on_gpu: u64,
    in_memory: u64,
    on_drive: u64,
}

impl Tiers {
    /// With a GPU that gives so many bytes, and memory for all of the process. What has no room in
    /// both is on the drive, and then the GPU holds copies of some that are in memory.
    pub(super) fn new(needs: &Needs, gpu_bytes: u64, memory_bytes: u64, context: u64) -> Self {
        let n_experts = needs.n_experts();
        let n_slots =
            |n_bytes: u64| n_bytes.checked_div(needs.slot_bytes).unwrap_or(0).min(n_experts);
        let fixed_bytes = needs.fixed_bytes(context);
        let on_gpu = n_slots(gpu_bytes.saturating_sub(fixed_bytes));
        let in_memory = n_experts - on_gpu;
        if n_slots(memory_bytes) >= in_memory {
            return Self { gpu_bytes, on_gpu, in_memory, on_drive: 0 };
        }
        let in_memory = n_slots(memory_bytes.saturating_sub(fixed_bytes));
        Self { gpu_bytes, on_gpu: 0, in_memory, on_drive: n_experts - in_memory }
    }

    /// For machines.
    pub(super) fn json(self) -> Value {
        json!({
            "gpu_bytes": self.gpu_bytes,
            "experts_on_gpu": self.on_gpu,
            "experts_in_memory": self.in_memory,
            "experts_on_drive": self.on_drive,
        })
    }

    /// For people.
    pub(super) fn lines(self) -> [String; 2] {
        [
            format!("with {} of a GPU", binary(self.gpu_bytes)),
            format!(
                "  experts   {} on it, {} in memory, {} on the drive",
                grouped(self.on_gpu),
                grouped(self.in_memory),
                grouped(self.on_drive)
            ),
        ]
    }
}
