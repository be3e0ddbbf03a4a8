//! The baseline instruction set: every other table is tested against this one.
//!
//! Slow on purpose where the hardware has no fused multiply-add: the library's is exact.

use crate::dispatch::kernel_table;
use crate::lanes::Portable;

kernel_table!("scalar", Portable);
