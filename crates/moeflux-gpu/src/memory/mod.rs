//! Device memory: activations, weights, states of sessions, rows of batches.
//!
//! **Invariant:** offsets are in values or words of 4 bytes from the start of one buffer, and fit
//! 32 bits because a binding does.

mod pages;
mod arena;
pub(crate) mod codebooks;
pub(crate) mod states;
pub(crate) mod batches;
pub(crate) mod weights;
pub(crate) mod workspace;

/// Usages of buffers that kernels bind and that can be filled and read back.
pub(crate) const STORAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST);

/// Usages of buffers in host memory that kernels bind. Drivers place there the buffers that the
/// host reads or that it writes into device memory.
pub(crate) const HOST_STORAGE: wgpu::BufferUsages = STORAGE.union(wgpu::BufferUsages::MAP_READ);
