//! The GPU backend of moeflux. It runs the engine's plans on Metal, Vulkan and DX12, through wgpu.
//!
//! [`adapter`] lists the GPUs and chooses one. [`device`] opens it and turns driver reports into
//! errors. [`check`] compares a device with the CPU before a model first runs there. The engine
//! opens models through [`maker`]; `trial` tells it which features not to trust. [`backend`] runs
//! plans on the device.
//!
//! # Folders
//!
//! ```text
//! host_import      host memory that kernels read
//! adapter, config  GPUs, and how one is used
//! device/          an open GPU: commands, copies, read-back, pipelines
//! memory/          weights, activations, rows of batches, states of sessions
//! params, shader   parameters and text of a kernel
//! step, compiler   a dispatch of a plan, and what kernels ask while a plan is compiled
//! kernels/         turns ops into steps
//!   shared/        fragments of WGSL, reductions over a workgroup
//!   products/      weights of every kind; products with one input and with many
//!   elementwise/   embedding, activations, sums, copies of rows
//!   norms/         norms of rows and heads
//!   attention/     attention over keys and values or over latents; rope
//!   delta/         causal convolution, gated delta rule
//!   selection/     routers, best logits
//!   experts/       routed experts, and the sum of their outputs
//!   fuse           ops that become one step
//! experts/         slots and tables of experts: banks, pools, slots that are read in place
//! backend/         a model on a device: runs plans, keeps states, reads results back
//! values, trial    random weights, and a trial of features
//! check/           comparison with the CPU
//! maker, auto      devices as the engine asks for them
//! ```
//!
//! # From plans to commands
//!
//! A plan is compiled once into steps (`step`) by the [`kernels`] of its ops; `compiler` tells them
//! where their operands are. A step is a pipeline, parameters, and a grid that depends on the
//! number of rows. `backend` records a dispatch per step through `device::recorder`. It submits the
//! queue when routes, logits or a state must be read back, or when enough is recorded.
//!
//! A dispatch over states computes parts (`memory::batches`). A part is a run of consecutive rows
//! of one session, with its position, its list of pages and its copies of the recurrent state. All
//! parts that use the same kernel share one dispatch. The kernel, and the number of splits that a
//! part's positions are divided into, depend on the part alone, so the result bits do too.
//!
//! While the host waits for an answer's logits, `backend::prerecord` records the same plans for the
//! next position. If the next request matches, these commands are submitted; otherwise the request
//! is recorded as usual.
//!
//! # Memory
//!
//! `memory` and `experts` use a few large buffers, addressed by offsets, so that only weight arenas
//! and layer states are rebound:
//!
//! * One storage buffer holds all activations, with scratch memory at its end.
//! * Weights are in arenas as large as a binding may be, in the layout of the checkpoint. Large
//!   matrices are cut by rows. Blocks of GGUF files may begin at any byte. Their codebooks precede
//!   the norms and biases (`memory::codebooks`).
//! * Each layer's states have two buffers for all sessions: keys and values, or latents and rotated
//!   keys, or convolution and delta state. Sessions own pages of 256 positions, and copies of
//!   recurrent states; a list per session names its pages. Sessions that exceed one binding get
//!   further buffers (`memory::states`).
//! * Experts are in slots. A table in device memory maps each expert to its slot in the bound
//!   buffer, or to none. So kernels do not know whether an expert is stored permanently or has just
//!   been copied from the host or a drive.
//! * Data for the device goes through `device::staging`: the host writes blocks, and commands copy
//!   them in queue order.
//!
//! # Tiers
//!
//! Experts of a layer that do not fit into the card's memory are in host buffers, pinned by the
//! driver. Kernels read both memories, and a bit of the slot index selects one. A token copies no
//! expert and remains one submission; the sums, and so the bits, are the same. Kernels count the
//! uses of experts. From time to time the host reads the counts without waiting
//! (`experts::balancer`), decides (`experts::use_stats`, pure), and exchanges the most used experts
//! of host memory for the least used of the card's, by commands between two steps.
//!
//! # Streaming
//!
//! Modules: `host_import`, `experts::slab_imports`, `experts::device_cache`; in the engine
//! `experts::stream::slots::mapped` and `experts::stream::device_cache`.
//!
//! If the driver imports host memory (`VK_EXT_external_memory_host`), it imports the slabs of
//! slots: the drive fills a slot and kernels read it there, without a copy. All experts of a layer
//! have the same layout in such slots, at multiples of 16 bytes; data that a file stores at other
//! offsets is moved once, after it is read. A slot stays leased until the next layer's choice has
//! been read back, because everything that reads the slot precedes that choice in the queue. Per
//! layer only this choice is read back, with the guess for the next one. Resident experts are
//! submitted immediately; the others as their reads complete.
//!
//! The card's own memory can hold streamed experts, too. A command copies them there; afterwards
//! they need no slot, so that each expert occupies only one memory. If a layer of a prompt needs
//! more than half of the slots, or if the driver cannot import memory, experts go through
//! `device::staging` and a pool of slots on the card.
//!
//! # Kernels
//!
//! `shader` builds the WGSL of a kernel from constants, bindings, shared fragments and the
//! operation's file. `params` are immediates of at most 128 bytes, declared once for Rust and WGSL;
//! the first four words belong to the batch. `device::pipeline` holds the compiled kernels, and
//! `device::kept` stores the driver's binaries in the user's cache folder between runs. Tests
//! validate every shader and translate it to MSL and HLSL.
//!
//! Products of many rows use cooperative matrices in half precision if the adapter has them, unless
//! `--precise` is given. Driver support for these is new. So before the first model is opened, a
//! small layer is computed both ways (`trial`), and a unit whose results differ is not used. Tests
//! replace the unit by plain code, to cover the surrounding code on adapters without one.

mod host_import;
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
