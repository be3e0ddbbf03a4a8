//! Device maker for the engine: reserves memory for a model on a GPU and creates its backend.
//!
//! **Invariant:** a model's memory limit is known before any of its weights are read.

use std::sync::Arc;

use moeflux::provider::backend::{Arithmetic, Backend};
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::config::{DeviceMaker, DeviceParts};
use moeflux::provider::error::{Error, Remedy, Result};
use moeflux::provider::ids::MatrixId;
use moeflux_kernels::MatrixKind;

use crate::adapter::HostMemory;
use crate::backend::GpuBackend;
use crate::check::differences;
use crate::config::{GpuConfig, Matrices, Tiers};
use crate::device::Gpu;
use crate::device::staging::STAGING_BYTES_MAX;
use crate::kernels;
use crate::trial::matrices_agree;

/// Returns the part of `n_bytes` of GPU memory that a model may take. The rest is for staging
/// buffers.
#[must_use]
pub fn room_for_models(n_bytes: u64) -> u64 {
    n_bytes.saturating_sub(STAGING_BYTES_MAX)
}

/// A GPU that models can be opened on.
#[derive(Debug)]
pub struct GpuMaker {
    gpu: Arc<Gpu>,
    memory_bytes: Option<u64>,
    arithmetic: Arithmetic,
    sees_host: bool,
    maps_slots: bool,
    expert_buffer_bytes_max: u64,
    checks: CheckPolicy,
}

/// Whether a GPU is compared with the CPU before it runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckPolicy {
    None,
    BeforeEachModel,
}

impl GpuMaker {
    /// Uses this GPU, with at most `memory_bytes`; by default with the memory it can spare.
    #[must_use]
    pub fn new(gpu: Arc<Gpu>, memory_bytes: Option<u64>) -> Self {
        let sees_host = gpu.facts().host_memory == HostMemory::Seen;
        Self {
            gpu,
            memory_bytes,
            arithmetic: Arithmetic::F32,
            sees_host,
            maps_slots: true,
            expert_buffer_bytes_max: u64::MAX,
            checks: CheckPolicy::None,
        }
    }

    /// Compares the GPU with the CPU before each model, on random layers of the same kinds.
    #[must_use]
    pub fn checked(self) -> Self {
        Self { checks: CheckPolicy::BeforeEachModel, ..self }
    }

    /// Keeps experts that do not fit on the device in host memory, even if both memories are the
    /// same. For tests.
    #[must_use]
    pub fn seeing_host(self) -> Self {
        let sees_host = self.gpu.sees_host();
        Self { sees_host, ..self }
    }

    /// Copies streamed experts to the device, even if kernels could read them in the host's slots.
    /// For tests.
    #[must_use]
    pub fn copying_slots(self) -> Self {
        Self { maps_slots: false, ..self }
    }

    /// Lets products of many rows round weights and activations to half precision if that is faster
    /// on the GPU.
    #[must_use]
    pub fn staging_f16(self) -> Self {
        Self { arithmetic: Arithmetic::F16Staged, ..self }
    }

    /// Limits one buffer of experts to `n_bytes_max`, to test the path of large experts.
    #[must_use]
    pub fn with_expert_buffers(self, n_bytes_max: u64) -> Self {
        Self { expert_buffer_bytes_max: n_bytes_max, ..self }
    }

    /// Returns the device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the requested arithmetic, or f32 if the matrix unit fails its trial.
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
        let room_bytes = self.memory_bytes.or_else(|| self.gpu.facts().room_bytes());
        room_bytes.map(room_for_models)
    }

    fn sees_host(&self) -> bool {
        self.sees_host
    }

    /// Metal's working set is part of host memory. Other devices without their own memory leave
    /// half of it to the host.
    fn shares_memory(&self) -> bool {
        self.gpu.facts().api == "metal"
    }

    fn check(&self, blueprint: &Blueprint) -> Result<()> {
        if self.checks == CheckPolicy::None {
            return Ok(());
        }
        match differences(&self.gpu, blueprint)?.first() {
            None => Ok(()),
            Some(first) => Err(Error::Device {
                device: self.gpu.facts().name.clone(),
                problem: format!("its results differ from the CPU's ({first})"),
                remedy: Some(Remedy::Cpu),
            }),
        }
    }

    fn make(&self, parts: &DeviceParts<'_>) -> Result<Box<dyn Backend>> {
        check_kinds(parts)?;
        let mut config = GpuConfig { arithmetic: self.trusted()?, ..GpuConfig::default() };
        config.expert_buffer_bytes_max = self.expert_buffer_bytes_max;
        if let Some(expert_bytes) = parts.expert_bytes {
            config.expert_bytes_max = expert_bytes;
        }
        if parts.host_bytes > 0 {
            config.tiers = Tiers::DeviceAndHost;
        }
        let gpu = Arc::clone(&self.gpu);
        let (workspace, n_rows_max) = (&parts.plan.workspace, parts.n_rows_max);
        let mut backend = GpuBackend::new(gpu, parts.weights, workspace, n_rows_max, config)?;
        if let Some(slots) = parts.slots.filter(|_| self.maps_slots) {
            backend.map_slots(slots)?;
        }
        backend.prepare(parts.plan, parts.experts)?;
        self.gpu.save_pipelines();
        Ok(Box::new(backend))
    }
}

/// Refuses weights of a kind that no kernel reads.
fn check_kinds(parts: &DeviceParts<'_>) -> Result<()> {
    let (n_matrices, _) = parts.weights.counts();
    let resident = (0..n_matrices).map(|idx| parts.weights.matrix(MatrixId(idx)).layout().kind);
    let of_experts = parts
        .experts
        .iter()
        .flat_map(|(_, expert)| [expert.gate, expert.up, expert.down].map(|span| span.layout.kind));
    match first_cpu_only_kind(resident.chain(of_experts)) {
        None => Ok(()),
        Some(kind) => Err(Error::Unsupported(cpu_only_message(kind))),
    }
}

/// Returns the first kind of weights that no kernel reads. Such a model runs on the CPU only.
pub fn first_cpu_only_kind(mut kinds: impl Iterator<Item = MatrixKind>) -> Option<MatrixKind> {
    kinds.find(|kind| !kernels::reads(*kind))
}

/// Returns the error text for such a kind.
#[must_use]
pub fn cpu_only_message(kind: MatrixKind) -> String {
    format!("{kind} weights are supported only on the CPU")
}
