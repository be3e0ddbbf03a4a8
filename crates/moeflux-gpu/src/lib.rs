//! The GPU backend of moeflux: runs the engine's plans on Metal, Vulkan and DX12, through wgpu.
//!
//! [`adapter`] lists the GPUs and chooses one. [`device`] opens it and turns reports of its driver
//! into errors. [`check`] compares a device with the CPU before a model first runs there. [`maker`]
//! is what the engine opens models with; `trial` tells it which features not to trust. [`backend`]
//! runs plans on the device.
//!
//! # From plans to commands
//!
//! A plan is compiled once into steps (`step`) by the [`kernels`] of its ops; `compiler` tells them
//! where their operands are. A step is a pipeline, parameters, and a grid that follows from the
//! number of rows. `backend` records a dispatch per step through `device::recorder`. It submits the
//! queue when routes, logits or a state must come back, or when enough is recorded.
//!
//! A dispatch over states computes parts (`memory::batches`): rows of one session that follow each
//! other, each with its place, its list of pieces and its copies of the recurrent state. All parts
//! that take the same kernel are in one dispatch. Which kernel that is, and into how many splits
//! the positions go that a part sees, follows from the part alone, and so do the bits.
//!
//! While the host waits for an answer's logits, `backend::ahead` records the same plans for the
//! next position. If the next request matches, these commands are submitted; otherwise the request
//! is recorded as usual.
//!
//! # Memory
//!
//! `memory` and `experts` use a few large buffers, addressed by offsets, so that only arenas of
//! weights and states of layers are bound anew:
//!
//! * One storage buffer holds all activations, with scratch memory at its end.
//! * Weights are in arenas as large as a binding may be, in the layout of the checkpoint. Large
//!   matrices are cut by rows. Blocks of GGUF files begin at any byte. What their codes stand for
//!   is in front of the norms and biases (`memory::codebooks`).
//! * Each layer's states have two buffers for all sessions: keys and values, or latents and rotated
//!   keys, or convolution and delta state. Sessions have pieces of 256 positions, and copies of
//!   recurrent states; a list per session names its pieces. What is too much for one binding begins
//!   other buffers (`memory::states`).
//! * Experts are in slots. A table in device memory names the slot of each expert in the bound
//!   buffer, or none. So kernels do not know whether an expert is stored permanently or has just
//!   come from the host or a drive.
//! * Data for the device goes through `device::staging`: the host writes blocks, and commands copy
//!   them in the order of the queue.
//!
//! # Tiers
//!
//! Experts of a layer that do not fit into the card's memory are in buffers of the host, pinned by
//! the driver. Kernels read both memories, and a bit of the slot says which one. A token copies no
//! expert and remains one submission; the sums, and so the bits, are the same. Kernels count the
//! uses of experts. From time to time the host reads the counts without waiting
//! (`experts::follow`), decides (`experts::heat`, pure), and exchanges the most used experts of the
//! host's memory for the least used of the card's, by commands between two steps.
//!
//! # Streaming
//!
//! Modules: `seen`, `experts::sight`, `experts::near`; in the engine `experts::stream::seen` and
//! `experts::stream::near`.
//!
//! If the driver imports host memory (`VK_EXT_external_memory_host`), it imports the slabs of
//! slots: the drive fills a slot and kernels read it there, without a copy. All experts of a layer
//! have the same layout in such slots, at multiples of 16 bytes; data that a file stores at other
//! offsets is moved once, after it was read. A slot stays leased until the next layer's choice has
//! come back, because everything that reads the slot precedes that choice in the queue. Per layer
//! only this choice comes back, with the guess for the next one. Resident experts are submitted
//! immediately; the others as their reads complete.
//!
//! The card's own memory can hold experts, too. A command moves them there; afterwards they need no
//! slot, so that an expert is in one memory only. If a layer of a prompt asks for more than half of
//! the slots, or if the driver cannot import memory, experts go through `device::staging` and a
//! pool of slots on the card.
//!
//! # Kernels
//!
//! `shader` builds the WGSL of a kernel from constants, bindings, shared pieces and the
//! operation's file. `params` are immediates of at most 128 bytes, declared once for Rust and WGSL;
//! four words before them belong to the batch. `device::pipeline` keeps the compiled kernels, and
//! `device::kept` stores the driver's in the user's cache folder between runs. Tests validate every
//! shader and translate it to MSL and HLSL.
//!
//! Products of many rows use cooperative matrices in half precision if the adapter has them, unless
//! `--precise` is given. Driver support for these is new. So before the first model is opened, a
//! small layer is computed both ways (`trial`), and a unit whose results differ is not used. Tests
//! replace the unit by plain code, so that they reach the code around it on adapters without one.

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
mod values;
mod trial;
pub mod check;
pub mod maker;
pub mod auto;

pub use crate::auto::{Auto, auto};
