//! [`DeltaGates`] on the device.

use moeflux::error::Result;
use moeflux::ops::DeltaGates;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "delta_gates", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &DeltaGates, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("delta_gates"))
}
