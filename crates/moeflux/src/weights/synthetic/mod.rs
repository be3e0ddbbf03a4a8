//! A synthetic checkpoint, in MLX layout or as published: for sizes, and for random models.
//!
//! **Invariant:** tensors are contiguous, in the order in which they were requested; names, shapes
//! and types are those that mlx-lm would write. This module knows no values.

pub(super) mod gguf_types;

use std::collections::BTreeMap;

use moeflux_kernels::{BlockKind, FloatKind};

use crate::format::{DType, in_gguf};
use crate::spec::{Family, MixerSpec, ModelSpec, QuantParams};
use crate::weights::synthetic::gguf_types::GgufTypes;
use crate::weights::tensors::{FileExtent, FoundTensor, RequiredMatrix, dtype_of};

/// Rows and columns that share an FP8 scale.
const SYNTHETIC_BLOCK: usize = 128;

/// How the matrices of a synthetic checkpoint are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticKind {
    /// As mlx-lm quantises matrices whose columns are whole groups; the config's overrides for
    /// single tensors apply.
    Affine(QuantParams),
    /// The same for routed experts; everything else without quantisation.
    AffineExperts(QuantParams),
    /// As published in FP8 blocks: all but embeddings, head, routers and gates.
    Fp8,
    /// Routed experts in MXFP4, with MLX names; everything else without quantisation.
    Mxfp4,
    /// Routed experts in integers as compressed-tensors packs them, one by one; everything else
    /// without quantisation.
    Ints(QuantParams),
    /// As published without quantisation.
    Float,
    /// As a GGUF file.
    Gguf(GgufTypes),
}

/// How a synthetic checkpoint is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyntheticFormat {
    /// Storage of matrices.
    pub kind: SyntheticKind,
    /// Float type of scales, biases, norms and everything unquantised.
    pub scale: FloatKind,
}

/// Purpose of a tensor, which determines suitable random values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticRole {
    /// Packed codes of a quantised matrix.
    Codes(QuantisedRows),
    /// Scales of a quantised matrix.
    Scales(QuantisedRows),
    /// Biases of a quantised matrix.
    Biases(QuantisedRows),
    /// Power-of-two exponents that scale the 4-bit floats of a matrix.
    Exponents {
        /// Inputs of the product.
        n_cols: usize,
    },
    /// Scales of symmetric integers, whose middle code is zero.
    SymmetricScales(QuantisedRows),
    /// The rows and columns of a matrix, as values.
    Shape([usize; 2]),
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
    /// Logarithm of a decay rate, per head.
    DecayLog,
    /// Negated decay rate, per head.
    Decay,
    /// A bias: about 0.
    Bias,
    /// The given integers.
    Integers,
}

/// Shape of the rows of a quantised matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedRows {
    /// Bits and group size.
    pub params: QuantParams,
    /// Inputs of the product.
    pub n_cols: usize,
}

/// One tensor that could be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticTensor {
    /// Name in an mlx-lm folder or in a GGUF file.
    pub name: String,
    /// Name in the family's published model, or in mlx-lm.
    pub canonical: String,
    /// Type of the values.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Purpose of the tensor.
    pub role: SyntheticRole,
    /// The values of [`SyntheticRole::Integers`].
    pub integers: Vec<i64>,
    /// Bytes of all values.
    pub len_bytes: u64,
}

/// Everything that a writer needs apart from the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticCheckpoint {
    /// How matrices without an override are stored.
    pub kind: SyntheticKind,
    /// Tensors in file order.
    pub tensors: Vec<SyntheticTensor>,
    /// By base name as mlx-lm writes it: the entries of `quantization` apart from the default.
    pub overrides: Vec<(String, QuantParams)>,
}

/// Creates tensors as they are requested.
#[derive(Debug)]
pub(super) struct SyntheticBuilder<'a> {
    spec: &'a ModelSpec,
    format: SyntheticFormat,
    /// By canonical name: tensors that have not been taken yet.
    untaken: BTreeMap<String, FoundTensor>,
    tensors: Vec<SyntheticTensor>,
    overrides: Vec<(String, QuantParams)>,
    len_bytes: u64,
}

impl<'a> SyntheticBuilder<'a> {
    pub(super) fn new(spec: &'a ModelSpec, format: SyntheticFormat) -> Self {
        Self {
            spec,
            format,
            untaken: BTreeMap::new(),
            tensors: Vec::new(),
            overrides: Vec::new(),
            len_bytes: 0,
        }
    }

    /// Returns whether mlx-lm, or a GGUF file, would have a tensor of this canonical name.
    pub(super) fn would_have(&self, name: &str) -> bool {
        let is_gguf = matches!(self.format.kind, SyntheticKind::Gguf(_));
        let other_layouts: &[&str] = match self.spec.family {
            Family::Qwen3Next if is_gguf => &[".in_proj_qkvz.", ".in_proj_b.", ".in_proj_a."],
            Family::Qwen3Next => &[".in_proj_qkv.", ".in_proj_z.", ".in_proj_b.", ".in_proj_a."],
            Family::Qwen35Moe => &[".in_proj_qkvz.", ".in_proj_ba."],
            // MLX stores the absorbed pair.
            _ => match self.format.kind {
                SyntheticKind::Affine(_) | SyntheticKind::Gguf(_) => &[".kv_b_proj."],
                SyntheticKind::AffineExperts(_)
                | SyntheticKind::Fp8
                | SyntheticKind::Mxfp4
                | SyntheticKind::Ints(_)
                | SyntheticKind::Float => &[".embed_q.", ".unembed_out."],
            },
        };
        let is_tied_head = self.spec.tied_embeddings && name.starts_with("lm_head.");
        // Each published format has its own names for experts.
        let is_loose = matches!(self.format.kind, SyntheticKind::Ints(_));
        let others = if is_loose { ".switch_mlp." } else { ".experts." };
        let is_other_expert = name.contains(others);
        !is_tied_head && !is_other_expert && !other_layouts.iter().any(|it| name.contains(it))
    }

    /// Returns the type of a tensor that was created and not taken yet.
    pub(super) fn dtype(&self, name: &str) -> Option<DType> {
        self.untaken.get(name).map(|found| found.dtype)
    }

    pub(super) fn take(&mut self, name: &str) -> FoundTensor {
        self.untaken.remove(name).unwrap_or_else(|| {
            // Every path of the binder creates the tensors that it requests.
            unreachable!("imagined tensor `{name}` is bound twice, or before it was imagined")
        })
    }

    /// Returns the tensors created.
    pub(super) fn finish(self) -> SyntheticCheckpoint {
        assert!(self.untaken.is_empty(), "imagined, but not bound: {:?}", self.untaken.keys());
        SyntheticCheckpoint {
            kind: self.format.kind,
            tensors: self.tensors,
            overrides: self.overrides,
        }
    }

    /// Adds the tensors of a matrix; returns its quantisation, if it has any.
    pub(super) fn matrix(&mut self, required: &RequiredMatrix<'_>) -> Option<QuantParams> {
        let RequiredMatrix { base, n_stack, n_rows, n_cols } = *required;
        let params = self.params(base, n_cols);
        let shape = |width: usize| n_stack.into_iter().chain([n_rows, width]).collect::<Vec<_>>();
        let float = dtype_of(self.format.scale);
        let weight = format!("{base}.weight");
        if self.format.kind == SyntheticKind::Mxfp4 && is_mxfp4_published(base, n_cols) {
            let rows = QuantisedRows { params: QuantParams { bits: 4, group: 32 }, n_cols };
            self.add(&weight, DType::U32, shape(n_cols / 8), SyntheticRole::Codes(rows));
            let name = format!("{base}.scales");
            self.add(&name, DType::U8, shape(n_cols / 32), SyntheticRole::Exponents { n_cols });
            return None;
        }
        if let SyntheticKind::Ints(params) = self.format.kind
            && base.contains(".experts.")
            && n_cols.is_multiple_of(usize::from(params.group))
        {
            let rows = QuantisedRows { params, n_cols };
            let (name, n_words) =
                (|it: &str| format!("{base}.{it}"), 32 / usize::from(params.bits));
            self.add(
                &name("weight_packed"),
                DType::I32,
                shape(n_cols / n_words),
                SyntheticRole::Codes(rows),
            );
            let n_groups = n_cols / usize::from(params.group);
            let role = SyntheticRole::SymmetricScales(rows);
            self.add(&name("weight_scale"), float, shape(n_groups), role);
            let role = SyntheticRole::Shape([n_rows, n_cols]);
            self.add(&name("weight_shape"), DType::I64, vec![2], role);
            return None;
        }
        let Some(params) = params else {
            let is_fp8 = self.format.kind == SyntheticKind::Fp8 && is_fp8_published(base);
            let dtype = match self.format.kind {
                SyntheticKind::Gguf(types) => types.of_matrix(base, n_cols, self.spec.layers.len()),
                _ if is_fp8 => DType::F8E4M3,
                _ => float,
            };
            self.add(&weight, dtype, shape(n_cols), SyntheticRole::Matrix { n_cols });
            if is_fp8 {
                let [n_rows, n_cols] = [n_rows, n_cols].map(|n| n.div_ceil(SYNTHETIC_BLOCK));
                let blocks = n_stack.into_iter().chain([n_rows, n_cols]).collect();
                let name = format!("{base}.weight_scale_inv");
                self.add(&name, DType::F32, blocks, SyntheticRole::Gain);
            }
            return None;
        };
        let default = match self.format.kind {
            SyntheticKind::Affine(default) | SyntheticKind::AffineExperts(default) => Some(default),
            _ => None,
        };
        if default != Some(params) {
            self.overrides.push((self.mlx_name(base), params));
        }
        let rows = QuantisedRows { params, n_cols };
        let n_groups = n_cols / usize::from(params.group);
        let packed = n_cols * usize::from(params.bits) / 32;
        self.add(&weight, DType::U32, shape(packed), SyntheticRole::Codes(rows));
        self.add(&format!("{base}.scales"), float, shape(n_groups), SyntheticRole::Scales(rows));
        self.add(&format!("{base}.biases"), float, shape(n_groups), SyntheticRole::Biases(rows));
        Some(params)
    }

    /// Returns the parameters of a matrix with codes, scales and biases.
    fn params(&self, base: &str, n_cols: usize) -> Option<QuantParams> {
        let default = match self.format.kind {
            SyntheticKind::Affine(default) => default,
            SyntheticKind::AffineExperts(params) => {
                let is_whole = n_cols.is_multiple_of(usize::from(params.group));
                return (is_whole && base.contains(".switch_mlp.")).then_some(params);
            }
            _ => return None,
        };
        match self.spec.quantisation.overrides.get(base) {
            Some(published) => *published,
            None => params_of_mlx(self.spec.family, base, n_cols, default),
        }
    }

    /// Adds a vector in the shape that mlx-lm, or a converter to GGUF, gives it.
    pub(super) fn vector(&mut self, tensor: &str, n_values: usize) {
        let float = dtype_of(self.format.scale);
        let is_gguf = matches!(self.format.kind, SyntheticKind::Gguf(_));
        let (dtype, role) = if tensor.ends_with("conv1d.weight") {
            (float, SyntheticRole::Taps { n_taps: self.n_taps(tensor) })
        } else if tensor.ends_with(".A_log") {
            let role = if is_gguf { SyntheticRole::Decay } else { SyntheticRole::DecayLog };
            (DType::F32, role)
        } else if tensor.ends_with("e_score_correction_bias") {
            (DType::F32, SyntheticRole::Bias)
        } else if tensor.ends_with("norm.weight") || tensor.contains(".ple.norm_") {
            (float, SyntheticRole::Gain)
        } else {
            (float, SyntheticRole::Bias)
        };
        let shape = match role {
            SyntheticRole::Taps { n_taps } if is_gguf => vec![n_values / n_taps, n_taps],
            SyntheticRole::Taps { n_taps } => vec![n_values / n_taps, n_taps, 1],
            _ => vec![n_values],
        };
        self.add(tensor, dtype, shape, role);
    }

    /// Adds a table whose rows stay on the drive.
    pub(super) fn row_table(&mut self, base: &str, n_rows: usize, n_cols: usize) {
        let name = format!("{base}.weight");
        let dtype = dtype_of(self.format.scale);
        self.add(&name, dtype, vec![n_rows, n_cols], SyntheticRole::Matrix { n_cols });
    }

    /// Adds integers.
    pub(super) fn integers(&mut self, tensor: &str, values: &[i64]) {
        self.add(tensor, DType::I64, vec![values.len()], SyntheticRole::Integers);
        let added = self.tensors.last_mut().expect("a tensor was added");
        added.integers = values.to_vec();
    }

    fn add(&mut self, name: &str, dtype: DType, shape: Vec<usize>, role: SyntheticRole) {
        let n_values: u64 = shape.iter().map(|&n| n as u64).product();
        let len_bytes = match dtype {
            DType::Block(block) => n_values / block.n_values() * block.n_bytes(),
            plain => n_values * plain.bits().unwrap_or(0) / 8,
        };
        let extent = FileExtent { file_idx: 0, offset_bytes: self.len_bytes, len_bytes };
        self.len_bytes += len_bytes;
        let own_name = match self.format.kind {
            SyntheticKind::Gguf(_) => {
                in_gguf(name, self.spec.family.gguf_architecture()).into_owned()
            }
            _ => self.mlx_name(name),
        };
        let found = FoundTensor {
            name: own_name.clone(),
            dtype,
            shape: shape.clone(),
            extent,
            described_by: "config.json",
        };
        let before = self.untaken.insert(name.to_owned(), found);
        assert!(before.is_none(), "imagined tensor `{name}` is bound twice");
        let canonical = name.to_owned();
        self.tensors.push(SyntheticTensor {
            name: own_name,
            canonical,
            dtype,
            shape,
            role,
            integers: Vec::new(),
            len_bytes,
        });
    }

    fn mlx_name(&self, name: &str) -> String {
        match self.spec.family {
            Family::Qwen35Moe => format!("language_model.{name}"),
            _ => name.to_owned(),
        }
    }

    fn n_taps(&self, tensor: &str) -> usize {
        if let Some(ngrams) = self.spec.ngrams.first().filter(|_| tensor.contains(".ple.")) {
            return ngrams.n_taps;
        }
        let taps = self.spec.layers.iter().find_map(|layer| match &layer.mixer {
            MixerSpec::GatedDelta(delta) => Some(delta.n_taps),
            MixerSpec::Attention(_) | MixerSpec::Mla(_) => None,
        });
        taps.expect("only gated DeltaNet has a convolution")
    }
}

/// Returns whether published FP8 checkpoints store a matrix of this canonical name in FP8.
fn is_fp8_published(base: &str) -> bool {
    const OTHERS: [&str; 7] = [
        "embed_tokens",
        "lm_head",
        ".mlp.gate",
        ".shared_expert_gate",
        ".in_proj_a",
        ".in_proj_b",
        ".in_proj_ba",
    ];
    !OTHERS.iter().any(|it| base.ends_with(it))
}

/// Returns whether a matrix would be stored in MXFP4: routed experts whose columns are whole
/// blocks.
fn is_mxfp4_published(base: &str, n_cols: usize) -> bool {
    base.contains(".switch_mlp.") && n_cols.is_multiple_of(BlockKind::MXFP4_APART.block_cols())
}

/// Returns how mlx-lm quantises a matrix of this canonical name and width with the given `default`:
/// only if its columns are whole groups. Routers and shared expert gates of the qwen families get 8
/// bits, those of other families none.
pub(crate) fn params_of_mlx(
    family: Family,
    base: &str,
    n_cols: usize,
    default: QuantParams,
) -> Option<QuantParams> {
    let is_router = base.ends_with(".mlp.gate");
    let is_qwen = matches!(
        family,
        Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen35Moe | Family::Qwen4Exp
    );
    let params = match (is_router || base.ends_with(".shared_expert_gate"), is_qwen) {
        (true, true) => QuantParams { bits: 8, group: 64 },
        (true, false) => return None,
        (false, _) => default,
    };
    let is_whole = |params: QuantParams| n_cols.is_multiple_of(usize::from(params.group));
    (is_whole(default) && is_whole(params)).then_some(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LayerIdx;
    use crate::spec::Quantisation;
    use crate::weights::tests_support::{Tensors, spec};
    use crate::weights::{Binder, ExpertShape, Manifest, ManifestOrigin, TensorSource};

    const Q4_PARAMS: QuantParams = QuantParams { bits: 4, group: 64 };
    const Q4: SyntheticFormat =
        SyntheticFormat { kind: SyntheticKind::Affine(Q4_PARAMS), scale: FloatKind::Bf16 };

    /// Binds some matrices, vectors and experts, as a family would.
    fn bind(source: TensorSource<'_>, spec: &ModelSpec) -> Manifest {
        let mut binder = Binder::new(source, spec);
        let prefix = "model.layers.0";
        let shape = ExpertShape { n_experts: 4, hidden: 128, inner: 64 };
        binder.matrix("model.embed_tokens", 256, 128).unwrap();
        binder.matrix(&format!("{prefix}.mlp.gate"), 4, 128).unwrap();
        binder.matrix(&format!("{prefix}.mlp.shared_expert_gate"), 1, 128).unwrap();
        // A matrix whose columns are not whole groups stays in floating point.
        binder.matrix(&format!("{prefix}.narrow"), 8, 96).unwrap();
        binder.stacked(&format!("{prefix}.self_attn.embed_q"), 3, 5, 64).unwrap();
        let fused = format!("{prefix}.fused");
        binder.matrix_rows(&fused, 6, 64, vec![4..6, 0..1]).unwrap();
        binder.matrix_rows(&fused, 6, 64, vec![1..2, 2..4]).unwrap();
        if matches!(spec.family, Family::Qwen3Next | Family::Qwen35Moe) {
            let mixer = format!("{prefix}.linear_attn");
            binder.vector(&format!("{mixer}.conv1d.weight"), 32 * 4).unwrap();
            binder.vector(&format!("{mixer}.A_log"), 4).unwrap();
        } else {
            binder.vector(&format!("{prefix}.mlp.gate.e_score_correction_bias"), 4).unwrap();
        }
        binder.norm(&format!("{prefix}.input_layernorm.weight"), 128).unwrap();
        binder.constant(vec![1.0]);
        binder.experts(LayerIdx(0), &format!("{prefix}.mlp"), shape).unwrap();
        binder.finish().unwrap()
    }

    fn checkpoint_of(manifest: &Manifest) -> &SyntheticCheckpoint {
        let ManifestOrigin::Synthetic(checkpoint) = &manifest.origin else {
            panic!("not imagined")
        };
        checkpoint
    }

    #[test]
    fn a_synthetic_checkpoint_binds_once_it_is_written() {
        let all = [
            Family::Qwen3Moe,
            Family::Qwen3Next,
            Family::Qwen35Moe,
            Family::DeepseekV3,
            Family::KimiK2,
            Family::Glm4Moe,
        ];
        for family in all {
            let spec = spec(family, 1);
            let planned = bind(TensorSource::Synthetic(Q4), &spec);
            let checkpoint = checkpoint_of(&planned);
            let mut tensors = Tensors::default();
            for tensor in &checkpoint.tensors {
                tensors.add(&tensor.name, tensor.dtype.name(), &tensor.shape);
                assert_eq!(tensors.bytes(&tensor.name).len() as u64, tensor.len_bytes);
            }
            let mut quantisation =
                Quantisation { default: Some(Q4_PARAMS), ..Quantisation::default() };
            for (name, params) in &checkpoint.overrides {
                let name = name.strip_prefix("language_model.").unwrap_or(name);
                quantisation.overrides.insert(name.to_owned(), Some(*params));
            }
            let (_dir, written) = tensors.open();
            let spec = ModelSpec { quantisation, ..spec };
            let bound = bind(TensorSource::Checkpoint(&written), &spec);
            let layouts = |manifest: &Manifest| {
                manifest.matrices.iter().map(|matrix| matrix.layout).collect::<Vec<_>>()
            };
            assert_eq!(layouts(&planned), layouts(&bound), "{family:?}");
            assert_eq!(planned.banks[0].layout, bound.banks[0].layout);
            assert_eq!(planned.resident_bytes(), bound.resident_bytes());
            assert_eq!(planned.kinds(), bound.kinds());
        }
    }

    fn check_tensor(family: Family, name: &str, dtype: DType, shape: &[usize]) {
        let spec = spec(family, 1);
        let manifest = bind(TensorSource::Synthetic(Q4), &spec);
        let found = checkpoint_of(&manifest).tensors.iter().find(|tensor| tensor.name == name);
        let Some(found) = found else { panic!("{family:?} has no {name}") };
        assert_eq!((found.dtype, found.shape.as_slice()), (dtype, shape), "{name}");
    }

    #[test]
    fn tensors_are_named_shaped_and_typed_as_mlx_does() {
        use DType::{Bf16, F32, U32};
        let next = Family::Qwen3Next;
        check_tensor(next, "model.embed_tokens.weight", U32, &[256, 16]);
        check_tensor(next, "model.embed_tokens.biases", Bf16, &[256, 2]);
        check_tensor(next, "model.layers.0.mlp.gate.weight", U32, &[4, 32]);
        check_tensor(next, "model.layers.0.mlp.shared_expert_gate.scales", Bf16, &[1, 2]);
        check_tensor(next, "model.layers.0.narrow.weight", Bf16, &[8, 96]);
        check_tensor(next, "model.layers.0.linear_attn.conv1d.weight", Bf16, &[32, 4, 1]);
        check_tensor(next, "model.layers.0.linear_attn.A_log", F32, &[4]);
        check_tensor(next, "model.layers.0.mlp.switch_mlp.up_proj.weight", U32, &[4, 64, 16]);
        let mla = Family::KimiK2;
        check_tensor(mla, "model.layers.0.self_attn.embed_q.weight", U32, &[3, 5, 8]);
        check_tensor(mla, "model.layers.0.mlp.gate.weight", Bf16, &[4, 128]);
        check_tensor(mla, "model.layers.0.mlp.gate.e_score_correction_bias", F32, &[4]);
        let name = "language_model.model.layers.0.input_layernorm.weight";
        check_tensor(Family::Qwen35Moe, name, Bf16, &[128]);
    }

    #[test]
    fn routers_of_qwen_are_overrides() {
        let eight = QuantParams { bits: 8, group: 64 };
        let spec = spec(Family::Qwen35Moe, 1);
        let manifest = bind(TensorSource::Synthetic(Q4), &spec);
        let prefix = "language_model.model.layers.0.mlp";
        let expected =
            ["gate", "shared_expert_gate"].map(|name| (format!("{prefix}.{name}"), eight));
        assert_eq!(checkpoint_of(&manifest).overrides, expected);
    }

    #[test]
    fn an_expert_of_the_397b_has_7_077_888_bytes() {
        let spec = spec(Family::Qwen35Moe, 60);
        let mut binder = Binder::new(TensorSource::Synthetic(Q4), &spec);
        let shape = ExpertShape { n_experts: 512, hidden: 4096, inner: 1024 };
        binder.experts(LayerIdx(0), "model.layers.0.mlp", shape).unwrap();
        let manifest = binder.finish().unwrap();
        assert_eq!(manifest.banks[0].layout.stored_bytes(), 7_077_888);
        assert_eq!(manifest.expert_bytes(), 512 * 7_077_888);
        assert_eq!(manifest.resident_bytes(), 0);
    }

    #[test]
    fn only_mlx_names_are_there() {
        let has = |family, name| {
            let spec = spec(family, 1);
            Binder::new(TensorSource::Synthetic(Q4), &spec).has(name)
        };
        assert!(has(Family::DeepseekV3, "model.layers.0.self_attn.embed_q.weight"));
        assert!(!has(Family::DeepseekV3, "model.layers.0.self_attn.kv_b_proj.weight"));
        assert!(has(Family::Qwen3Next, "model.layers.0.linear_attn.in_proj_qkvz.weight"));
        assert!(!has(Family::Qwen3Next, "model.layers.0.linear_attn.in_proj_qkv.weight"));
        assert!(!has(Family::Qwen35Moe, "model.layers.0.linear_attn.in_proj_qkvz.weight"));
    }
}
