//! [`RmsNorm`] on the device.

use moeflux::error::Result;
use moeflux::ops::RmsNorm;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "rms_norm", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &RmsNorm, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("rms_norm"))
}
