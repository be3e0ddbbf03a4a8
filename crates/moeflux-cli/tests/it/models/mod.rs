//! Where models come from and how they are stored: the hub, packs and GGUF files.

mod gguf;
mod packing;
pub(crate) mod pulling;
mod choosing;
