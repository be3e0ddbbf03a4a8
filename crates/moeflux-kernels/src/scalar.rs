//! The baseline instruction set: every other table is tested against this one.
//!
//! Slow on purpose where the hardware has no fused multiply-add: `fused.rs` rounds once all the
//! same.

use crate::lanes::Portable;
use crate::table::kernel_table;

kernel_table!("scalar", Portable);
