//! Options shared by several subcommands.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use moeflux::provider::config::BackendKind;
use moeflux::provider::ranks::RankGroup;
use moeflux::{Arithmetic, Budget};

use crate::failure::{CommandFailure, CommandResult};
use crate::options::ranges;
use crate::system::network::Delay;

/// The backend that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// A GPU that has room for the whole model, otherwise the CPU
    Auto,
    /// The CPU, with threads and vector instructions
    Cpu,
    /// A GPU through Metal, Vulkan or DX12, in f32
    Gpu,
    /// Slow scalar code that the others are compared with
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
    /// The faster way on this machine for this model
    Auto,
    /// Bypass the page cache and use the program's own pool
    Direct,
    /// Use the page cache of the system
    PageCache,
}

/// Whether checksums are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Checksums {
    /// Compare: a flipped bit is detected and the data is read again
    On,
    /// Do not compare: trust the drive
    Off,
}

/// How finely keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvBits {
    /// Half the memory for a context, and less to read for a long one. Less precise:
    /// a mean KL divergence of 1.7e-3 instead of 7.5e-4 with real weights, see docs/accuracy.md
    #[value(name = "8")]
    Eight,
    /// Half precision
    #[value(name = "16")]
    Sixteen,
}

impl ModelArgs {
    /// Returns the backend. Options that name a GPU imply it.
    pub(crate) fn backend(&self) -> CommandResult<BackendName> {
        let gpu_option = match (&self.gpu, &self.gpu_memory) {
            (Some(_), _) => Some("--gpu"),
            (None, Some(_)) => Some("--gpu-memory"),
            (None, None) => None,
        };
        match (self.backend, gpu_option) {
            (Some(name @ (BackendName::Cpu | BackendName::Reference)), Some(option)) => {
                let name = name.to_possible_value().map(|it| it.get_name().to_owned());
                let name = name.unwrap_or_default();
                let problem = format!("{option} selects a GPU, but --backend {name} uses none");
                Err(CommandFailure::Usage(problem))
            }
            (None | Some(BackendName::Auto), Some(_)) => Ok(BackendName::Gpu),
            (name, _) => Ok(name.unwrap_or(BackendName::Auto)),
        }
    }

    /// Returns the same options for this process alone, without other ranks.
    pub(crate) fn alone(&self) -> Self {
        Self { group: None, ..self.clone() }
    }

    /// Returns the arithmetic selected by `--precise` and `--kv-bits`.
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
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct ModelArgs {
    /// Folder with config.json, *.safetensors and tokenizer.json, a GGUF file, or a model of the
    /// Hugging Face hub: OWNER/NAME, optionally with :QUANT for a kind of its GGUF files and
    /// @REVISION. An existing path takes precedence. A missing model is downloaded after you
    /// confirm [default: the demo model]
    #[arg(long, value_name = "DIR|FILE.gguf|OWNER/NAME[:QUANT]")]
    pub(crate) model: Option<PathBuf>,
    /// Download a missing model without asking
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    /// tokenizer.json to use instead of the model's own, for a GGUF file with an unknown tokenizer
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Backend that runs the model [default: auto; gpu with --gpu or --gpu-memory]
    #[arg(long, value_enum)]
    backend: Option<BackendName>,
    /// GPU to use: its number in `moeflux doctor`, or part of its name [default: the first one that
    /// is not a software driver]
    #[arg(long, value_name = "NAME|INDEX")]
    pub(crate) gpu: Option<String>,
    /// GPU memory that the model may use [default: auto, as much as the GPU can spare]
    #[arg(long, value_name = "SIZE|auto", value_parser = ranges::budget)]
    pub(crate) gpu_memory: Option<Budget>,
    /// Use f32 for activations, keys and values; the default rounds them to int8 and f16
    #[arg(long)]
    pub(crate) precise: bool,
    /// Bits per stored key and value [default: 16, with --precise 32]
    #[arg(long, value_enum, value_name = "N", conflicts_with = "precise")]
    pub(crate) kv_bits: Option<KvBits>,
    /// Use the kernels of another instruction set; results stay the same
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) isa: Option<String>,
    /// Write the experts that each token chose to this file, for `moeflux replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Number of compute threads [default: one per physical performance core]
    #[arg(long, value_name = "N", value_parser = ranges::threads)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Tokens of a prompt that are computed together; changes speed and memory, never the result
    /// [default: 512; more for a long prompt if experts are streamed, fewer if memory is short]
    #[arg(long, value_name = "N", value_parser = ranges::chunk)]
    pub(crate) chunk: Option<NonZeroUsize>,
    /// Memory that the whole process may use, for example 24G; experts that do not fit stay on the
    /// drive. auto: as much as the machine can spare
    #[arg(long, value_name = "SIZE|auto", value_parser = ranges::budget, default_value = "auto")]
    pub(crate) memory: Budget,
    /// How to read experts that do not fit into memory
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) io: IoName,
    /// Folder on a second drive with the same files; reads are spread over both drives. On start,
    /// it is compared with the model's folder: headers, small files, parts of all resident tensors
    /// and 1,000 blocks of experts; each read is also compared with its checksum, if there is one
    #[arg(long, value_name = "DIR")]
    pub(crate) mirror: Option<PathBuf>,
    /// Whether to compare weights with their checksums as they are read. Packed folders have
    /// checksums, and so do folders for which `moeflux doctor --deep` has written them
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) checksums: Checksums,
    /// Maximum number of experts in memory, whatever --memory says
    #[arg(long, value_name = "N", value_parser = ranges::slots, hide = true)]
    pub(crate) slots: Option<NonZeroUsize>,
    /// Never read an expert before it is requested
    #[arg(long, hide = true)]
    pub(crate) no_look_ahead: bool,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// What connects this process to the other ranks
    #[arg(skip)]
    pub(crate) group: Option<RankGroup>,
}

/// Equals the default of `--rank-timeout`.
const RANK_TIMEOUT: Duration = Duration::from_secs(30);

/// How processes of an MPI launcher run a model together.
#[derive(Args, Clone, Debug)]
pub(crate) struct RankArgs {
    /// Number of processes of an MPI launcher that run the model together; 1: each runs by itself
    /// [default: as many as the launcher started]
    #[arg(id = "ranks", long, value_name = "N", value_parser = ranges::ranks)]
    pub(crate) n_ranks: Option<NonZeroUsize>,
    /// Relative shares of every expert that the ranks have, for example 2,1,1 [default: equal]
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = ranges::rank_share)]
    pub(crate) shares: Vec<NonZeroU32>,
    /// Seconds that a rank waits for the others before all give up
    #[arg(long, value_name = "SECONDS", value_parser = ranges::rank_timeout, default_value = "30")]
    pub(crate) rank_timeout: Duration,
    /// Lets messages arrive so much later, to see what a network would do: as `plan --network`
    #[arg(long, value_name = "NETWORK", value_parser = ranges::rank_delay, hide = true)]
    pub(crate) rank_delay: Option<Delay>,
}

impl RankArgs {
    /// For a command without options for ranks.
    pub(crate) const USUAL: Self =
        Self { n_ranks: None, shares: Vec::new(), rank_timeout: RANK_TIMEOUT, rank_delay: None };
}
