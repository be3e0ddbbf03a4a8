//! Turns the records of a packed layer into a bank of experts.
//!
//! **Invariant:** a record has the same layout in its file as in memory: the layout that the file
//! describes is compared with the one that follows from kinds and shapes, and those with what
//! `config.json` requires.

use moeflux_kernels::{
    Affine, Biases, BlockKind, FloatKind, Fp8, Fp8Spread, MatrixKind, MatrixLayout, ScaleKind,
};

use crate::error::{Error, Result};
use crate::format::{DType, PackedKind, PackedMatrix, PackedSpread, RECORD_ALIGN};
use crate::spec::{QuantParams, Quantisation};
use crate::weights::manifest::Records;
use crate::weights::resident::{ExpertLayout, MatrixSpan};
use crate::weights::tensors::{FoundBank, block_kind, block_type, dtype_of};

/// A required matrix of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordMatrix {
    /// Its name in tensor names: `gate_proj`.
    pub(super) name: &'static str,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
}

impl FoundBank<'_> {
    /// Returns the layout of a record with these matrices; an error if the file has another.
    pub(super) fn layout(
        &self,
        n_experts: usize,
        required: [RecordMatrix; 3],
        quantisation: &Quantisation,
    ) -> Result<ExpertLayout> {
        let bank = self.bank;
        if bank.n_experts != n_experts {
            let problem = format!(
                "has {} records, but config.json requires {n_experts} experts",
                bank.n_experts
            );
            return Err(Error::tensor(&bank.tensor, problem));
        }
        let mut layouts = [None; 3];
        for ((layout, required), found) in layouts.iter_mut().zip(required).zip(&bank.matrices) {
            *layout = Some(self.matrix(required, found, quantisation)?);
        }
        let [Some(gate), Some(up), Some(down)] = layouts else {
            unreachable!("three matrices were bound")
        };
        let layout = ExpertLayout::new(gate, up, down);
        let spans = [layout.gate, layout.up, layout.down];
        for ((span, found), required) in spans.iter().zip(&bank.matrices).zip(required) {
            if part_offsets(span) != (found.codes_at, found.scales_at, found.biases_at) {
                return Err(self.wrong(required.name, "is at the wrong offset of the record"));
            }
        }
        let record_bytes = layout.record_bytes().next_multiple_of(RECORD_ALIGN);
        if bank.record_bytes != record_bytes {
            let problem =
                format!("has records of {} bytes; these have {record_bytes}", bank.record_bytes);
            return Err(Error::tensor(&bank.tensor, problem));
        }
        Ok(layout)
    }

    /// Returns the location of the records.
    pub(super) fn records(&self) -> Records {
        Records {
            file_idx: self.file_idx,
            first_bytes: self.file.data_at + self.bank.begin_bytes,
            record_bytes: self.bank.record_bytes,
        }
    }

    fn matrix(
        &self,
        required: RecordMatrix,
        found: &PackedMatrix,
        quantisation: &Quantisation,
    ) -> Result<MatrixLayout> {
        let RecordMatrix { name, n_rows, n_cols } = required;
        if (found.n_rows, found.n_cols) != (n_rows, n_cols) {
            let problem = format!(
                "has shape [{}, {}], but config.json requires [{n_rows}, {n_cols}]",
                found.n_rows, found.n_cols
            );
            return Err(self.wrong(name, &problem));
        }
        let kind = match found.kind {
            PackedKind::Fp8Block => MatrixKind::Fp8(Fp8::DEEPSEEK),
            PackedKind::Fp8 { spread, scale } => {
                let spread = match spread {
                    PackedSpread::Block([n_rows, n_cols]) => Fp8Spread::Block { n_rows, n_cols },
                    PackedSpread::Row => Fp8Spread::Row,
                    PackedSpread::Matrix => Fp8Spread::Matrix,
                };
                MatrixKind::Fp8(Fp8 { spread, scale: scale_kind(scale) })
            }
            PackedKind::Symmetric { bits, group, scale } => {
                MatrixKind::Affine(Affine::symmetric(bits, group, float_kind(scale)))
            }
            PackedKind::Mxfp4 => MatrixKind::Block(BlockKind::MXFP4_APART),
            PackedKind::Block(block) => {
                let kind = block_kind(block).map(MatrixKind::Block);
                let problem = || format!("are {}, which is not supported", block.name());
                kind.ok_or_else(|| self.wrong(name, &problem()))?
            }
            PackedKind::Float(dtype) => MatrixKind::Float(float_kind(dtype)),
            PackedKind::Affine { bits, group, scale } => {
                let params = QuantParams { bits, group };
                self.check_params(name, params, quantisation)?;
                MatrixKind::Affine(Affine::new(bits, group, float_kind(scale)))
            }
        };
        MatrixLayout::new(kind, n_rows, n_cols)
            .map_err(|error| self.wrong(name, &error.to_string()))
    }

    /// Compares the record's parameters with those of the config, if it has an entry for them.
    fn check_params(
        &self,
        name: &str,
        found: QuantParams,
        quantisation: &Quantisation,
    ) -> Result<()> {
        let base = format!("{}.switch_mlp.{name}", self.bank.prefix);
        let stated = quantisation.overrides.get(&base).copied().unwrap_or(quantisation.default);
        let is_free = quantisation.is_of_mlx() && !quantisation.overrides.contains_key(&base);
        if stated == Some(found) || is_free {
            return Ok(());
        }
        let stated = match stated {
            Some(QuantParams { bits, group }) => format!("{bits} bits in groups of {group}"),
            None => "no quantisation".to_owned(),
        };
        let QuantParams { bits, group } = found;
        let problem = format!(
            "has {bits} bits in groups of {group}; config.json specifies {stated} for `{base}`"
        );
        Err(self.wrong(name, &problem))
    }

    fn wrong(&self, name: &str, problem: &str) -> Error {
        Error::tensor(&self.bank.tensor, format!("{name} of its experts {problem}"))
    }
}

/// Returns the offsets of a matrix's parts as a file states them; a missing part has the offset of
/// the last one.
fn part_offsets(span: &MatrixSpan) -> (usize, usize, usize) {
    match span.layout.kind {
        MatrixKind::Affine(Affine { biases: Biases::Stored, .. }) => {
            (span.codes_at, span.scales_at, span.biases_at)
        }
        kind if kind.scale_kind().is_none() => (span.codes_at, span.codes_at, span.codes_at),
        _ => (span.codes_at, span.scales_at, span.scales_at),
    }
}

/// Returns the file's description of a matrix of a record.
pub(crate) fn described(span: &MatrixSpan) -> PackedMatrix {
    let MatrixLayout { kind, n_rows, n_cols } = span.layout;
    let kind = match kind {
        MatrixKind::Affine(Affine { bits, group, scale, biases }) => match biases {
            Biases::Stored => PackedKind::Affine { bits, group, scale: dtype_of(scale) },
            Biases::Implied => PackedKind::Symmetric { bits, group, scale: dtype_of(scale) },
        },
        MatrixKind::Float(float) => PackedKind::Float(dtype_of(float)),
        MatrixKind::Fp8(Fp8::DEEPSEEK) => PackedKind::Fp8Block,
        MatrixKind::Fp8(Fp8 { spread, scale }) => {
            let spread = match spread {
                Fp8Spread::Block { n_rows, n_cols } => PackedSpread::Block([n_rows, n_cols]),
                Fp8Spread::Row => PackedSpread::Row,
                Fp8Spread::Matrix => PackedSpread::Matrix,
            };
            let scale = match scale {
                ScaleKind::Float(kind) => dtype_of(kind),
                ScaleKind::E8m0 => DType::F8E8M0,
            };
            PackedKind::Fp8 { spread, scale }
        }
        MatrixKind::Block(kind) => block_type(kind).map_or(PackedKind::Mxfp4, PackedKind::Block),
    };
    let (codes_at, scales_at, biases_at) = part_offsets(span);
    PackedMatrix { kind, n_rows, n_cols, codes_at, scales_at, biases_at }
}

fn scale_kind(dtype: DType) -> ScaleKind {
    match dtype {
        DType::F8E8M0 => ScaleKind::E8m0,
        float => ScaleKind::Float(float_kind(float)),
    }
}

fn float_kind(dtype: DType) -> FloatKind {
    match dtype {
        DType::F32 => FloatKind::F32,
        DType::F16 => FloatKind::F16,
        DType::Bf16 => FloatKind::Bf16,
        other => unreachable!("{other} is not a float of a record: its reader refuses it"),
    }
}
