//! The options that several subcommands share.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use moeflux::backend::Arithmetic;
use moeflux::config::{BackendKind, Budget};

use crate::ranges;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// A GPU if there is one that can run the model, else the CPU
    Auto,
    /// Threads and vector instructions
    Cpu,
    /// Metal, Vulkan or DX12, in f32
    Gpu,
    /// Scalar and slow: what the others are compared with
    Reference,
}

impl From<BackendName> for BackendKind {
    fn from(name: BackendName) -> Self {
        match name {
            BackendName::Reference => Self::Reference,
            BackendName::Auto | BackendName::Cpu | BackendName::Gpu => Self::Cpu,
        }
    }
}

/// How experts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IoName {
    /// What is faster on this machine for this model
    Auto,
    /// Past the page cache, into a pool of the program's own
    Direct,
    /// Through the page cache of the system
    PageCache,
}

/// Whether checksums are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Checksums {
    /// Yes: a flipped bit is found, and read again
    On,
    /// No: the drive is believed
    Off,
}

/// How finely keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvBits {
    /// Half the memory of a context and less to read for long ones, but rounded more
    #[value(name = "8")]
    Eight,
    /// Half precision
    #[value(name = "16")]
    Sixteen,
}

impl ModelArgs {
    /// What `--precise` and `--kv-bits` ask for.
    pub(crate) fn arithmetic(&self) -> Arithmetic {
        match (self.precise, self.kv_bits) {
            (true, _) => Arithmetic::F32,
            (false, Some(KvBits::Eight)) => Arithmetic::Int8Kv8,
            (false, Some(KvBits::Sixteen) | None) => Arithmetic::Int8,
        }
    }
}

/// Which model, and how it is run.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    /// Folder with config.json, *.safetensors and tokenizer.json [default: the model in the box]
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// What computes
    #[arg(long, value_enum, default_value = "cpu")]
    pub(crate) backend: BackendName,
    /// Which GPU: its number in `moeflux doctor`, or a part of its name [default: the first that is
    /// no software]
    #[arg(long, value_name = "NAME|INDEX")]
    pub(crate) gpu: Option<String>,
    /// Memory of the GPU that the model may use. auto: what it can spare
    #[arg(long, value_name = "SIZE|auto", value_parser = ranges::budget, default_value = "auto")]
    pub(crate) gpu_memory: Budget,
    /// Keep activations, keys and values in f32; the default rounds them to int8 and f16
    #[arg(long)]
    pub(crate) precise: bool,
    /// Bits of each kept key and value [default: 16, with --precise 32]
    #[arg(long, value_enum, value_name = "N", conflicts_with = "precise")]
    pub(crate) kv_bits: Option<KvBits>,
    /// Kernels of another instruction set; results stay the same
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) isa: Option<String>,
    /// Write which experts each token chose, for `moeflux replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Threads that compute [default: all cores]
    #[arg(long, value_name = "N", value_parser = ranges::threads)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Tokens computed together while reading a prompt; changes speed and memory, never the result
    /// [default: 512; for a long prompt more where experts are streamed, fewer where memory is
    /// short]
    #[arg(long, value_name = "N", value_parser = ranges::chunk)]
    pub(crate) chunk: Option<NonZeroUsize>,
    /// Memory that the whole process may use, as in 24G; what has no room stays on the drive.
    /// auto: what the machine can spare
    #[arg(long, value_name = "SIZE|auto", value_parser = ranges::budget, default_value = "auto")]
    pub(crate) memory: Budget,
    /// How experts are read that have no room in memory
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) io: IoName,
    /// Folder on a second drive with the same files: reads are spread over both
    #[arg(long, value_name = "DIR")]
    pub(crate) mirror: Option<PathBuf>,
    /// Whether all weights are compared with their checksums as they are read, where there are any:
    /// in packed folders, and in folders that `moeflux doctor --deep` has written some to
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) checksums: Checksums,
    /// At most so many experts in memory, whatever --memory says
    #[arg(long, value_name = "N", value_parser = ranges::slots, hide = true)]
    pub(crate) slots: Option<NonZeroUsize>,
    /// Never read an expert before it is asked for
    #[arg(long, hide = true)]
    pub(crate) no_look_ahead: bool,
}
