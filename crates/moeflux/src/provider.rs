//! Items for crates that supply a backend, and for moeflux's own tools and tests. No promise of
//! stability.
//!
//! Programs that use models find what they need at the root of the crate. Each module here
//! re-exports items of the internal module with the same name, so that an item has the same path
//! inside and outside of the crate. Two crates whose types appear in signatures are re-exported
//! whole.

pub use moeflux_io as io;
pub use moeflux_kernels as kernels;

/// Index and identifier types.
pub mod ids {
    pub use crate::ids::{
        BufferId, ExpertIdx, LayerIdx, MatrixId, Position, StateId, TokenId, VectorId,
    };
}

/// External failures.
pub mod error {
    pub use crate::error::{ByteCount, Error, Remedy, Result, grouped};
}

/// Model files and their headers.
pub mod format {
    pub use crate::format::{
        AlteredDocument, BlockType, Checkpoint, DType, DocumentSum, FileSums, Gguf, GgufHeader,
        Header, HeaderTensor, Metadata, NewGguf, NewPairs, NewTensor, NewValue, NpyWriter,
        PACK_JOURNAL, PACK_METADATA, PACK_SUMS_NAME, PackSums, Packed, PackedBank, PackedFile,
        PackedKind, PackedMatrix, PackedNorms, PackedRole, PackedSpread, Problem, RECORD_ALIGN,
        RawConfig, SUMS_FILE_NAME, Section, ShardFile, ShardIndex, Stop, SumTable, SumUnit, Sums,
        SumsDocument, TensorEntry, TensorUnit, Value, gguf_at, new_gguf, new_header, new_index,
        packed_metadata, parse_gguf, parse_header, parse_index, parse_json, parse_packed,
        read_file, tensor_units, write_json,
    };
}

/// The contents of a config.
pub mod spec {
    pub use crate::spec::{
        Activation, AttentionBias, AttentionSpec, ContextLimit, Family, FfnSpec, GatedDeltaSpec,
        HeadOrder, LayerSpec, MixerSpec, MlaSpec, ModelSpec, MoeSpec, NativeFormat, Pairing,
        QkNorm, QuantParams, Quantisation, RopeScaling, RopeSpec, RouterSpec, SharedExpertSpec,
        YarnSpec,
    };
}

/// Tensors: their locations, and those in memory.
pub mod weights {
    pub use crate::weights::{
        BankPart, Change, Copies, EveryRow, ExpertBank, ExpertLayout, ExpertView, Extent, Finite,
        GgufTypes, ImaginedCheckpoint, ImaginedKind, ImaginedRole, ImaginedTensor, KindCount,
        Manifest, MatrixSource, MatrixSpan, Origin, OwnRows, OwnedMatrix, PartNames, PartRole,
        Pick, Places, Progress, QuantisedRows, Records, Shares, SkipReason, SkippedGroup,
        StoredVector, VectorSource, Weights, block_kind, load,
    };
}

/// The routed experts of a model.
pub mod experts {
    pub use crate::experts::{
        Arrived, ArrivedExpert, Experts, Order, Request, ResidentExperts, RestStats, SlotExperts,
        for_each_expert,
    };

    /// Prediction of the next experts.
    pub mod predict {
        pub use crate::experts::predict::{Quality, Stage};
    }

    /// Replay of a trace under other budgets.
    pub mod replay {
        pub use crate::experts::replay::{Replayed, Tally, bound, replay};
    }

    /// Experts that are read from drives.
    pub mod stream {
        pub use crate::experts::stream::{
            Drives, Move, N_ROWS_ANY_ORDER, PROBE_BYTES, ReadFor, SeenSlot, SeenSlots, SlotShape,
            SlotSight, Stream, StreamConfig, StreamModel, StreamStats, choose_way, drive_speed,
            probe_of, slot_shape,
        };
    }

    /// Records of the experts that the rows of an answer chose.
    pub mod trace {
        pub use crate::experts::trace::{
            LayerShape, N_ROWS_MAX, StepKind, Trace, TraceBlock, TraceHeader, TraceUse, TraceWriter,
        };
    }
}

/// The operations of a plan.
pub mod ops {
    pub use crate::ops::{
        Add, Attention, Batch, Best, BufferSpec, CausalConv, Combine, DeltaGates, DeltaShape,
        Embed, ExpertBiases, ExpertDown, ExpertFfn, ExpertUp, GatedDelta, HeadMatMul, Heads,
        KvKind, L2Norm, LayerState, MatMul, MlaAttention, N_OUTPUTS_MAX, Op, Orientation, Plan,
        PlanId, Purpose, RmsNorm, Rope, Route, RouterKind, Routes, Row, RowKind, RowSet, Segment,
        SelectRows, StateSpec, SwiGlu, Workspace,
    };
}

/// Backends, which run plans.
pub mod backend {
    pub use crate::backend::{
        Arithmetic, Backend, DeviceNames, ExpertTiers, ExpertWaves, SessionStates, StatePart,
        TierStats, WaveValues,
    };

    /// Memory budget from which sessions book.
    pub mod room {
        pub use crate::backend::room::{Booking, Room};
    }

    /// The backend for CPUs.
    pub mod cpu {
        pub use crate::backend::cpu::CpuBackend;
    }

    /// The slow scalar backend that the others are compared with.
    pub mod reference {
        pub use crate::backend::reference::ReferenceBackend;
    }
}

/// Plans of a model.
pub mod families {
    pub use crate::families::{DividedExperts, LayerPlan, ModelPlan, MoePlan};
}

/// Everything that headers say about a model.
pub mod blueprint {
    pub use crate::blueprint::Blueprint;
}

/// A model before it is loaded.
pub mod model {
    pub use crate::model::{Headers, Model};
}

/// The packed format.
pub mod pack {
    pub use crate::pack::{
        Coverage, Damage, DamagedPart, Documents, PackOptions, PackReport, Packing, SourceFate,
        Verified, WORKING_BYTES_MAX, lacks_sums, verify, verify_with, write_sums,
    };
}

/// Several machines that run one model.
pub mod ranks {
    pub use crate::ranks::{
        Heart, LinkStats, LocalRanks, LocalSettings, Place, RankFault, RankGroup, RankTimes, Ranks,
    };
}

/// From a batch of rows to logits.
pub mod forward {
    pub use crate::forward::{LoadedModel, Logits, StepProgress};
}

/// From logits to a token.
pub mod sample {
    pub use crate::sample::{
        Choice, LOGPROBS_MAX, LogitMask, PENALTY_MAX, Sampler, SamplerConfig, SamplerDefaults,
    };
}

/// Text and tokens.
#[cfg(feature = "text")]
pub mod text {
    pub use crate::text::{
        BYTE_TOKENS, ChatTemplate, EndTokens, Message, OUTPUT_BYTES_MAX, STOP_STRING_BYTES_MAX,
        SpecialText, SpecialTokens, StopStrings, TemplateOptions, TextStream, Tokenizer,
        byte_tokenizer_config_json, byte_tokenizer_json, tokenizer_bytes,
    };

    use std::path::Path;

    use crate::error::Result;
    use crate::format::Metadata;
    use crate::model_text::ModelText;

    /// Reads the text of a GGUF file from its metadata. A `tokenizer.json` replaces the file's own
    /// tokenizer if it is given, or if it lies next to a file whose tokenizer is not supported.
    ///
    /// # Errors
    ///
    /// If the metadata is invalid; [`crate::Error::UnknownTokenizer`] if the tokenizer is not
    /// supported.
    pub fn text_of_metadata(
        path: &Path,
        metadata: &Metadata,
        tokenizer: Option<&Path>,
        vocab: usize,
    ) -> Result<ModelText> {
        ModelText::of_gguf(path, metadata, tokenizer, vocab)
    }

    /// Reads the tokenizer of a GGUF file from its metadata.
    ///
    /// # Errors
    ///
    /// As [`text_of_metadata`].
    pub fn tokenizer_of_metadata(
        path: &Path,
        metadata: &Metadata,
        vocab: usize,
    ) -> Result<Tokenizer> {
        Tokenizer::of_gguf(path, metadata, vocab)
    }
}

/// Configuration of an engine.
pub mod config {
    pub use crate::builder::Configure;
    pub use crate::config::{
        BackendKind, Budget, CONTEXT_DEFAULT, DeviceMaker, DeviceParts, DriveMaker, EngineConfig,
        N_ROWS_DEFAULT, N_ROWS_MAX, ReadWay, StreamingConfig, n_threads_default,
    };
}

/// Division of memory between the parts of a model.
pub mod budget {
    pub use crate::budget::{
        Division, Host, Layout, Memory, Placement, PromptTerms, SessionTerms, SlotLender,
        UNSAID_BYTES, n_experts_of_wave, step_bytes,
    };
}

/// Sessions.
pub mod session {
    pub use crate::session::{
        Feed, N_CHECKPOINTS_DEFAULT, N_ROWS_BESIDE, OutputOf, Runtime, Session, Snapshot,
        SnapshotHeader, StepOutput, StepUnderWay, Wanted, step,
    };
}

/// From logits to an answer.
#[cfg(feature = "text")]
pub mod generate {
    pub use crate::generate::{Chosen, Event, Finish, Generation, Listener};
}

/// A model that is ready to run.
pub mod engine {
    pub use crate::engine::{Engine, EngineSpec, PROBE_TIME, kernels_named};
}
