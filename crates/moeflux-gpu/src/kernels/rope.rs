//! [`Rope`] on the device.

use moeflux::error::Result;
use moeflux::ops::Rope;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "rope", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &Rope, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("rope"))
}
