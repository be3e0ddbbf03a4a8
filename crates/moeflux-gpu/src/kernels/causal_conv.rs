//! [`CausalConv`] on the device.

use moeflux::error::Result;
use moeflux::ops::CausalConv;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "causal_conv", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &CausalConv, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("causal_conv"))
}
