//! [`Attention`] on the device.

use moeflux::error::Result;
use moeflux::ops::Attention;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "attention", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &Attention, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("attention"))
}
