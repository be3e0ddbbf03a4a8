//! [`Route`] on the device.

use moeflux::error::Result;
use moeflux::ops::Route;

use super::{Kernel, unsupported};
use crate::compiler::Compiler;

pub(super) const KERNEL: Kernel =
    Kernel { op: "route", is_done: false, shaders: Vec::new, params: Vec::new };

pub(super) fn compile(_: &Route, _: &mut Compiler<'_>) -> Result<()> {
    Err(unsupported("route"))
}
