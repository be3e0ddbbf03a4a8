//! Everything known about a model before its weights are read, and the agreement of ranks on it.
//!
//! **Invariant:** ranks that would compute different results report the difference here, by name.

use std::collections::BTreeSet;
use std::hash::Hasher as _;
use std::ops::ControlFlow;
use std::path::Path;

use moeflux_io::trim_freed_memory;
use moeflux_kernels::Matrix;
use twox_hash::XxHash3_64;

use crate::blueprint::Blueprint;
use crate::budget::{Host, MemoryLayout, Placement, n_experts_of_chunk};
use crate::config::{BackendKind, EngineConfig};
use crate::error::{Error, Result};
use crate::format::Checkpoint;
use crate::ids::{MatrixId, VectorId};
use crate::model::{Headers, Model};
use crate::ranks::{Hello, RankGroup};
use crate::weights::{self, ExpertBank, Manifest, Mirror, Progress, Weights};

/// Bytes of each part of a matrix that go into the fingerprint. Fine-tuned variants differ within
/// the first rows, and reading all of a large checkpoint twice is too slow.
const FINGERPRINT_BYTES: usize = 4096;

/// A model as described by its headers and the configuration, before anything is read.
pub(crate) struct DescribedModel {
    pub blueprint: Blueprint,
    /// The whole experts of the files, if those of the blueprint are a rank's part of them; or if
    /// it has none, because it keeps the feed-forwards of a dense model in memory.
    pub whole_banks: Option<Vec<ExpertBank>>,
    pub checkpoint: Checkpoint,
    /// Used where experts are streamed.
    pub mirror: Mirror,
    pub header_fingerprint: u64,
    pub layout: MemoryLayout,
}

/// The limits that all ranks share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgreedLimits {
    pub n_rows_max: usize,
    /// Experts that are distributed between two exchanges.
    pub n_chunk_experts: usize,
}

pub(crate) fn describe(model: Model, config: &EngineConfig) -> Result<DescribedModel> {
    let dir = model.path().to_owned();
    let (blueprint, mut checkpoint) = model.into_parts();
    // A program that needs the text has read it by now.
    checkpoint.drop_text();
    check_order(&dir, &blueprint)?;
    if checkpoint.packed.as_ref().is_some_and(|packed| !packed.has_pack_sums) {
        tracing::warn!(dir = %dir.display(), "the small files of this pack have no checksums");
    }
    // A session saved with one form of a dense model is resumed with the other.
    let header_fingerprint = blueprint.header_fingerprint(&checkpoint);
    // Until then, memory freed after reading tokenizer and headers counts as used by this process.
    trim_freed_memory();
    let (blueprint, whole_banks, layout) = match &config.ranks {
        None => {
            let (chosen, layout) = MemoryLayout::choose(Host::here(), &blueprint, config)?;
            let whole_banks = chosen.streamed.as_ref().map(|it| it.manifest.banks.clone());
            (chosen.clone(), whole_banks, layout)
        }
        Some(group) => {
            let mut blueprint = blueprint.streamed.as_deref().unwrap_or(&blueprint).clone();
            let whole_banks = shard(&mut blueprint, config, group)?;
            let layout = MemoryLayout::new(&blueprint, config)?;
            (blueprint, Some(whole_banks), layout)
        }
    };
    if let Some(device) = &config.device {
        device.check(&blueprint)?;
    }
    let mirror = match (&config.streaming.mirror, layout.placement) {
        (Some(dir), Placement::Streaming { .. }) => {
            Mirror::open(&checkpoint, &blueprint.manifest, dir)?
        }
        _ => Mirror::default(),
    };
    Ok(DescribedModel { blueprint, whole_banks, checkpoint, mirror, header_fingerprint, layout })
}

/// Keeps only a rank's part of every expert. Returns the whole experts.
fn shard(
    blueprint: &mut Blueprint,
    config: &EngineConfig,
    group: &RankGroup,
) -> Result<Vec<ExpertBank>> {
    if config.device.is_some() || config.backend == BackendKind::Reference {
        let problem = "a model distributed over several machines runs only on their CPUs";
        return Err(Error::Unsupported(problem.to_owned()));
    }
    blueprint.shard(&group.shares, group.topology().rank)
}

/// Checks that all ranks run the same model in the same way, and agrees on the minimum of their
/// limits.
pub(crate) fn handshake(
    group: &RankGroup,
    config: &EngineConfig,
    described: Result<DescribedModel>,
) -> Result<(DescribedModel, AgreedLimits)> {
    group.link().lock().begin()?;
    let hello = |described: &DescribedModel| {
        let DescribedModel { blueprint, layout, header_fingerprint, .. } = described;
        Hello {
            same: vec![
                ("version of moeflux", env!("CARGO_PKG_VERSION").to_owned()),
                ("model", format!("{} {header_fingerprint:016x}", blueprint.model_type)),
                ("arithmetic", config.arithmetic.name().to_owned()),
                ("division of rows", format!("{:?}", group.shares)),
            ],
            least: vec![layout.n_rows_max as u64, layout.n_held() as u64],
        }
    };
    let (hello, described) = match described {
        Ok(described) => (Ok(hello(&described)), Some(described)),
        Err(error) => (Err(error), None),
    };
    let least = group.link().lock().handshake(hello)?;
    let least = least.into_iter().map(|it| usize::try_from(it).unwrap_or(usize::MAX));
    let &[n_rows_max, n_held] = &*least.collect::<Vec<_>>() else {
        unreachable!("two numbers of each rank were compared")
    };
    let described = described.expect("what could not be described was an error for all");
    let top_k = described.blueprint.spec.top_k_max();
    let n_chunk_experts = n_experts_of_chunk(n_held, top_k);
    Ok((described, AgreedLimits { n_rows_max, n_chunk_experts }))
}

/// Refuses experts whose rows are inputs: an expert would have to be transposed on every read.
fn check_order(dir: &Path, blueprint: &Blueprint) -> Result<()> {
    match blueprint.manifest.banks.iter().find(|bank| bank.is_input_first) {
        None => Ok(()),
        Some(bank) => Err(Error::Unsupported(format!(
            "{}: `{}.experts` are stored with inputs as rows, as Qwen3-VL is published, and cannot \
             be read one by one: run `moeflux pack {0} DIR` once and name DIR, or use a GGUF or \
             MLX conversion",
            dir.display(),
            bank.name
        ))),
    }
}

/// Combines the progress of two loads that follow each other and each report from zero.
pub(crate) fn combined_progress(
    layout: &MemoryLayout,
    manifest: &Manifest,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> impl FnMut(Progress) -> ControlFlow<()> {
    let expert_bytes = match layout.placement {
        Placement::OnDevice { .. } => manifest.expert_bytes(),
        Placement::Resident | Placement::Streaming { .. } => 0,
    };
    let total_bytes = layout.memory.resident_bytes + expert_bytes;
    let (mut before_bytes, mut last_bytes) = (0, 0);
    move |progress| {
        if progress.done_bytes < last_bytes {
            before_bytes += last_bytes;
        }
        last_bytes = progress.done_bytes;
        watch(Progress { done_bytes: before_bytes + progress.done_bytes, total_bytes })
    }
}

/// Computes a hash that identifies the weights. Variants of one architecture have the same headers,
/// so values count too; the first and the last routed expert of each layer represent all of them.
/// The feed-forwards of a dense model are such experts wherever they are, so that its two forms
/// have one fingerprint.
pub(crate) fn fingerprint(
    header_fingerprint: u64,
    (manifest, weights): (&Manifest, &Weights),
    checkpoint: &Checkpoint,
) -> Result<u64> {
    let mut hash = XxHash3_64::new();
    hash.write_u64(header_fingerprint);
    let projections = ["gate_proj", "up_proj", "down_proj"];
    let of_bank = |bank: &ExpertBank| projections.map(|it| format!("{}.{it}", bank.name));
    let sampled: BTreeSet<String> = manifest.banks.iter().flat_map(of_bank).collect();
    for (matrix_idx, matrix) in manifest.matrices.iter().enumerate() {
        if !sampled.contains(&matrix.name) {
            hash_matrix(&mut hash, &weights.matrix(MatrixId(matrix_idx)));
        }
    }
    for vector_idx in 0..manifest.vectors.len() {
        hash.write(bytemuck::cast_slice(weights.vector(VectorId(vector_idx))));
    }
    let samples = weights::expert_samples(manifest, checkpoint, FINGERPRINT_BYTES)?;
    let of_tables = weights::table_samples(manifest, checkpoint)?;
    samples.iter().chain(&of_tables).for_each(|sample| hash.write(sample));
    Ok(hash.finish())
}

fn hash_matrix(hash: &mut XxHash3_64, matrix: &Matrix<'_>) {
    for part in [matrix.codes(), matrix.scales(), matrix.biases()] {
        hash.write(&part[..part.len().min(FINGERPRINT_BYTES)]);
    }
}
