//! Binds the tensors that a family needs, one at a time, and builds a manifest.
//!
//! `table` knows which tensors were taken, `stored` the spellings of a matrix, `bank` those of
//! experts, `rows` those of tables that stay on the drive, and `packed` the records of packed
//! files. `leftover` says what may stay unused.
//!
//! **Invariant:** when [`Binder::finish`] succeeds, every tensor of the checkpoint was bound once
//! or skipped by name. Binding a tensor twice is a bug of the caller; a missing tensor, or one of
//! another shape, is a fault of the checkpoint. This module knows names and shapes, never bytes.

mod leftover;
pub(super) mod packed;
mod table;
mod stored;
pub(super) mod bank;
mod rows;

use std::collections::BTreeMap;
use std::ops::Range;

use moeflux_kernels::{Fp8Spread, MatrixKind, MatrixLayout};

use crate::error::{Error, Result};
use crate::format::{Checkpoint, PackedNorms};
use crate::ids::{LayerIdx, MatrixId, VectorId};
use crate::spec::{
    FREQUENCY_DIVISORS, Family, ModelSpec, NativeFormat, Quantisation, RopeScaling, RopeSpec,
};
use crate::weights::bind::bank::{BankRequest, BankStorage, ExpertShape};
use crate::weights::bind::stored::{StoredMatrix, unstacked};
use crate::weights::bind::table::TensorTable;
use crate::weights::manifest::{
    ExpertBank, KnownIntegers, Manifest, ManifestOrigin, MatrixSource, StoredVector,
    ValueSelection, ValueTransform, VectorSource,
};
use crate::weights::row_table::RowTable;
use crate::weights::synthetic::{SyntheticBuilder, SyntheticFormat, SyntheticKind};
use crate::weights::tensors::RequiredMatrix;

/// Source of tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TensorSource<'a> {
    /// Files.
    Checkpoint(&'a Checkpoint),
    /// A synthetic checkpoint, which has any tensor that is requested.
    Synthetic(SyntheticFormat),
}

/// Binds tensors to the matrices, vectors and experts of a model.
#[derive(Debug)]
pub(crate) struct Binder<'a> {
    spec: &'a ModelSpec,
    table: TensorTable<'a>,
    quantisation: Quantisation,
    norms: Norms,
    matrices: Vec<MatrixSource>,
    vectors: Vec<VectorSource>,
    banks: Vec<ExpertBank>,
    tables: Vec<RowTable>,
    integers: Vec<KnownIntegers>,
    splits: BTreeMap<String, SplitTensor>,
    /// Frequencies that are divided by numbers in the file, which all layers share.
    stored_frequencies: Option<VectorId>,
}

/// How the gains of norms are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Norms {
    /// As they are used.
    Plain,
    /// Reduced by 1, which is added when they are loaded.
    ZeroCentred,
}

/// A tensor whose rows are divided among several matrices.
#[derive(Debug)]
struct SplitTensor {
    stored: StoredMatrix,
    /// By row: whether it was bound to a matrix.
    is_taken: Vec<bool>,
}

impl<'a> Binder<'a> {
    /// Creates a binder with nothing bound yet.
    #[must_use]
    pub(crate) fn new(source: TensorSource<'a>, spec: &'a ModelSpec) -> Self {
        let (table, quantisation, norms) = match source {
            TensorSource::Checkpoint(checkpoint) => {
                let norms = norms_of(spec, checkpoint);
                (TensorTable::stored(checkpoint), spec.quantisation.clone(), norms)
            }
            TensorSource::Synthetic(format) => {
                let default = match format.kind {
                    SyntheticKind::Affine(params) | SyntheticKind::AffineExperts(params) => {
                        Some(params)
                    }
                    SyntheticKind::Fp8
                    | SyntheticKind::Mxfp4
                    | SyntheticKind::Ints(_)
                    | SyntheticKind::Float
                    | SyntheticKind::Gguf(_) => None,
                };
                let native = match format.kind {
                    SyntheticKind::Ints(params) => Some(NativeFormat::Ints(params)),
                    _ => None,
                };
                let quantisation = Quantisation { default, native, ..Quantisation::default() };
                let builder = SyntheticBuilder::new(spec, format);
                (TensorTable::Synthetic(builder), quantisation, Norms::Plain)
            }
        };
        Self {
            spec,
            table,
            quantisation,
            norms,
            matrices: Vec::new(),
            vectors: Vec::new(),
            banks: Vec::new(),
            tables: Vec::new(),
            integers: Vec::new(),
            splits: BTreeMap::new(),
            stored_frequencies: None,
        }
    }

    /// Returns whether there is a tensor with this full canonical name. A synthetic checkpoint has
    /// the tensors that MLX would have: `embed_q` and `unembed_out`, not `kv_b_proj`.
    #[must_use]
    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.table.has(tensor)
    }

    /// Binds a matrix `[n_rows, n_cols]`. `base` is its name without `.weight`.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Tensor`] if the matrix is missing or has another shape or type.
    pub(crate) fn matrix(&mut self, base: &str, n_rows: usize, n_cols: usize) -> Result<MatrixId> {
        let required = RequiredMatrix { base, n_stack: None, n_rows, n_cols };
        let stored = self.stored_matrix(&required)?;
        Ok(self.push(base, stored, all_rows(n_rows)))
    }

    /// Binds some rows of a matrix `[n_rows, n_cols]`, in the given order. The same tensor may be
    /// bound again with other rows; in the end every row must be used once.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub(crate) fn matrix_rows(
        &mut self,
        base: &str,
        n_rows: usize,
        n_cols: usize,
        rows: Vec<Range<usize>>,
    ) -> Result<MatrixId> {
        let mut split = match self.splits.remove(base) {
            Some(split) => split,
            None => {
                let required = RequiredMatrix { base, n_stack: None, n_rows, n_cols };
                SplitTensor {
                    stored: self.stored_matrix(&required)?,
                    is_taken: vec![false; n_rows],
                }
            }
        };
        for row_idx in rows.iter().cloned().flatten() {
            let is_taken = std::mem::replace(&mut split.is_taken[row_idx], true);
            assert!(!is_taken, "row {row_idx} of `{base}` is bound twice");
        }
        let stored = split.stored;
        check_fp8_rows(base, &stored.layout, &rows)?;
        self.splits.insert(base.to_owned(), split);
        Ok(self.push(base, stored, rows))
    }

    /// Binds a tensor `[n_stack, n_rows, n_cols]` as one matrix of `n_stack * n_rows` rows.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub(crate) fn stacked(
        &mut self,
        base: &str,
        n_stack: usize,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<MatrixId> {
        let required = RequiredMatrix { base, n_stack: Some(n_stack), n_rows, n_cols };
        let mut stored = self.stored_matrix(&required)?;
        stored.layout = unstacked(stored.layout, n_stack, base)?;
        let n_rows = stored.layout.n_rows;
        Ok(self.push(base, stored, all_rows(n_rows)))
    }

    /// Binds `n` values of f32, f16 or bf16, of any shape. `tensor` is the full name.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub(crate) fn vector(&mut self, tensor: &str, n: usize) -> Result<VectorId> {
        let stored = self.stored_vector(tensor, n)?;
        Ok(self.push_vector(VectorSource::Stored(stored)))
    }

    /// Binds the gain of a norm. Where the family centres gains on zero and the checkpoint was not
    /// converted, 1 is added when it is loaded.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub(crate) fn norm(&mut self, tensor: &str, n: usize) -> Result<VectorId> {
        let mut stored = self.stored_vector(tensor, n)?;
        if self.norms == Norms::ZeroCentred {
            stored.transform = ValueTransform::AddOne;
        }
        Ok(self.push_vector(VectorSource::Stored(stored)))
    }

    /// Binds the logarithms of the heads' decay rates, which GGUF files store as `-exp(x)`.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub(crate) fn decay_log(&mut self, tensor: &str, n: usize) -> Result<VectorId> {
        let mut stored = self.stored_vector(tensor, n)?;
        if self.table.is_gguf() {
            stored.transform = ValueTransform::LogOfNegated;
        }
        Ok(self.push_vector(VectorSource::Stored(stored)))
    }

    /// Adds values that are computed, not read.
    pub(crate) fn constant(&mut self, values: Vec<f32>) -> VectorId {
        self.push_vector(VectorSource::Constant(values))
    }

    /// Binds the frequencies of a rope: computed, or divided by numbers in the file.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub(crate) fn frequencies(&mut self, rope: &RopeSpec) -> Result<VectorId> {
        if rope.scaling != RopeScaling::Stored {
            return Ok(self.constant(rope.frequencies()));
        }
        if let Some(bound) = self.stored_frequencies {
            return Ok(bound);
        }
        let mut stored = self.stored_vector(FREQUENCY_DIVISORS, rope.n_rotated / 2)?;
        stored.transform = ValueTransform::FrequencyDivisor { theta: rope.theta };
        let bound = self.push_vector(VectorSource::Stored(stored));
        self.stored_frequencies = Some(bound);
        Ok(bound)
    }

    /// Binds the routed experts of a layer, however they are stored. `prefix` is the part of the
    /// name before `.experts` or `.switch_mlp`: `model.layers.3.mlp`. Layers ascend.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`]; also if one expert is stored differently from the others.
    pub(crate) fn experts(
        &mut self,
        layer: LayerIdx,
        prefix: &str,
        shape: ExpertShape,
    ) -> Result<()> {
        self.bank((layer, prefix), shape, BankStorage::Experts)
    }

    /// Binds the feed-forward of a dense layer as the only expert of that layer.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub(crate) fn dense_expert(
        &mut self,
        layer: LayerIdx,
        prefix: &str,
        (hidden, inner): (usize, usize),
    ) -> Result<()> {
        self.bank((layer, prefix), ExpertShape { n_experts: 1, hidden, inner }, BankStorage::Dense)
    }

    fn bank(
        &mut self,
        (layer, prefix): (LayerIdx, &str),
        shape: ExpertShape,
        storage: BankStorage,
    ) -> Result<()> {
        let is_ascending = self.banks.last().is_none_or(|last| last.layer < layer);
        assert!(is_ascending, "experts of layer {} are bound out of order", layer.0);
        let is_input_first = self.spec.family == Family::Qwen3VlMoe;
        let request = BankRequest { layer, prefix, shape, storage, is_input_first };
        let bank = request.bind(&mut self.table, &mut self.quantisation)?;
        self.banks.push(bank);
        Ok(())
    }

    /// Binds the biases added to the products of a layer's routed experts: gate, up, down.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub(crate) fn expert_biases(
        &mut self,
        prefix: &str,
        ExpertShape { n_experts, hidden, inner }: ExpertShape,
    ) -> Result<[VectorId; 3]> {
        let (n_inner, n_hidden) =
            (n_experts.saturating_mul(inner), n_experts.saturating_mul(hidden));
        let both = format!("{prefix}.experts.gate_up_proj_bias");
        if self.table.has(&both) {
            let stored = self.stored_vector(&both, n_inner.saturating_mul(2))?;
            let mut half = |first| {
                let selection = ValueSelection::EveryOther { first };
                let half = StoredVector { n_values: n_inner, selection, ..stored.clone() };
                self.push_vector(VectorSource::Stored(half))
            };
            let (gate, up) = (half(0), half(1));
            let down = self.vector(&format!("{prefix}.experts.down_proj_bias"), n_hidden)?;
            return Ok([gate, up, down]);
        }
        // mlx-lm has a name of its own for the experts of gpt_oss. Packs keep the names of biases,
        // and have no weights of these names.
        let has_own = self.table.has_stored(&format!("{prefix}.experts.gate_proj.bias"));
        let stem = if has_own { "experts" } else { "switch_mlp" };
        let name = |projection: &str| format!("{prefix}.{stem}.{projection}.bias");
        let gate = self.vector(&name("gate_proj"), n_inner)?;
        let up = self.vector(&name("up_proj"), n_inner)?;
        Ok([gate, up, self.vector(&name("down_proj"), n_hidden)?])
    }

    /// Returns the manifest.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Tensor`] for a tensor that was neither bound nor skipped by a rule.
    pub(crate) fn finish(self) -> Result<Manifest> {
        for (base, split) in &self.splits {
            let unused = split.is_taken.iter().position(|is_taken| !is_taken);
            assert_eq!(unused, None, "a row of `{base}` that no matrix has");
        }
        let (skipped, origin) = match self.table {
            TensorTable::Stored { checkpoint, taken } => {
                (leftover::skipped(checkpoint, &taken, self.spec)?, ManifestOrigin::Checkpoint)
            }
            TensorTable::Synthetic(builder) => {
                (Vec::new(), ManifestOrigin::Synthetic(builder.finish()))
            }
        };
        let Self { matrices, vectors, banks, tables, integers, .. } = self;
        Ok(Manifest { matrices, vectors, banks, tables, integers, skipped, origin })
    }

    fn stored_matrix(&mut self, required: &RequiredMatrix<'_>) -> Result<StoredMatrix> {
        required.check_size()?;
        self.table.create_matrix(&mut self.quantisation, required);
        StoredMatrix::bind(&mut self.table, &self.quantisation, required)
    }

    fn stored_vector(&mut self, tensor: &str, n_values: usize) -> Result<StoredVector> {
        if let TensorTable::Synthetic(builder) = &mut self.table {
            builder.vector(tensor, n_values);
        }
        let found = self.table.take(tensor)?;
        let Some(kind) = found.float_kind() else {
            let problem =
                format!("has values of type {}; F32, F16 and BF16 are supported", found.dtype);
            return Err(found.error(problem));
        };
        let n_found = found.shape.iter().try_fold(1_usize, |n, &size| n.checked_mul(size));
        if n_found != Some(n_values) {
            let (shape, asking) = (&found.shape, found.described_by);
            let problem = format!("has shape {shape:?}, but {asking} requires {n_values} values");
            return Err(found.error(problem));
        }
        let n_bytes = (n_values * kind.bytes()) as u64;
        assert_eq!(n_bytes, found.extent.len_bytes, "the header's check of `{tensor}`");
        let name = found.name;
        let (selection, transform) = (ValueSelection::All, ValueTransform::None);
        Ok(StoredVector { name, kind, n_values, selection, extent: found.extent, transform })
    }

    fn push(&mut self, base: &str, stored: StoredMatrix, rows: Vec<Range<usize>>) -> MatrixId {
        let n_rows = rows.iter().map(ExactSizeIterator::len).sum();
        self.matrices.push(MatrixSource {
            name: base.to_owned(),
            layout: MatrixLayout { n_rows, ..stored.layout },
            stored_rows: stored.layout.n_rows,
            rows,
            codes: stored.codes,
            scales: stored.scales,
            biases: stored.biases,
            parts: stored.names,
        });
        MatrixId(self.matrices.len() - 1)
    }

    fn push_vector(&mut self, vector: VectorSource) -> VectorId {
        self.vectors.push(vector);
        VectorId(self.vectors.len() - 1)
    }
}

fn all_rows(n_rows: usize) -> Vec<Range<usize>> {
    std::iter::once(0..n_rows).collect()
}

/// Refuses rows that would split a block of rows that share an FP8 scale.
fn check_fp8_rows(base: &str, layout: &MatrixLayout, rows: &[Range<usize>]) -> Result<()> {
    let MatrixKind::Fp8(fp8) = layout.kind else { return Ok(()) };
    let shared = match fp8.spread {
        Fp8Spread::Block { n_rows, .. } => usize::from(n_rows),
        // A single scale cannot be assembled from several ranges.
        Fp8Spread::Matrix if rows.len() > 1 => layout.n_rows,
        Fp8Spread::Row | Fp8Spread::Matrix => return Ok(()),
    };
    let is_whole = |range: &Range<usize>| {
        range.start.is_multiple_of(shared) && range.end.is_multiple_of(shared)
    };
    if rows.iter().all(is_whole) {
        return Ok(());
    }
    let torn = rows.iter().find(|range| !is_whole(range)).cloned().unwrap_or_default();
    Err(Error::tensor(
        format!("{base}.weight"),
        format!(
            "is FP8 in blocks of {shared} rows, but rows {}..{} would split a block, which is not \
             supported",
            torn.start, torn.end
        ),
    ))
}

/// Returns how gains of norms are stored. Some families centre their norms on zero. Conversion by
/// mlx-lm has added the 1; it also transposed the convolutions from `[channels, 1, taps]` to
/// `[channels, taps, 1]`, which reveals it. A packed folder states which it is.
fn norms_of(spec: &ModelSpec, checkpoint: &Checkpoint) -> Norms {
    let tensors = &checkpoint.tensors;
    if let Some(packed) = &checkpoint.packed {
        return match packed.norms {
            Some(PackedNorms::ZeroCentred) => Norms::ZeroCentred,
            Some(PackedNorms::Plain) | None => Norms::Plain,
        };
    }
    // Converters to GGUF add the 1.
    let has_one = checkpoint.gguf.is_some();
    let is_centred = matches!(
        spec.family,
        Family::Qwen3Next | Family::Qwen35Moe | Family::Qwen35 | Family::Qwen4Exp
    );
    if has_one || !is_centred {
        return Norms::Plain;
    }
    let convolutions = tensors.iter().filter(|(name, entry)| {
        name.ends_with(".linear_attn.conv1d.weight") && entry.shape.len() == 3
    });
    for (_, entry) in convolutions {
        match entry.shape[1..] {
            // With one tap, both layouts look alike.
            [1, 1] => {}
            [1, _] => return Norms::ZeroCentred,
            _ => return Norms::Plain,
        }
    }
    let is_mlx = spec.quantisation.default.is_some()
        || tensors.keys().any(|name| name.contains(".switch_mlp."));
    if is_mlx { Norms::Plain } else { Norms::ZeroCentred }
}
