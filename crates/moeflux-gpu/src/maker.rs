//! Lets the engine compute on a GPU: room for a model there, and its backend.
//!
//! **Invariant:** what a model may take is said before anything of it is read.

use std::sync::Arc;

use moeflux::backend::{Arithmetic, Backend};
use moeflux::config::{DeviceMaker, DeviceParts};
use moeflux::error::Result;

use crate::adapter::AdapterKind;
use crate::backend::{GpuBackend, GpuConfig, Matrices};
use crate::device::Gpu;
use crate::trial::matrices_agree;

/// What is left to others of a card's memory, and of memory that the CPU shares: one part of so
/// many.
const ROOM_SHARE_OF_CARD: u64 = 16;
const ROOM_SHARE_OF_SHARED: u64 = 2;

/// A GPU for models.
#[derive(Debug)]
pub struct GpuMaker {
    gpu: Arc<Gpu>,
    memory_bytes: Option<u64>,
    arithmetic: Arithmetic,
}

impl GpuMaker {
    /// On this GPU, with at most so many bytes; by default what it can spare.
    #[must_use]
    pub fn new(gpu: Arc<Gpu>, memory_bytes: Option<u64>) -> Self {
        Self { gpu, memory_bytes, arithmetic: Arithmetic::F32 }
    }

    /// Lets products of many rows round weights and activations to half precision, where the GPU
    /// is faster so.
    #[must_use]
    pub fn staging_f16(self) -> Self {
        Self { arithmetic: Arithmetic::F16Staged, ..self }
    }

    /// The device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The arithmetic that was asked for, or f32 where what it needs does not compute as it should.
    fn trusted(&self) -> Result<Arithmetic> {
        let has_unit = self.gpu.matrix_unit().is_some();
        let is_off = self.arithmetic == Arithmetic::F16Staged
            && has_unit
            && !self.gpu.trusts_matrices(&|| matrices_agree(&self.gpu, Matrices::OfDevice))?;
        Ok(if is_off { Arithmetic::F32 } else { self.arithmetic })
    }
}

impl DeviceMaker for GpuMaker {
    fn room_bytes(&self) -> Option<u64> {
        let facts = self.gpu.facts();
        let share = match facts.kind {
            AdapterKind::Discrete | AdapterKind::Virtual => ROOM_SHARE_OF_CARD,
            _ => ROOM_SHARE_OF_SHARED,
        };
        let spare = |n_bytes: u64| n_bytes - n_bytes / share;
        self.memory_bytes.or_else(|| facts.memory_bytes.map(spare))
    }

    fn make(&self, parts: &DeviceParts<'_>) -> Result<Box<dyn Backend>> {
        let mut config = GpuConfig { arithmetic: self.trusted()?, ..GpuConfig::default() };
        if let Some(expert_bytes_max) = parts.expert_bytes {
            config.expert_bytes_max = expert_bytes_max;
        }
        let gpu = Arc::clone(&self.gpu);
        let (workspace, n_rows_max) = (&parts.plan.workspace, parts.n_rows_max);
        let mut backend = GpuBackend::new(gpu, parts.weights, workspace, n_rows_max, config)?;
        backend.prepare(parts.plan, parts.experts)?;
        Ok(Box::new(backend))
    }
}
