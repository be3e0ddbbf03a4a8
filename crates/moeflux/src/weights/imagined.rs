//! A checkpoint in MLX layout that does not exist: for sizes, and for random models.
//!
//! **Invariant:** tensors follow each other without hole, in the order in which they were asked
//! for; names, shapes and types are those that mlx-lm would write. Knows no values.

use std::collections::BTreeMap;

use moeflux_kernels::FloatKind;

use crate::format::DType;
use crate::spec::{Family, MixerSpec, ModelSpec, QuantParams};
use crate::weights::manifest::Extent;
use crate::weights::stored::Wanted;
use crate::weights::table::Found;

/// How an imagined checkpoint is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imagined {
    /// Of every matrix whose columns are whole groups.
    pub params: QuantParams,
    /// Of scales, biases, norms and everything unquantised.
    pub scale: FloatKind,
}

/// What a tensor is for: decides which random values suit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImaginedRole {
    /// Packed codes of a quantised matrix.
    Codes(QuantisedRows),
    /// Its scales.
    Scales(QuantisedRows),
    /// Its biases.
    Biases(QuantisedRows),
    /// A matrix in floating point.
    Matrix {
        /// Inputs of the product.
        n_cols: usize,
    },
    /// The gain of a norm: about 1.
    Gain,
    /// Taps of a convolution.
    Taps {
        /// Taps per channel.
        n_taps: usize,
    },
    /// Logarithm of a decay's speed, per head.
    DecayLog,
    /// Added to something: about 0.
    Bias,
}

/// How the rows of a quantised matrix are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedRows {
    /// Bits and group.
    pub params: QuantParams,
    /// Inputs of the product.
    pub n_cols: usize,
}

/// One tensor that could be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImaginedTensor {
    /// As mlx-lm names it.
    pub name: String,
    /// Type of the values.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: ImaginedRole,
    /// Bytes of all values.
    pub len_bytes: u64,
}

/// All that a writer needs besides values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImaginedCheckpoint {
    /// What holds for matrices without an override.
    pub params: QuantParams,
    /// In the order in which they lie in the file.
    pub tensors: Vec<ImaginedTensor>,
    /// By base name as mlx-lm writes it: the entries of `quantization` besides the default.
    pub overrides: Vec<(String, QuantParams)>,
}

/// Makes up tensors as they are asked for.
#[derive(Debug)]
pub(super) struct Imagination<'a> {
    spec: &'a ModelSpec,
    imagined: Imagined,
    /// By canonical name: those that nobody has taken yet.
    untaken: BTreeMap<String, Found>,
    tensors: Vec<ImaginedTensor>,
    overrides: Vec<(String, QuantParams)>,
    len_bytes: u64,
}

impl<'a> Imagination<'a> {
    pub(super) fn new(spec: &'a ModelSpec, imagined: Imagined) -> Self {
        Self {
            spec,
            imagined,
            untaken: BTreeMap::new(),
            tensors: Vec::new(),
            overrides: Vec::new(),
            len_bytes: 0,
        }
    }

    /// Whether mlx-lm would write a tensor of this canonical name, were it to be used.
    pub(super) fn would_have(&self, name: &str) -> bool {
        let other_layouts: &[&str] = match self.spec.family {
            Family::Qwen3Next => &[".in_proj_qkv.", ".in_proj_z.", ".in_proj_b.", ".in_proj_a."],
            Family::Qwen35Moe => &[".in_proj_qkvz.", ".in_proj_ba."],
            _ => &[".kv_b_proj."],
        };
        let is_tied_head = self.spec.tied_embeddings && name.starts_with("lm_head.");
        let is_loose_expert = name.contains(".mlp.experts.");
        !is_tied_head && !is_loose_expert && !other_layouts.iter().any(|it| name.contains(it))
    }

    pub(super) fn take(&mut self, name: &str) -> Found {
        self.untaken.remove(name).unwrap_or_else(|| {
            // Every path of the binder imagines what it takes.
            unreachable!("imagined tensor `{name}` is bound twice, or before it was imagined")
        })
    }

    /// What was made up.
    pub(super) fn finish(self) -> ImaginedCheckpoint {
        assert!(self.untaken.is_empty(), "imagined, but not bound: {:?}", self.untaken.keys());
        ImaginedCheckpoint {
            params: self.imagined.params,
            tensors: self.tensors,
            overrides: self.overrides,
        }
    }

    /// Adds the tensors of a matrix; answers how it is quantised, if it is.
    pub(super) fn matrix(&mut self, wanted: &Wanted<'_>) -> Option<QuantParams> {
        let Wanted { base, n_stack, n_rows, n_cols } = *wanted;
        let params = self.params_of(base, n_cols);
        let shape = |width: usize| n_stack.into_iter().chain([n_rows, width]).collect::<Vec<_>>();
        let float = dtype_of(self.imagined.scale);
        let weight = format!("{base}.weight");
        let Some(params) = params else {
            self.add(&weight, float, shape(n_cols), ImaginedRole::Matrix { n_cols });
            return None;
        };
        if params != self.imagined.params {
            self.overrides.push((self.mlx_name(base), params));
        }
        let rows = QuantisedRows { params, n_cols };
        let n_groups = n_cols / usize::from(params.group);
        let packed = n_cols * usize::from(params.bits) / 32;
        self.add(&weight, DType::U32, shape(packed), ImaginedRole::Codes(rows));
        self.add(&format!("{base}.scales"), float, shape(n_groups), ImaginedRole::Scales(rows));
        self.add(&format!("{base}.biases"), float, shape(n_groups), ImaginedRole::Biases(rows));
        Some(params)
    }

    /// Adds a vector of the shape that mlx-lm gives it.
    pub(super) fn vector(&mut self, tensor: &str, n_values: usize) {
        let float = dtype_of(self.imagined.scale);
        let (dtype, role) = if tensor.ends_with("conv1d.weight") {
            (float, ImaginedRole::Taps { n_taps: self.n_taps() })
        } else if tensor.ends_with(".A_log") {
            (DType::F32, ImaginedRole::DecayLog)
        } else if tensor.ends_with("e_score_correction_bias") {
            (DType::F32, ImaginedRole::Bias)
        } else if tensor.ends_with("norm.weight") {
            (float, ImaginedRole::Gain)
        } else {
            (float, ImaginedRole::Bias)
        };
        let shape = match role {
            ImaginedRole::Taps { n_taps } => vec![n_values / n_taps, n_taps, 1],
            _ => vec![n_values],
        };
        self.add(tensor, dtype, shape, role);
    }

    fn add(&mut self, name: &str, dtype: DType, shape: Vec<usize>, role: ImaginedRole) {
        let n_values: u64 = shape.iter().map(|&n| n as u64).product();
        let len_bytes = n_values * dtype.bits() / 8;
        let extent = Extent { file_idx: 0, offset_bytes: self.len_bytes, len_bytes };
        self.len_bytes += len_bytes;
        let mlx_name = self.mlx_name(name);
        let found = Found { name: mlx_name.clone(), dtype, shape: shape.clone(), extent };
        let before = self.untaken.insert(name.to_owned(), found);
        assert!(before.is_none(), "imagined tensor `{name}` is bound twice");
        self.tensors.push(ImaginedTensor { name: mlx_name, dtype, shape, role, len_bytes });
    }

    /// How mlx-lm quantises a matrix of this name and width.
    fn params_of(&self, base: &str, n_cols: usize) -> Option<QuantParams> {
        let is_router = base.ends_with(".mlp.gate");
        let is_qwen =
            matches!(self.spec.family, Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen35Moe);
        let params = match (is_router || base.ends_with(".shared_expert_gate"), is_qwen) {
            (true, true) => QuantParams { bits: 8, group: 64 },
            (true, false) => return None,
            (false, _) => self.imagined.params,
        };
        n_cols.is_multiple_of(usize::from(params.group)).then_some(params)
    }

    fn mlx_name(&self, name: &str) -> String {
        match self.spec.family {
            Family::Qwen35Moe => format!("language_model.{name}"),
            _ => name.to_owned(),
        }
    }

    fn n_taps(&self) -> usize {
        let taps = self.spec.layers.iter().find_map(|layer| match &layer.mixer {
            MixerSpec::GatedDelta(delta) => Some(delta.n_taps),
            MixerSpec::Attention(_) | MixerSpec::Mla(_) => None,
        });
        taps.expect("only gated DeltaNet has a convolution")
    }
}

const fn dtype_of(kind: FloatKind) -> DType {
    match kind {
        FloatKind::F32 => DType::F32,
        FloatKind::F16 => DType::F16,
        FloatKind::Bf16 => DType::Bf16,
    }
}
