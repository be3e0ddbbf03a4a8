//! Bytes: owned aligned memory, positional reads, the read seam and its simulated disk.
//!
//! **Invariant:** knows files, offsets and lengths in bytes; never tensors or experts.
#![allow(unsafe_code, reason = "aligned allocation; every block is documented and tested")]

mod aligned;
mod file;
mod memory;

pub use aligned::AlignedBytes;
pub use file::{ReadError, ReadFile};
pub use memory::available_memory_bytes;
