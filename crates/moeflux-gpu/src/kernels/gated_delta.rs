//! [`GatedDelta`] on the device.

use moeflux::error::Result;
use moeflux::ops::GatedDelta;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "gated_delta", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &GatedDelta, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("gated_delta"))
}
