//! [`SwiGlu`] on the device.

use moeflux::error::Result;
use moeflux::ops::SwiGlu;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "swiglu", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &SwiGlu, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("swiglu"))
}
