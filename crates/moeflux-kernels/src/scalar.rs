//! The baseline instruction set: every other table is tested against this one.
//!
//! Slow by design if the hardware has no fused multiply-add: `lanes/fused.rs` still rounds once.

use crate::lanes::Portable;
use crate::table::kernel_table;

kernel_table!("scalar", Portable);
