//! [`L2Norm`] on the device.

use moeflux::error::Result;
use moeflux::ops::L2Norm;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "l2_norm", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &L2Norm, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("l2_norm"))
}
