//! Selects the bytes to compare where reading all of a model's files would take too long.
//!
//! **Invariant:** the selection follows from headers alone, so two copies of a model are sampled in
//! the same places. The number of bytes is bounded for every model; a small model is sampled in
//! full.

use std::hash::Hasher as _;
use std::path::Path;

use moeflux_io::ReadFile;
use twox_hash::XxHash3_64;

use crate::error::Result;
use crate::format::read_range;
use crate::ids::ExpertIdx;
use crate::weights::manifest::{Manifest, VectorSource};
use crate::weights::tensors::FileExtent;

/// Number of expert blocks to sample. Two models that differ in one expert of a hundred go
/// unnoticed once in 20,000 times.
const N_EXPERT_BLOCKS: u64 = 1000;

/// Upper bound on sampled bytes of resident tensors, apart from one block of each: any drive that
/// experts are streamed from reads this in well under a second.
const RESIDENT_BYTES_MAX: u64 = 64 << 20;

/// The smallest read of a drive.
const BLOCK_BYTES: u64 = 4096;

/// Seed of the sampled places, which are the same in each run.
const SEED: u64 = 0x6d6f_6566_6c75_7821;

/// Long runs are divided into parts of this size, so that they are read in bounded memory.
const RUN_BYTES_MAX: u64 = 1 << 20;

/// Returns the sampled runs, ascending, each once.
pub(crate) fn sampled(manifest: &Manifest) -> Vec<FileExtent> {
    let mut runs = resident(manifest);
    runs.extend(experts(manifest));
    runs.sort_unstable_by_key(sort_key);
    runs.dedup();
    runs
}

/// Hashes the bytes of one file that are among `runs`.
///
/// # Errors
///
/// When they cannot be read.
pub(crate) fn hash_of(
    runs: &[FileExtent],
    file_idx: usize,
    (file, path): (&ReadFile, &Path),
) -> Result<u64> {
    let mut hash = XxHash3_64::new();
    for run in runs.iter().filter(|run| run.file_idx == file_idx) {
        hash.write(&read_range(file, path, run.offset_bytes, run.len_bytes)?);
    }
    Ok(hash.finish())
}

fn sort_key(extent: &FileExtent) -> (usize, u64, u64) {
    (extent.file_idx, extent.offset_bytes, extent.len_bytes)
}

/// Samples resident tensors: all of short ones, blocks of long ones.
fn resident(manifest: &Manifest) -> Vec<FileExtent> {
    let matrices = manifest.matrices.iter();
    let matrices = matrices.flat_map(|it| [Some(it.codes), it.scales, it.biases]).flatten();
    let vectors = manifest.vectors.iter().filter_map(|vector| match vector {
        VectorSource::Stored(stored) => Some(stored.extent),
        VectorSource::Constant(_) => None,
    });
    let mut tensors: Vec<FileExtent> = matrices.chain(vectors).collect();
    tensors.sort_unstable_by_key(sort_key);
    tensors.dedup();
    let total_bytes: u64 = tensors.iter().map(|it| it.len_bytes).sum();
    let share_bytes = match tensors.len() as u64 {
        0 => 0,
        _ if total_bytes <= RESIDENT_BYTES_MAX => total_bytes,
        n_tensors => RESIDENT_BYTES_MAX / n_tensors,
    };
    tensors.iter().flat_map(|tensor| spread(*tensor, share_bytes)).collect()
}

/// Samples all of a tensor that is no longer than its share; otherwise blocks at equal distances,
/// including the first and the last.
fn spread(tensor: FileExtent, share_bytes: u64) -> Vec<FileExtent> {
    if tensor.len_bytes <= share_bytes.max(BLOCK_BYTES) {
        return cut(tensor).collect();
    }
    let n_blocks = (share_bytes / BLOCK_BYTES).max(1);
    let last_at = tensor.len_bytes - BLOCK_BYTES;
    let block = |idx: u64| FileExtent {
        // Tensors are shorter than 2^50 bytes, and there are fewer than 2^14 blocks.
        offset_bytes: tensor.offset_bytes + last_at * idx / (n_blocks - 1).max(1),
        len_bytes: BLOCK_BYTES,
        ..tensor
    };
    (0..n_blocks).map(block).collect()
}

fn cut(extent: FileExtent) -> impl Iterator<Item = FileExtent> {
    (0..extent.len_bytes.div_ceil(RUN_BYTES_MAX)).map(move |idx| {
        let skipped = idx * RUN_BYTES_MAX;
        let len_bytes = RUN_BYTES_MAX.min(extent.len_bytes - skipped);
        FileExtent { offset_bytes: extent.offset_bytes + skipped, len_bytes, ..extent }
    })
}

/// Samples blocks of experts at pseudo-random places, or all bytes of a few small experts.
fn experts(manifest: &Manifest) -> Vec<FileExtent> {
    let banks = &manifest.banks;
    let expert_bytes: Vec<u64> = banks
        .iter()
        .map(|bank| bank.parts.iter().map(|part| part.len_bytes as u64).sum())
        .collect();
    let sizes = banks.iter().zip(&expert_bytes);
    let bank_bytes: Vec<u64> = sizes.map(|(bank, bytes)| bank.n_experts as u64 * bytes).collect();
    let total_bytes: u64 = bank_bytes.iter().sum();
    if total_bytes <= N_EXPERT_BLOCKS * BLOCK_BYTES {
        let all = banks.iter().flat_map(|bank| {
            let parts = bank.parts.iter();
            parts.flat_map(|part| (0..bank.n_experts).map(|it| part.extent(ExpertIdx(it))))
        });
        return all.flat_map(cut).collect();
    }
    let block = |number: u64| {
        let mut at = XxHash3_64::oneshot_with_seed(SEED, &number.to_le_bytes()) % total_bytes;
        let bank_idx = bank_bytes.iter().position(|bytes| {
            let is_in = at < *bytes;
            at -= if is_in { 0 } else { *bytes };
            is_in
        })?;
        let bank = &banks[bank_idx];
        let expert = ExpertIdx(usize::try_from(at / expert_bytes[bank_idx]).ok()?);
        at %= expert_bytes[bank_idx];
        for part in &bank.parts {
            let len_bytes = part.len_bytes as u64;
            if at < len_bytes {
                let whole = part.extent(expert);
                let skipped = at / BLOCK_BYTES * BLOCK_BYTES;
                let len_bytes = BLOCK_BYTES.min(len_bytes - skipped);
                let offset_bytes = whole.offset_bytes + skipped;
                return Some(FileExtent { offset_bytes, len_bytes, ..whole });
            }
            at -= len_bytes;
        }
        None
    };
    (0..N_EXPERT_BLOCKS).filter_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blueprint::Blueprint;
    use crate::format::RawConfig;
    use crate::spec::QuantParams;
    use crate::weights::SyntheticKind;

    fn synthetic(config: &str) -> Manifest {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(config);
        let raw = RawConfig::parse(&path, &std::fs::read(&path).unwrap()).unwrap();
        let kind = SyntheticKind::Affine(QuantParams { bits: 4, group: 64 });
        Blueprint::synthetic(&raw, kind).unwrap().manifest
    }

    #[test]
    fn a_large_model_is_looked_at_in_a_bounded_number_of_places() {
        let manifest = synthetic("crates/moeflux-cli/src/model/known/qwen3-235b-a22b.json");
        let of_experts = experts(&manifest);
        assert_eq!(of_experts.len() as u64, N_EXPERT_BLOCKS);
        assert!(of_experts.iter().all(|it| it.len_bytes <= BLOCK_BYTES));
        let mut files: Vec<_> = of_experts.iter().map(|it| it.offset_bytes >> 30).collect();
        files.sort_unstable();
        files.dedup();
        assert!(files.len() > 50, "{} places", files.len());
        let bytes = |runs: &[FileExtent]| runs.iter().map(|it| it.len_bytes).sum::<u64>();
        let of_resident = resident(&manifest);
        let most = RESIDENT_BYTES_MAX + 3 * BLOCK_BYTES * manifest.matrices.len() as u64;
        assert!((RESIDENT_BYTES_MAX / 4..most).contains(&bytes(&of_resident)));
        assert_eq!(sampled(&manifest), sampled(&manifest));
    }

    #[test]
    fn all_of_a_small_model_is_looked_at() {
        let manifest = synthetic("golden/qwen3_moe-bf16/config.json");
        let runs = sampled(&manifest);
        let n_bytes: u64 = runs.iter().map(|it| it.len_bytes).sum();
        let resident: usize = manifest.matrices.iter().map(|it| it.layout.total_bytes()).sum();
        assert!(n_bytes >= manifest.expert_bytes() + resident as u64);
        let pairs = runs.iter().zip(runs.iter().skip(1));
        let is_apart = |(a, b): (&FileExtent, &FileExtent)| {
            a.file_idx < b.file_idx || a.offset_bytes + a.len_bytes <= b.offset_bytes
        };
        assert!(pairs.into_iter().all(is_apart));
    }

    #[test]
    fn blocks_of_a_long_tensor_reach_both_ends() {
        let tensor = FileExtent { file_idx: 0, offset_bytes: 100, len_bytes: 1_000_000 };
        let blocks = spread(tensor, 10 * BLOCK_BYTES);
        assert_eq!(blocks.len(), 10);
        assert_eq!(blocks[0].offset_bytes, 100);
        assert_eq!(blocks[9].offset_bytes + BLOCK_BYTES, 1_000_100);
        assert_eq!(spread(tensor, 0).len(), 1);
        assert_eq!(spread(tensor, 1 << 20), [tensor]);
    }
}
