//! What lies on the device: activations, weights, states of sessions, rows of batches.
//!
//! **Invariant:** places are in values or words of 4 bytes from the beginning of one buffer, and
//! fit 32 bits because a binding does.

mod pieces;
mod arena;
pub(crate) mod codebooks;
pub(crate) mod states;
pub(crate) mod batches;
pub(crate) mod weights;
pub(crate) mod workspace;

/// The usages of buffers that kernels see and that can be filled and read back.
pub(crate) const STORAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST);

/// The usages of buffers in the host's memory that kernels see: drivers put there what the host
/// reads, and what it writes into memory of the device.
pub(crate) const HOST_STORAGE: wgpu::BufferUsages = STORAGE.union(wgpu::BufferUsages::MAP_READ);
