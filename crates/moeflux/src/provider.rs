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
        BufferId, ExpertIdx, LayerIdx, MatrixId, Position, StateId, TableId, TokenId, VectorId,
    };
}

/// External failures.
pub mod error {
    pub use crate::error::{ByteCount, Error, Remedy, Result, grouped};
}

/// Model files and their headers.
pub mod format {
    pub use crate::format::{
        AlteredDocument, BlockType, Checkpoint, CheckpointSums, ConfigSection, DType, DocumentSum,
        FileSums, Gguf, GgufHeader, GgufHeaderError, HeaderTensor, Metadata, MetadataValue,
        NewGguf, NewPairs, NewTensor, NewValue, NpyWriter, PACK_JOURNAL, PACK_METADATA,
        PACK_SUMS_NAME, PackSums, PackedBank, PackedFile, PackedFolder, PackedKind, PackedMatrix,
        PackedNorms, PackedRole, PackedRows, PackedSpread, ParseError, RECORD_ALIGN, RawConfig,
        SUMS_FILE_NAME, SafetensorsHeader, ShardFile, ShardIndex, SumTable, SumUnit, SumsDocument,
        TensorEntry, TensorUnit, gguf_at, new_gguf, new_header, new_index, packed_metadata,
        parse_gguf, parse_header, parse_index, parse_json, parse_packed, read_file, tensor_units,
        write_json,
    };
}

/// The contents of a config.
pub mod spec {
    pub use crate::spec::{
        Activation, AttentionBias, AttentionSpec, BlockIndexerSpec, Family, FfnSpec, GateFunction,
        GatedDeltaSpec, HeadOrder, IndexerSpec, LayerSpec, Llama3Spec, MixerSpec, MlaSpec,
        ModelSpec, MoeSpec, NativeFormat, NgramSpec, Pairing, PositionChoice, QkNorm, QuantParams,
        Quantisation, RopeScaling, RopeSpec, RouterSpec, SharedExpertSpec, StreamSpec, YarnSpec,
    };
}

/// Tensors: their locations, and those in memory.
pub mod weights {
    pub use crate::weights::{
        BankPart, BlockShape, ExpertBank, ExpertLayout, ExpertOffsets, ExpertView, FileExtent,
        FiniteFormat, GgufTypes, KindCount, KnownIntegers, Manifest, ManifestOrigin, MatrixSource,
        MatrixSpan, OwnRows, OwnedMatrix, PageCaching, PartNames, PartRole, Progress,
        QuantisedRows, Records, RowBlocks, RowPlace, RowRun, RowStorage, RowStride, RowTable,
        Shares, SkipReason, SkippedGroup, StoredVector, SyntheticCheckpoint, SyntheticKind,
        SyntheticRole, SyntheticTensor, TableValues, ValueSelection, ValueTransform, VectorSource,
        Weights, block_kind, load,
    };
}

/// The routed experts of a model.
pub mod experts {
    pub use crate::experts::{
        ArrivalOrder, Arrived, ArrivedExpert, ExpertRequest, Experts, ResidentExperts, RestStats,
        SlotExperts, for_each_expert,
    };

    /// Which experts stay in memory.
    pub mod policy {
        pub use crate::experts::policy::N_SLOTS_IN_TURN;
    }

    /// Prediction of the next experts.
    pub mod predict {
        pub use crate::experts::predict::{GuessStage, Quality};
    }

    /// Replay of a trace under other budgets.
    pub mod replay {
        pub use crate::experts::replay::{Replayed, Tally, bound, replay};
    }

    /// Experts that are read from drives.
    pub mod stream {
        pub use crate::experts::stream::{
            DeviceMove, Drives, ExpertStream, MappedSlot, MappedSlots, N_ROWS_ANY_ORDER,
            PROBE_BYTES, ReadPurpose, SlotMapping, SlotShape, StreamConfig, StreamModel,
            StreamStats, choose_way, drive_speed, probe_of, slot_shape,
        };
    }

    /// Records of the experts that the rows of an answer chose.
    pub mod trace {
        pub use crate::experts::trace::{
            LayerShape, N_ROWS_MAX, StepKind, Trace, TraceBlock, TraceHeader, TraceUse, TraceWriter,
        };
    }
}

/// Rows of tables that are read from drives.
pub mod rows {
    pub use crate::rows::{NgramHash, RowStats};
}

/// The operations of a plan.
pub mod ops {
    pub use crate::ops::{
        Activate, Add, Attention, Batch, BufferSpec, CausalConv, ChosenPositions, Combine,
        DeltaGates, DeltaShape, Embed, ExpertBiases, ExpertDown, ExpertFfn, ExpertUp, Gain,
        GatedDelta, HeadDot, HeadMatMul, Heads, KeptInputs, KvKind, L2Norm, LayerNorm, LayerState,
        MatMul, MlaAttention, N_OUTPUTS_MAX, NormGate, Op, Orientation, Plan, PlanId, PoolKeys,
        Purpose, RmsNorm, Rope, Route, RouterKind, Routes, Row, RowKind, RowSet, Segment,
        SelectPositions, SelectRows, StateSpec, StreamBase, StreamRead, StreamWeights, StreamWrite,
        SwiGlu, TopK, Workspace,
    };
}

/// Backends, which run plans.
pub mod backend {
    pub use crate::backend::{
        Arithmetic, Backend, DeviceNames, ExpertSharding, ExpertTiers, SessionStates, ShardValues,
        StatePart, TierStats,
    };

    /// Memory budget from which sessions book.
    pub mod room {
        pub use crate::backend::session_budget::{Booking, SessionBudget};
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
    pub use crate::families::{LayerPlan, ModelPlan, MoePlan, ShardedExperts, TableLookup};
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
        Coverage, Damage, DamagedPart, Documents, PackOptions, PackReport, Packing, SourceHandling,
        Verified, WORKING_BYTES_MAX, lacks_sums, verify, verify_with, write_sums,
    };
}

/// Several machines that run one model.
pub mod ranks {
    pub use crate::ranks::{
        KeepAlive, LinkStats, LocalRanks, LocalSettings, RankFault, RankGroup, RankTimes,
        RankTopology, Ranks,
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
        Host, Memory, MemoryLayout, Placement, PromptSteps, PromptTerms, SessionTerms, SlotLender,
        UNSAID_BYTES, n_experts_of_chunk, step_bytes,
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
    pub use crate::drives::PROBE_TIME;
    pub use crate::engine::{Engine, EngineSpec, kernels_named};
}
