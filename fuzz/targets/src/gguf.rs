//! Headers of GGUF files, up to a model: an accepted file has every tensor inside it, in whole
//! blocks.
//!
//! Input: eight bytes for the length of the file, little endian, then its first bytes.

use std::path::Path;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::format::{Checkpoint, DType};

use crate::checkpoint::check_blueprint;
use crate::support::check_refusal;

pub(crate) fn check(input: &[u8]) {
    let Some((length, bytes)) = input.split_first_chunk::<8>() else { return };
    let len_bytes = u64::from_le_bytes(*length).max(bytes.len() as u64);
    let checkpoint = match Checkpoint::of_gguf_bytes(Path::new("m.gguf"), bytes, len_bytes) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return check_refusal(&error),
    };
    let mut places = Vec::new();
    for entry in checkpoint.tensors.values() {
        let n_values: u64 = entry.shape.iter().map(|&dim| dim as u64).product();
        let bits = match entry.dtype {
            DType::Block(block) => n_values / block.n_values() * block.n_bytes() * 8,
            plain => n_values * plain.bits().expect("a size"),
        };
        assert_eq!(bits, entry.len_bytes * 8, "{entry:?}");
        places.push((entry.offset_bytes, entry.len_bytes));
    }
    places.sort_unstable();
    for pair in places.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
    }
    assert!(places.last().is_none_or(|(at, len)| at + len <= len_bytes));
    match Blueprint::of_gguf(&checkpoint) {
        Ok(blueprint) => check_blueprint(&blueprint, &checkpoint),
        Err(error) => check_refusal(&error),
    }
}
