//! [`MlaAttention`] on the device.

use moeflux::error::Result;
use moeflux::ops::MlaAttention;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "mla_attention", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &MlaAttention, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("mla_attention"))
}
