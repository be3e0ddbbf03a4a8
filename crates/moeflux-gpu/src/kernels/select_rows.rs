//! [`SelectRows`] on the device.

use moeflux::error::Result;
use moeflux::ops::SelectRows;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "select_rows", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &SelectRows, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("select_rows"))
}
