//! The GPU backend of moeflux: the engine's plans on Metal, Vulkan and DX12, through wgpu.
//!
//! [`adapter`] lists what there is, [`device`] opens one, [`backend`] runs plans on it. A plan is
//! compiled once into [`step`]s by the [`kernels`] of its ops, with what [`compiler`] tells them
//! about where things lie; running it records a dispatch per step. [`shader`] puts the text of
//! kernels together, [`device`] keeps what the driver makes of it, [`params`] are what it gets.
//!
//! [`maker`] is what the engine opens models with; [`trial`] tells it what not to trust.
//!
//! Weights, activations and states live in a few large buffers and are addressed by offsets, so
//! that nothing is bound anew but arenas of weights and states of layers.

mod seen;
pub mod adapter;
mod params;
pub mod config;
mod shader;
pub mod device;
mod memory;
mod step;
mod compiler;
pub mod kernels;
mod experts;
pub mod backend;
mod trial;
pub mod maker;
