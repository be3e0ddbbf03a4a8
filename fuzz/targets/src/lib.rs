//! Fuzz targets: for each kind of file that moeflux reads, a function of any bytes.
//!
//! A target panics if the parser accepts invalid input, or refuses in more than one line. Targets
//! do not know where the bytes come from: `fuzz/programs` passes those of libFuzzer,
//! `tests/corpus.rs` those of the committed corpus and random changes of them.

mod support;
mod calls;
mod chat_template;
mod checkpoint;
mod config_json;
mod generation_config;
mod gguf;
mod gguf_text;
mod index_json;
mod pack_journal;
mod pack_sums;
mod packed_metadata;
mod safetensors_header;
mod saved_state;
mod sums;
mod tiktoken_model;
mod tokenizer_config;
mod tokenizer_json;
mod trace;

/// Checks one input after another; panics if moeflux violates a guarantee.
pub type Check = Box<dyn FnMut(&[u8]) + Send>;

/// One kind of file.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Also the name of its directory in `fuzz/corpus` and of its program in `fuzz/programs`.
    pub name: &'static str,
    /// Prepares the state that inputs share: a directory, a model, a conversation.
    pub make: fn() -> Check,
}

/// All kinds, by name.
pub const TARGETS: [Target; 18] = [
    Target { name: "calls", make: || Box::new(calls::checker()) },
    Target { name: "chat_template", make: || Box::new(chat_template::checker()) },
    Target { name: "checkpoint", make: || Box::new(checkpoint::check) },
    Target { name: "config_json", make: || Box::new(config_json::check) },
    Target { name: "generation_config", make: || Box::new(generation_config::checker()) },
    Target { name: "gguf", make: || Box::new(gguf::check) },
    Target { name: "gguf_text", make: || Box::new(gguf_text::check) },
    Target { name: "index_json", make: || Box::new(index_json::check) },
    Target { name: "pack_journal", make: || Box::new(pack_journal::checker()) },
    Target { name: "pack_sums", make: || Box::new(pack_sums::check) },
    Target { name: "packed_metadata", make: || Box::new(packed_metadata::check) },
    Target { name: "safetensors_header", make: || Box::new(safetensors_header::check) },
    Target { name: "saved_state", make: || Box::new(saved_state::checker()) },
    Target { name: "sums", make: || Box::new(sums::check) },
    Target { name: "tiktoken_model", make: || Box::new(tiktoken_model::checker()) },
    Target { name: "tokenizer_config", make: || Box::new(tokenizer_config::checker()) },
    Target { name: "tokenizer_json", make: || Box::new(tokenizer_json::checker()) },
    Target { name: "trace", make: || Box::new(trace::check) },
];

/// Returns the check of a target.
///
/// # Panics
///
/// If there is no target of this name.
#[must_use]
pub fn check_of(name: &str) -> Check {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a name of the table").make)()
}
