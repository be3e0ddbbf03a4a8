//! Buffers and states in host memory, shared by the reference and the CPU backend.

mod buffers;
mod states;

pub(crate) use buffers::{Buffer, Buffers};
pub(crate) use states::{HostLayerState, HostStates, RecurrentState};
