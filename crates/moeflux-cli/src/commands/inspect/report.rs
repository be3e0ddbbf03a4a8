//! The printed numbers of a blueprint.
//!
//! **Invariant:** every number is counted from the bound tensors, none comes from a separate
//! formula. Names include their units, also in the JSON: scripts rely on them.

use moeflux::Arithmetic;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::ops::KvKind;
use moeflux::provider::spec::{
    FfnSpec, LayerSpec, MixerSpec, MoeSpec, NativeFormat, NgramSpec, PositionChoice, QkNorm,
    QuantParams, RopeScaling, RouterSpec, StreamSpec,
};
use moeflux::provider::weights::{
    Manifest, ManifestOrigin, SkipReason, SkippedGroup, SyntheticKind, VectorSource,
};
use moeflux_kernels::{Biases, BlockKind, Fp8, MatrixKind};
use serde_json::{Value, json};

/// Positions for which the state's size is given.
pub(super) const N_POSITIONS: u64 = 1000;

/// The format of keys and values in the default arithmetic.
pub(super) const KV_KIND: KvKind = Arithmetic::Int8.kv_kind();

/// The alternative format, selected by `--kv-bits 8`.
pub(super) const KV8_KIND: KvKind = Arithmetic::Int8Kv8.kv_kind();

/// The files of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InspectedFiles {
    pub(super) n_files: usize,
    pub(super) n_bytes: u64,
    /// Whether `moeflux pack` wrote them.
    pub(super) is_packed: bool,
}

/// A number of items, and their bytes as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorCount {
    pub(super) what: String,
    pub(super) n: usize,
    pub(super) n_bytes: u64,
}

/// The quantisation of matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quantised {
    pub(super) default: Option<QuantParams>,
    pub(super) native: Option<NativeFormat>,
    /// The kind of most bytes, if neither of the above is known.
    pub(super) mostly: Option<MainKind>,
    /// Matrices stored in another way.
    pub(super) n_otherwise: usize,
}

/// The kind that most bytes are stored in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MainKind {
    pub(super) kind: String,
    /// Its percentage of all bytes of matrices.
    pub(super) percent: u64,
    /// Whether any matrix is quantised.
    pub(super) has_codes: bool,
}

/// Everything that is printed about a model.
#[derive(Clone, Debug)]
pub(super) struct InspectReport {
    pub(super) family: &'static str,
    pub(super) model_type: String,
    /// `None` if the model does not exist and the report describes what it would be.
    pub(super) files: Option<InspectedFiles>,
    pub(super) hidden: usize,
    pub(super) streams: Option<StreamSpec>,
    pub(super) ngrams: Vec<NgramSpec>,
    pub(super) vocab: usize,
    pub(super) context_max: usize,
    pub(super) tied_embeddings: bool,
    pub(super) n_layers: usize,
    /// Distinct mixers in order, and the number of layers with each.
    pub(super) mixers: Vec<(MixerSpec, usize)>,
    /// As for `mixers`.
    pub(super) ffns: Vec<(FfnSpec, usize)>,
    pub(super) quantised: Quantised,
    pub(super) tensors: Vec<TensorCount>,
    pub(super) skipped: Vec<SkippedGroup>,
    /// Bytes of all used tensors, as stored.
    pub(super) stored_bytes: u64,
    /// Bytes in memory, with vectors widened.
    pub(super) resident_bytes: u64,
    /// The part of these that is read from a drive where memory is short: the feed-forwards of a
    /// dense model.
    pub(super) streamable_bytes: u64,
    /// Bytes of all routed experts, as stored.
    pub(super) experts_bytes: u64,
    /// Bytes of the smallest and largest routed expert.
    pub(super) expert_bytes: Option<(u64, u64)>,
    pub(super) routed_bytes_per_token: u64,
    /// Rows and bytes of the tables whose rows are read one by one.
    pub(super) tables: (u64, u64),
    /// Rows of these that a token needs, and their bytes.
    pub(super) rows_per_token: (usize, u64),
    pub(super) state_bytes_per_1000_tokens: u64,
    pub(super) kv8_bytes_per_1000_tokens: u64,
    pub(super) state_fixed_bytes: u64,
}

impl InspectReport {
    pub(super) fn new(
        blueprint: &Blueprint,
        model_type: &str,
        files: Option<InspectedFiles>,
    ) -> Self {
        let Blueprint { spec, plan, manifest, streamed, .. } = blueprint;
        let layers = &spec.layers;
        let sizes = || manifest.banks.iter().map(|bank| bank.layout.stored_bytes());
        let tensors = tensors(manifest);
        Self {
            family: spec.family.name(),
            model_type: model_type.to_owned(),
            files,
            hidden: spec.hidden,
            streams: spec.streams,
            ngrams: spec.ngrams.clone(),
            vocab: spec.vocab,
            context_max: spec.context_max,
            tied_embeddings: spec.tied_embeddings,
            n_layers: layers.len(),
            mixers: distinct(layers.iter().map(|layer: &LayerSpec| &layer.mixer)),
            ffns: distinct(layers.iter().map(|layer: &LayerSpec| &layer.ffn)),
            quantised: quantised(blueprint),
            stored_bytes: tensors.iter().map(|count| count.n_bytes).sum(),
            tensors,
            skipped: manifest.skipped.clone(),
            resident_bytes: manifest.resident_bytes(),
            streamable_bytes: streamed.as_ref().map_or(0, |it| it.manifest.expert_bytes()),
            experts_bytes: manifest.expert_bytes(),
            expert_bytes: sizes().min().zip(sizes().max()),
            routed_bytes_per_token: blueprint.routed_bytes_per_token(),
            tables: (
                manifest.tables.iter().map(|table| table.n_rows as u64).sum(),
                manifest.table_bytes(),
            ),
            rows_per_token: blueprint.rows_per_token(),
            state_bytes_per_1000_tokens: plan.state.bytes_per_position(KV_KIND) * N_POSITIONS,
            kv8_bytes_per_1000_tokens: plan.state.bytes_per_position(KV8_KIND) * N_POSITIONS,
            state_fixed_bytes: plan.state.fixed_bytes(),
        }
    }

    /// Returns the report as JSON.
    pub(super) fn to_json(&self) -> Value {
        let mixers = self.mixers.iter().map(|(mixer, n)| with_count(mixer_json(mixer), *n));
        let ffns = self.ffns.iter().map(|(ffn, n)| with_count(ffn_json(ffn), *n));
        let tensors = self
            .tensors
            .iter()
            .map(|it| json!({"kind": it.what, "n_tensors": it.n, "stored_bytes": it.n_bytes}));
        let skipped = self.skipped.iter().map(|it| {
            json!({
                "reason": reason_name(it.reason),
                "pattern": it.pattern,
                "n_tensors": it.n_tensors,
                "stored_bytes": it.n_bytes,
            })
        });
        json!({
            "family": self.family,
            "model_type": self.model_type,
            "exists": self.files.is_some(),
            "n_files": self.files.map(|files| files.n_files),
            "files_bytes": self.files.map(|files| files.n_bytes),
            "is_packed": self.files.is_some_and(|files| files.is_packed),
            "hidden": self.hidden,
            "n_streams": self.streams.map_or(1, |streams| streams.n_streams),
            "ngrams": self.ngrams.iter().map(ngrams_json).collect::<Vec<_>>(),
            "vocab": self.vocab,
            "context_max": self.context_max,
            "tied_embeddings": self.tied_embeddings,
            "n_layers": self.n_layers,
            "mixers": mixers.collect::<Vec<_>>(),
            "ffns": ffns.collect::<Vec<_>>(),
            "quantisation": {
                "bits": self.quantised.default.map(|it| it.bits),
                "group": self.quantised.default.map(|it| it.group),
                "is_fp8": matches!(self.quantised.native, Some(NativeFormat::Fp8(_))),
                "format": self.quantised.native.map(NativeFormat::name),
                "mostly": self.quantised.mostly.as_ref().map(|it| it.kind.as_str()),
                "n_otherwise": self.quantised.n_otherwise,
            },
            "tensors": tensors.collect::<Vec<_>>(),
            "skipped": skipped.collect::<Vec<_>>(),
            "stored_bytes": self.stored_bytes,
            "resident_bytes": self.resident_bytes,
            "streamable_bytes": self.streamable_bytes,
            "experts_bytes": self.experts_bytes,
            "expert_bytes_min": self.expert_bytes.map(|(min, _)| min),
            "expert_bytes_max": self.expert_bytes.map(|(_, max)| max),
            "routed_bytes_per_token": self.routed_bytes_per_token,
            "table_rows": self.tables.0,
            "table_bytes": self.tables.1,
            "rows_per_token": self.rows_per_token.0,
            "row_bytes_per_token": self.rows_per_token.1,
            "kv_kind": KV_KIND.name(),
            "state_bytes_per_1000_tokens": self.state_bytes_per_1000_tokens,
            "kv8_bytes_per_1000_tokens": self.kv8_bytes_per_1000_tokens,
            "state_fixed_bytes": self.state_fixed_bytes,
        })
    }
}

fn distinct<'a, T: Clone + PartialEq + 'a>(items: impl Iterator<Item = &'a T>) -> Vec<(T, usize)> {
    let mut counts: Vec<(T, usize)> = Vec::new();
    for item in items {
        match counts.iter_mut().find(|(known, _)| known == item) {
            Some((_, n)) => *n += 1,
            None => counts.push((item.clone(), 1)),
        }
    }
    counts
}

fn quantised(blueprint: &Blueprint) -> Quantised {
    let stated = &blueprint.spec.quantisation;
    let (default, native) = match &blueprint.manifest.origin {
        ManifestOrigin::Synthetic(checkpoint) => match checkpoint.kind {
            SyntheticKind::Affine(params) | SyntheticKind::AffineExperts(params) => {
                (Some(params), None)
            }
            SyntheticKind::Fp8 => (None, Some(NativeFormat::Fp8(Fp8::DEEPSEEK.spread))),
            SyntheticKind::Mxfp4 => (None, Some(NativeFormat::Mxfp4)),
            SyntheticKind::Ints(params) => (None, Some(NativeFormat::Ints(params))),
            SyntheticKind::Float | SyntheticKind::Gguf(_) => (None, None),
        },
        ManifestOrigin::Checkpoint => (stated.default, stated.native),
    };
    let kinds = blueprint.manifest.kinds();
    let is_main = |kind: MatrixKind| match (default, native, kind) {
        (Some(params), _, MatrixKind::Affine(it)) => {
            (it.bits, usize::from(it.group)) == (params.bits, usize::from(params.group))
        }
        (None, Some(NativeFormat::Fp8(_)), MatrixKind::Fp8(_)) => true,
        (None, Some(NativeFormat::Mxfp4), MatrixKind::Block(block)) => {
            [BlockKind::MXFP4, BlockKind::MXFP4_APART].contains(&block)
        }
        (None, Some(NativeFormat::Ints(params)), MatrixKind::Affine(it)) => {
            it.bits == params.bits && it.biases == Biases::Implied
        }
        _ => false,
    };
    // A default that applies to no matrix is dropped.
    let is_named = kinds.iter().any(|it| is_main(it.kind));
    let (default, native) = if is_named { (default, native) } else { (None, None) };
    let otherwise = kinds.iter().filter(|it| is_named && !is_main(it.kind));
    let all_bytes: u64 = kinds.iter().map(|it| it.n_bytes).sum();
    let most = kinds.first().filter(|_| !is_named).map(|it| MainKind {
        kind: it.kind.to_string(),
        percent: (100 * it.n_bytes).checked_div(all_bytes).unwrap_or(0),
        has_codes: kinds.iter().any(|it| !matches!(it.kind, MatrixKind::Float(_))),
    });
    let n_otherwise = otherwise.map(|it| it.n_matrices).sum();
    Quantised { default, native, mostly: most, n_otherwise }
}

/// Counts routed and resident tensors by kind, as stored.
fn tensors(manifest: &Manifest) -> Vec<TensorCount> {
    let kinds = manifest.kinds();
    let matrices = kinds.iter().map(|count| TensorCount {
        what: count.kind.to_string(),
        n: count.n_matrices,
        n_bytes: count.n_bytes,
    });
    let stored = || {
        manifest.vectors.iter().filter_map(|vector| match vector {
            VectorSource::Stored(stored) => Some(stored),
            VectorSource::Constant(_) => None,
        })
    };
    let n_bytes = stored().map(|vector| vector.extent.len_bytes).sum();
    let vectors = TensorCount { what: "vectors".to_owned(), n: stored().count(), n_bytes };
    let tables = TensorCount {
        what: "tables of rows".to_owned(),
        n: manifest.tables.len(),
        n_bytes: manifest.table_bytes(),
    };
    let tables = Some(tables).filter(|tables| tables.n > 0);
    matrices.chain([vectors]).chain(tables).collect()
}

pub(super) const fn reason_name(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::Vision => "image encoder",
        SkipReason::Mtp => "multi-token prediction",
        SkipReason::Indexer => "choice of positions in long contexts",
        SkipReason::Derived => "derived from others",
    }
}

fn with_count(mut description: Value, n_layers: usize) -> Value {
    description["n_layers"] = json!(n_layers);
    description
}

fn mixer_json(mixer: &MixerSpec) -> Value {
    match mixer {
        MixerSpec::Attention(spec) => json!({
            "kind": "attention",
            "n_heads": spec.n_heads,
            "n_kv_heads": spec.n_kv_heads,
            "head_dim": spec.head_dim,
            "n_rotated": spec.rope.n_rotated,
            "rope_scaling": scaling_name(&spec.rope.scaling),
            "has_gate": spec.has_gate,
            "has_qk_norm": spec.norm != QkNorm::None,
            "window": spec.window,
            "has_sinks": spec.has_sinks,
            "choice": spec.indexer.map(|indexer| json!({
                "kind": "blocks",
                "n_blocks": indexer.n_blocks,
                "block": indexer.block,
                "n_heads": indexer.n_heads,
                "head_dim": indexer.head_dim,
            })),
        }),
        MixerSpec::GatedDelta(spec) => json!({
            "kind": "gated_delta",
            "n_k_heads": spec.n_k_heads,
            "n_v_heads": spec.n_v_heads,
            "k_dim": spec.k_dim,
            "v_dim": spec.v_dim,
            "n_taps": spec.n_taps,
        }),
        MixerSpec::Mla(spec) => json!({
            "kind": "mla",
            "n_heads": spec.n_heads,
            "q_rank": spec.q_rank,
            "kv_rank": spec.kv_rank,
            "nope_dim": spec.nope_dim,
            "rope_dim": spec.rope_dim,
            "v_dim": spec.v_dim,
            "rope_scaling": scaling_name(&spec.rope.scaling),
            "choice": spec.choice.map(choice_json),
        }),
    }
}

fn choice_json(choice: PositionChoice) -> Value {
    let n_positions = choice.n_chosen();
    match choice {
        PositionChoice::Own(indexer) => json!({
            "kind": "own",
            "n_positions": n_positions,
            "n_heads": indexer.n_heads,
            "head_dim": indexer.head_dim,
        }),
        PositionChoice::Shared { .. } => json!({"kind": "shared", "n_positions": n_positions}),
    }
}

fn ffn_json(ffn: &FfnSpec) -> Value {
    match ffn {
        FfnSpec::Dense { inner, .. } => json!({"kind": "dense", "inner": inner}),
        FfnSpec::Moe(moe) => json!({
            "kind": "moe",
            "n_experts": moe.n_experts,
            "top_k": moe.top_k,
            "inner": moe.inner,
            "router": router_name(moe),
            "shared_inner": moe.shared.map(|shared| shared.inner),
        }),
    }
}

fn ngrams_json(spec: &NgramSpec) -> Value {
    json!({
        "layer": spec.layer.0,
        "rows_per_token": spec.n_rows(),
        "width": spec.width,
        "n_taps": spec.n_taps,
        "dilation": spec.dilation(),
    })
}

pub(super) const fn router_name(moe: &MoeSpec) -> &'static str {
    match moe.router {
        RouterSpec::Only => "none",
        RouterSpec::Softmax { .. } => "softmax",
        RouterSpec::SigmoidGrouped { .. } => "sigmoid_grouped",
    }
}

pub(super) const fn scaling_name(scaling: &RopeScaling) -> &'static str {
    match scaling {
        RopeScaling::None => "none",
        RopeScaling::Linear { .. } => "linear",
        RopeScaling::Yarn(_) => "yarn",
        RopeScaling::Llama3(_) => "llama3",
        RopeScaling::Stored => "stored",
    }
}
