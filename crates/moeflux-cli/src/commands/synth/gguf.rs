//! GGUF files for tensors: keys, tokenizer, and the headers of one file or of several parts.
//!
//! **Invariant:** the planned headers are read back by the engine's own reader before a byte is
//! written, so that they describe the requested geometry.

use std::path::Path;

use moeflux::Result;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::format::{Checkpoint, NewPairs, NewTensor, NewValue, new_gguf};
use moeflux::provider::spec::ModelSpec;
use moeflux::provider::text::byte_tokenizer_config_json;
use moeflux::provider::weights::SyntheticTensor;

use super::shards::{self, Shard};
use super::words;

/// `tokenizer.ggml.token_type`.
const TEXT: i32 = 1;
const CONTROL: i32 = 3;

/// Distributes tensors over files of at most `shard_bytes_max` of data; the first has all keys.
///
/// # Errors
///
/// Fails if GGUF keys cannot describe the geometry.
pub(super) fn plan(
    spec: &ModelSpec,
    tensors: &[SyntheticTensor],
    shard_bytes_max: u64,
) -> Result<Vec<Shard>> {
    let pairs = pairs(spec);
    check(spec, &pairs, tensors)?;
    let ranges = shards::ranges(tensors, shard_bytes_max)?;
    let n_shards = ranges.len();
    let shards = ranges.into_iter().enumerate().map(|(shard_idx, range)| {
        let mut own = if shard_idx == 0 { pairs.clone() } else { NewPairs::default() };
        if n_shards > 1 {
            let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
            own.add("split.no", NewValue::U16(small(shard_idx)));
            own.add("split.count", NewValue::U16(small(n_shards)));
            let n_tensors = i32::try_from(tensors.len()).unwrap_or(i32::MAX);
            own.add("split.tensors.count", NewValue::I32(n_tensors));
        }
        let file = new_gguf(&own, &new_tensors(&tensors[range.clone()]));
        Shard {
            name: shards::file_name(shard_idx, n_shards, "gguf"),
            tensors: range,
            header: file.header,
            places: file.places,
            len_bytes: file.len_bytes,
        }
    });
    Ok(shards.collect())
}

fn new_tensors(tensors: &[SyntheticTensor]) -> Vec<NewTensor<'_>> {
    let tensors = tensors.iter().map(|tensor| NewTensor {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: &tensor.shape,
        len_bytes: tensor.len_bytes,
    });
    tensors.collect()
}

/// Reads everything back as one file.
fn check(spec: &ModelSpec, pairs: &NewPairs, tensors: &[SyntheticTensor]) -> Result<()> {
    let file = new_gguf(pairs, &new_tensors(tensors));
    let path = Path::new("model.gguf");
    let checkpoint = Checkpoint::of_gguf_bytes(path, &file.header, file.len_bytes)?;
    spec.check_gguf(path, &checkpoint)?;
    Blueprint::of_gguf(&checkpoint).map(drop)
}

fn pairs(spec: &ModelSpec) -> NewPairs {
    let mut pairs = spec.gguf_pairs();
    let texts = words::texts(spec.vocab);
    let kind = |id| if words::is_special(id) { CONTROL } else { TEXT };
    let kinds: Vec<i32> = (0..texts.len()).map(kind).collect();
    pairs.add("tokenizer.ggml.model", NewValue::Text("gpt2"));
    pairs.add("tokenizer.ggml.pre", NewValue::Text(spec.family.gguf_pre()));
    pairs.add("tokenizer.ggml.tokens", NewValue::Texts(&texts));
    pairs.add("tokenizer.ggml.token_type", NewValue::I32s(&kinds));
    pairs.add("tokenizer.ggml.merges", NewValue::Texts(&[]));
    pairs.add("tokenizer.ggml.add_bos_token", NewValue::Bool(false));
    if let Some(end) = words::end_ids(spec.vocab).first() {
        let end = u32::try_from(*end).unwrap_or(u32::MAX);
        pairs.add("tokenizer.ggml.eos_token_id", NewValue::U32(end));
    }
    let config = byte_tokenizer_config_json(None);
    if let Some(template) = config.get("chat_template").and_then(|it| it.as_str()) {
        pairs.add("tokenizer.chat_template", NewValue::Text(template));
    }
    // Greedy text of random weights repeats one token.
    pairs.add("general.sampling.temp", NewValue::F32(1.0));
    pairs
}
