//! [`Combine`] on the device.

use moeflux::error::Result;
use moeflux::ops::Combine;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "combine", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &Combine, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("combine"))
}
