//! [`HeadMatMul`] on the device.

use moeflux::error::Result;
use moeflux::ops::HeadMatMul;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "head_matmul", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &HeadMatMul, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("head_matmul"))
}
