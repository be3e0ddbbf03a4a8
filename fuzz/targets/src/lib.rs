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
mod prefix_object;
mod safetensors_header;
mod saved_state;
mod sums;
mod tiktoken_model;
mod tokenizer_config;
mod tokenizer_json;
mod trace;

/// Checks one input after another; panics if moeflux violates a guarantee.
pub type Check = Box<dyn FnMut(&[u8]) + Send>;

/// The fuzz target of one kind of file.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Also the name of its directory in `fuzz/corpus` and of its program in `fuzz/programs`.
    pub name: &'static str,
    /// Prepares the state that inputs share: a directory, a model, a conversation.
    pub make: fn() -> Check,
}

/// All kinds, by name.
pub const TARGETS: [FuzzTarget; 19] = [
    FuzzTarget { name: "calls", make: || Box::new(calls::checker()) },
    FuzzTarget { name: "chat_template", make: || Box::new(chat_template::checker()) },
    FuzzTarget { name: "checkpoint", make: || Box::new(checkpoint::check) },
    FuzzTarget { name: "config_json", make: || Box::new(config_json::check) },
    FuzzTarget { name: "generation_config", make: || Box::new(generation_config::checker()) },
    FuzzTarget { name: "gguf", make: || Box::new(gguf::check) },
    FuzzTarget { name: "gguf_text", make: || Box::new(gguf_text::check) },
    FuzzTarget { name: "index_json", make: || Box::new(index_json::check) },
    FuzzTarget { name: "pack_journal", make: || Box::new(pack_journal::checker()) },
    FuzzTarget { name: "pack_sums", make: || Box::new(pack_sums::check) },
    FuzzTarget { name: "packed_metadata", make: || Box::new(packed_metadata::check) },
    FuzzTarget { name: "prefix_object", make: || Box::new(prefix_object::check) },
    FuzzTarget { name: "safetensors_header", make: || Box::new(safetensors_header::check) },
    FuzzTarget { name: "saved_state", make: || Box::new(saved_state::checker()) },
    FuzzTarget { name: "sums", make: || Box::new(sums::check) },
    FuzzTarget { name: "tiktoken_model", make: || Box::new(tiktoken_model::checker()) },
    FuzzTarget { name: "tokenizer_config", make: || Box::new(tokenizer_config::checker()) },
    FuzzTarget { name: "tokenizer_json", make: || Box::new(tokenizer_json::checker()) },
    FuzzTarget { name: "trace", make: || Box::new(trace::check) },
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
