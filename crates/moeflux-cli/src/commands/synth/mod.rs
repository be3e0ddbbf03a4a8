//! `moeflux synth`: a random checkpoint of a given geometry, to test speed and memory without a
//! download.
//!
//! **Invariant:** everything that can be refused is refused before a byte is written, and the
//! folder appears complete or not at all. The same config, quantisation and seed give the same
//! weights, regardless of shards and threads.

mod folder;
mod shards;
mod blocks;
mod values;
mod words;
mod gguf;
mod writer;

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::Args;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::spec::{ModelSpec, QuantParams};
use moeflux::provider::text::byte_tokenizer_config_json;
use moeflux::provider::weights::{GgufTypes, ManifestOrigin, SyntheticCheckpoint, SyntheticKind};
use moeflux::{ByteCount, Result};
use serde_json::{Value, json};

use crate::model::bare_config::{BITS_DEFAULT, BareConfig, GROUP_DEFAULT, parse_bits, parse_group};
use crate::options::ranges;
use crate::output::progress::Bar;
use crate::system::disk;
use folder::NewFolder;
use shards::Shard;
use writer::ShardWriter;

/// More threads than this do not write faster.
const N_THREADS_MAX: usize = 64;

/// The arguments of `moeflux synth`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SynthArgs {
    /// The config.json that defines the geometry, or a folder that contains one
    #[arg(long, value_name = "CONFIG.json")]
    pub(crate) config: PathBuf,
    /// The folder to create; it must be empty or not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Bits per weight: 2, 3, 4, 5, 6 or 8
    #[arg(long, default_value_t = BITS_DEFAULT, value_parser = parse_bits)]
    pub(crate) bits: u8,
    /// Weights per scale: 32, 64 or 128
    #[arg(long, default_value_t = GROUP_DEFAULT, value_parser = parse_group)]
    pub(crate) group: u8,
    /// Write a GGUF file instead, with matrices of this type: Q4_K_M (a mix), Q8_0, Q4_K, MXFP4 or
    /// another type that moeflux runs
    #[arg(long, value_name = "TYPE", value_parser = parse_types)]
    #[arg(conflicts_with_all = ["bits", "group"])]
    pub(crate) gguf: Option<GgufTypes>,
    /// Write routed experts in a format that models are published in, and all else in bf16: mxfp4,
    /// int4, int8, or affine with 4 bits as in MLX
    #[arg(long, value_name = "FORMAT", value_parser = parse_experts)]
    #[arg(conflicts_with_all = ["bits", "gguf"])]
    pub(crate) experts: Option<ExpertFormat>,
    /// Seed for the weights; the same seed gives the same weights
    #[arg(long, value_name = "SEED", value_parser = ranges::seed, default_value = "0")]
    #[arg(allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Maximum size of a file, unless one tensor is larger: 700M, 5G (powers of 1024)
    #[arg(long, value_name = "SIZE", default_value = "5G", value_parser = ranges::shard_size)]
    pub(crate) shard_size: u64,
    /// Number of threads that generate weights [default: as many as the machine runs at once]
    #[arg(long, value_name = "N", value_parser = ranges::threads)]
    pub(crate) threads: Option<NonZeroUsize>,
}

/// Makes the checkpoint. Returns a message for the user.
///
/// # Errors
///
/// Fails if the config, the folder or the disk is unusable; [`moeflux::Error::Cancelled`] soon
/// after `cancel` was set. Nothing is left behind then.
pub(crate) fn run(args: &SynthArgs, cancel: &AtomicBool) -> Result<String> {
    let config = BareConfig::open(&args.config)?;
    let params = QuantParams { bits: args.bits, group: args.group };
    let kind = match (args.gguf, args.experts) {
        (Some(types), _) => SyntheticKind::Gguf(types),
        (None, Some(format)) => format.kind(args.group),
        (None, None) => SyntheticKind::Affine(params),
    };
    let Blueprint { spec, manifest, .. } = config.blueprint_as(kind)?;
    let ManifestOrigin::Synthetic(checkpoint) = manifest.origin else {
        unreachable!("a bare config has no files");
    };
    folder::check_vacant(&args.out)?;
    // Before building headers and words, which takes time for a large model.
    let tensors = &checkpoint.tensors;
    let tensor_bytes = tensors.iter().map(|tensor| tensor.len_bytes).sum();
    disk::check_room(&args.out, 1, tensor_bytes)?;
    let (shards, small_files) = match args.gguf {
        Some(_) => (gguf::plan(&spec, tensors, args.shard_size)?, Vec::new()),
        None => {
            let shards = shards::plan(tensors, args.shard_size)?;
            let written = config.quantised(kind, &checkpoint);
            let small_files = small_files(&written, &spec, &checkpoint, &shards);
            (shards, small_files)
        }
    };
    let n_bytes = total_bytes(&shards, &small_files);
    disk::check_room(&args.out, shards.len() + small_files.len(), n_bytes)?;

    let mut folder = NewFolder::create(&args.out)?;
    let bar = Bar::bytes("writing", n_bytes);
    let available = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let n_threads = args.threads.map_or_else(available, NonZeroUsize::get).min(N_THREADS_MAX);
    let writer =
        ShardWriter { spec: &spec, tensors, seed: args.seed, n_threads, cancel, bar: &bar };
    for shard in &shards {
        let (file, path) = folder.file(&shard.name)?;
        writer.write(shard, &file, &path)?;
    }
    for small_file in &small_files {
        let (mut file, path) = folder.file(small_file.name)?;
        let written = file.write_all(&small_file.bytes);
        written.map_err(|error| writer::write_error(&path, error))?;
    }
    folder.finish()?;
    drop(bar);
    Ok(summary(args, &config, &shards, n_bytes))
}

/// A published format of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertFormat {
    /// 4-bit floats scaled by powers of two.
    Mxfp4,
    /// Integers of this many bits.
    Ints(u8),
    /// 4-bit codes with scales and biases.
    Affine,
}

impl ExpertFormat {
    /// Returns the kind of weights. Groups of `group` integers share a scale.
    const fn kind(self, group: u8) -> SyntheticKind {
        match self {
            Self::Mxfp4 => SyntheticKind::Mxfp4,
            Self::Ints(bits) => SyntheticKind::Ints(QuantParams { bits, group }),
            Self::Affine => SyntheticKind::AffineExperts(QuantParams { bits: BITS_DEFAULT, group }),
        }
    }
}

fn parse_experts(text: &str) -> std::result::Result<ExpertFormat, String> {
    match text {
        "mxfp4" => Ok(ExpertFormat::Mxfp4),
        "int4" => Ok(ExpertFormat::Ints(4)),
        "int8" => Ok(ExpertFormat::Ints(8)),
        "affine" => Ok(ExpertFormat::Affine),
        _ => Err("choose one of mxfp4, int4, int8 and affine".to_owned()),
    }
}

fn parse_types(text: &str) -> std::result::Result<GgufTypes, String> {
    let known = "Q4_K_M, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, \
                 IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, MXFP4";
    GgufTypes::from_name(text).ok_or_else(|| format!("choose one of {known}"))
}

/// A small file next to the weights.
struct SmallFile {
    name: &'static str,
    bytes: Vec<u8>,
}

impl SmallFile {
    fn new(name: &'static str, value: &Value) -> Self {
        Self { name, bytes: format!("{value:#}\n").into_bytes() }
    }

    /// On one line, for files that are not meant for reading.
    fn compact(name: &'static str, value: &Value) -> Self {
        Self { name, bytes: value.to_string().into_bytes() }
    }
}

/// Returns the small files; `config.json` is last, because it makes a folder a model.
fn small_files(
    config: &Value,
    spec: &ModelSpec,
    checkpoint: &SyntheticCheckpoint,
    shards: &[Shard],
) -> Vec<SmallFile> {
    let mut small_files = Vec::new();
    if let Some(index) = shards::index(&checkpoint.tensors, shards) {
        small_files.push(SmallFile::new("model.safetensors.index.json", &index));
    }
    let ends = words::end_ids(spec.vocab);
    let end = ends.first().map(|_| words::ENDS[0]);
    let tokenizer_config = byte_tokenizer_config_json(end);
    small_files.push(SmallFile::compact("tokenizer.json", &words::tokenizer_json(spec.vocab)));
    small_files.push(SmallFile::new("tokenizer_config.json", &tokenizer_config));
    // Greedy text of random weights repeats one token.
    let generation = json!({"do_sample": true, "temperature": 1.0, "eos_token_id": ends});
    small_files.push(SmallFile::new("generation_config.json", &generation));
    small_files.push(SmallFile::new("config.json", config));
    small_files
}

fn total_bytes(shards: &[Shard], small_files: &[SmallFile]) -> u64 {
    let shards: u64 = shards.iter().map(|shard| shard.len_bytes).sum();
    let small_files: u64 = small_files.iter().map(|small_file| small_file.bytes.len() as u64).sum();
    shards + small_files
}

fn summary(args: &SynthArgs, config: &BareConfig, shards: &[Shard], n_bytes: u64) -> String {
    let out = args.out.display();
    let files = if shards.len() == 1 { "file" } else { "files" };
    let stored = match (args.gguf, args.experts) {
        (Some(types), _) => format!("as GGUF in {types}"),
        (None, Some(ExpertFormat::Mxfp4)) => "with experts in MXFP4".to_owned(),
        (None, Some(ExpertFormat::Ints(bits))) => {
            format!("with experts in INT{bits} in groups of {}", args.group)
        }
        (None, Some(ExpertFormat::Affine)) => {
            format!("with experts in {BITS_DEFAULT} bits in groups of {}", args.group)
        }
        (None, None) => format!("with {} bits in groups of {}", args.bits, args.group),
    };
    format!(
        "{out}: a random {} {stored}, seed {}\n\
         {} in {} {files} of weights\n\
         next: moeflux generate --model {out} -n 32 \"Hello\"",
        config.model_type(),
        args.seed,
        ByteCount(n_bytes),
        shards.len(),
    )
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod gguf_tests;
