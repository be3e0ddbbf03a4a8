//! Configuration of a backend, chosen before a device is opened.
//!
//! **Invariant:** plain data. [`crate::device::Gpu`] decides what a device can do with it.

use moeflux::provider::backend::Arithmetic;

/// Workgroup memory that an adapter needs for the largest tile of a [`MatrixUnit`].
pub(crate) const MATRIX_WORKGROUP_BYTES: u32 = 36 << 10;

/// Memories that hold the experts that kernels read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tiers {
    /// Device memory only.
    #[default]
    Device,
    /// Some in device memory, some in host memory.
    DeviceAndHost,
}

/// Implementation of half-precision matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrices {
    /// The adapter's matrix unit, if it has one.
    OfDevice,
    /// Plain kernels, for tests on adapters without a unit. Slower than f32 kernels.
    Emulated,
}

/// Configuration of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuConfig {
    /// Whether consecutive ops may be fused.
    pub fuses: bool,
    /// Whether kernels may use subgroups if the adapter has them.
    pub uses_subgroups: bool,
    /// [`Arithmetic::F16Staged`] if half precision is requested and the adapter can multiply such
    /// matrices; otherwise f32.
    pub arithmetic: Arithmetic,
    /// Implementation of the products of staged matrices.
    pub matrices: Matrices,
    /// Upper bound on expert bytes in device memory.
    pub expert_bytes_max: u64,
    /// Upper bound on the bytes of one expert buffer; by default the largest binding.
    pub expert_buffer_bytes_max: u64,
    /// Whether experts beyond `expert_bytes_max` are kept in host memory, where kernels read them.
    pub tiers: Tiers,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            fuses: true,
            uses_subgroups: true,
            arithmetic: Arithmetic::F32,
            matrices: Matrices::OfDevice,
            expert_bytes_max: 1 << 30,
            expert_buffer_bytes_max: u64::MAX,
            tiers: Tiers::Device,
        }
    }
}

/// Unit that multiplies tiles in half precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixUnit {
    /// Cooperative matrices of subgroups.
    Cooperative,
    /// Single invocations, to test the code around the unit.
    Plain,
}
