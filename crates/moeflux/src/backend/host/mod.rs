//! Buffers and states in host memory: what the reference and the CPU backend share.

mod buffers;
mod states;

pub(crate) use buffers::{Buffer, Buffers};
pub(crate) use states::{LayerMemory, Recurrent, States};
