//! How a backend is made: what is asked for, before there is a device.
//!
//! **Invariant:** plain data. What a device makes of it is for [`crate::device::Gpu`] to say.

use moeflux::provider::backend::Arithmetic;

/// What adapters need for the largest tile of a [`MatrixUnit`].
pub(crate) const MATRIX_WORKGROUP_BYTES: u32 = 36 << 10;

/// Where the experts lie that kernels see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tiers {
    /// In the device's memory.
    #[default]
    Device,
    /// Some in the device's memory, some in the host's.
    DeviceAndHost,
}

/// What multiplies matrices in half precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrices {
    /// The adapter's unit, if it has one.
    OfDevice,
    /// Plain kernels, for tests on adapters that have none: slower than without.
    Emulated,
}

/// How a backend is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuConfig {
    /// Whether ops that follow each other may run as one.
    pub fuses: bool,
    /// Whether kernels may use subgroups where the adapter has them.
    pub uses_subgroups: bool,
    /// [`Arithmetic::F16Staged`] where the adapter multiplies matrices in half precision and that
    /// is asked for; otherwise f32.
    pub arithmetic: Arithmetic,
    /// What multiplies what was staged.
    pub matrices: Matrices,
    /// Bytes of routed experts in the device's memory at most.
    pub expert_bytes_max: u64,
    /// Bytes of one buffer of them at most; by default as many as kernels see at once.
    pub expert_buffer_bytes_max: u64,
    /// Whether those for which `expert_bytes_max` has no room are kept in the host's memory, where
    /// kernels read them.
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

/// What multiplies tiles in half precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixUnit {
    /// Cooperative matrices of subgroups.
    Cooperative,
    /// Single invocations: for tests of all that is around the unit.
    Plain,
}
