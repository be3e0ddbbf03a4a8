//! [`ExpertFfn`] on the device.

use moeflux::error::Result;
use moeflux::ops::ExpertFfn;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "expert_ffn", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &ExpertFfn, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("expert_ffn"))
}
