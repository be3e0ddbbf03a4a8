//! The routed experts of a layer, stored per expert, fused, stacked or packed.
//!
//! **Invariant:** all experts of a bank are stored alike, so one layout fits all of them.

use moeflux_kernels::{MatrixKind, MatrixLayout};

use crate::error::{Error, Result};
use crate::ids::LayerIdx;
use crate::spec::Quantisation;
use crate::weights::bind::packed::RecordMatrix;
use crate::weights::bind::stored::{StoredMatrix, of_gpt_oss};
use crate::weights::bind::table::TensorTable;
use crate::weights::manifest::{BankPart, ExpertBank, ExpertOffsets, PartRole};
use crate::weights::resident::{ExpertLayout, MatrixSpan};
use crate::weights::tensors::{FileExtent, FoundBank, PartNames, RequiredMatrix};

/// Sizes of a layer's routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertShape {
    /// Number of experts.
    pub n_experts: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Inner width of one expert.
    pub inner: usize,
}

/// How the experts of a layer are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BankStorage {
    /// As the routed experts of a family.
    Experts,
    /// As the feed-forward of a dense layer, which is the only expert.
    Dense,
}

/// The required experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct BankRequest<'n> {
    pub(super) layer: LayerIdx,
    /// `model.layers.3.mlp`.
    pub(super) prefix: &'n str,
    pub(super) shape: ExpertShape,
    pub(super) storage: BankStorage,
    /// Whether tensors that hold gate and up of all experts have inputs as rows.
    pub(super) is_input_first: bool,
}

/// One of the three matrices of an expert.
#[derive(Clone, Copy, Debug)]
struct Projection {
    /// Its name in tensor names.
    name: &'static str,
    n_rows: usize,
    n_cols: usize,
}

/// One matrix of all experts, or two whose rows are interleaved.
#[derive(Debug)]
struct BoundProjection {
    /// Layout for one expert.
    layout: MatrixLayout,
    /// Prefix of the names of parts in messages, including a period: `gate_proj.`.
    name: String,
    /// The same prefix in tensor names, where one tensor holds all experts.
    tensor: Option<String>,
    names: PartNames,
    codes: ExpertOffsets,
    scales: Option<ExpertOffsets>,
    biases: Option<ExpertOffsets>,
}

impl BankRequest<'_> {
    /// Binds the tensors of all experts.
    pub(super) fn bind(
        &self,
        table: &mut TensorTable<'_>,
        quantisation: &mut Quantisation,
    ) -> Result<ExpertBank> {
        let prefix = self.prefix;
        assert!(self.shape.n_experts > 0, "a layer of experts has some");
        if self.storage == BankStorage::Dense {
            let [gate, up, down] =
                self.projections().map(|it| self.of_layer(table, quantisation, it));
            return Ok(self.bank([gate?, up?, down?]));
        }
        let per_expert =
            ["weight", "weight_packed"].map(|part| format!("{prefix}.experts.0.gate_proj.{part}"));
        let interleaved_codes = format!("{prefix}.experts.gate_up_proj_blocks");
        if let Some(found) = table.take_bank(prefix) {
            return self.packed(&found, quantisation);
        }
        let fused = [".weight", ""].map(|suffix| format!("{prefix}.experts.gate_up_proj{suffix}"));
        if let Some(stem) = stacked_stem(table, prefix) {
            let [gate, up, down] =
                self.projections().map(|it| self.stacked(table, quantisation, (&stem, it)));
            return Ok(self.bank([gate?, up?, down?]));
        }
        // A GGUF file may have both in one tensor.
        let gate_up = format!("{prefix}.switch_mlp.gate_up_proj.weight");
        if table.has(&gate_up) {
            let down = format!("{prefix}.switch_mlp.down_proj.weight");
            return Ok(self.bank(self.fused(table, (&gate_up, &down))?));
        }
        if table.has_stored(&interleaved_codes) {
            return self.interleaved(table);
        }
        if per_expert.iter().any(|name| table.has(name)) {
            let [gate, up, down] = self.projections().map(|it| self.each(table, quantisation, it));
            return Ok(self.bank([gate?, up?, down?]));
        }
        match fused.iter().find(|name| table.has(name)) {
            Some(gate_up) => {
                let down = gate_up.replace("gate_up_proj", "down_proj");
                if self.is_input_first {
                    return self.input_first(table, (gate_up, &down));
                }
                Ok(self.bank(self.fused(table, (gate_up, &down))?))
            }
            None if table.is_gguf() => {
                Err(table.missing(&format!("{prefix}.switch_mlp.gate_proj.weight")))
            }
            None => Err(table.missing(&per_expert[0])),
        }
    }

    /// Binds records as `moeflux pack` writes them.
    fn packed(&self, found: &FoundBank<'_>, quantisation: &Quantisation) -> Result<ExpertBank> {
        let required = self.projections().map(|projection| {
            let Projection { name, n_rows, n_cols, .. } = projection;
            RecordMatrix { name, n_rows, n_cols }
        });
        let layout = found.layout(self.shape.n_experts, required, quantisation)?;
        let records = found.records();
        let strided = |record_at: usize| ExpertOffsets::Strided {
            file_idx: records.file_idx,
            first_bytes: records.first_bytes + record_at as u64,
            stride_bytes: records.record_bytes as u64,
        };
        let spans =
            [("gate_proj", layout.gate), ("up_proj", layout.up), ("down_proj", layout.down)];
        let bound = spans.map(|(name, span)| BoundProjection {
            layout: span.layout,
            name: format!("{name}."),
            tensor: None,
            names: names_in_record(span.layout.kind),
            codes: strided(span.codes_at),
            scales: (span.layout.scale_bytes() > 0).then(|| strided(span.scales_at)),
            biases: (span.layout.bias_bytes() > 0).then(|| strided(span.biases_at)),
        });
        Ok(ExpertBank { records: Some(records), ..self.bank(bound) })
    }

    fn projections(&self) -> [Projection; 3] {
        let ExpertShape { hidden, inner, .. } = self.shape;
        let new = |name, n_rows, n_cols| Projection { name, n_rows, n_cols };
        [
            new("gate_proj", inner, hidden),
            new("up_proj", inner, hidden),
            new("down_proj", hidden, inner),
        ]
    }

    /// Binds `[n_experts, rows, cols]`, as MLX stacks them.
    fn stacked(
        &self,
        table: &mut TensorTable<'_>,
        quantisation: &mut Quantisation,
        (stem, projection): (&str, Projection),
    ) -> Result<BoundProjection> {
        let base = format!("{stem}.{}", projection.name);
        let Projection { n_rows, n_cols, .. } = projection;
        let required =
            RequiredMatrix { base: &base, n_stack: Some(self.shape.n_experts), n_rows, n_cols };
        required.check_size()?;
        table.create_matrix(quantisation, &required);
        let stored = StoredMatrix::bind(table, quantisation, &required)?;
        let name = format!("{}.", projection.name);
        let tensor = format!("{stem}.{name}");
        Ok(self.of_all(stored, name, tensor))
    }

    /// Binds `[rows, cols]`, the matrix of a dense layer.
    fn of_layer(
        &self,
        table: &mut TensorTable<'_>,
        quantisation: &mut Quantisation,
        Projection { name, n_rows, n_cols }: Projection,
    ) -> Result<BoundProjection> {
        let base = format!("{}.{name}", self.prefix);
        let required = RequiredMatrix { base: &base, n_stack: None, n_rows, n_cols };
        required.check_size()?;
        table.create_matrix(quantisation, &required);
        let stored = StoredMatrix::bind(table, quantisation, &required)?;
        Ok(self.of_all(stored, format!("{name}."), format!("{base}.")))
    }

    /// Describes a matrix of all experts in one tensor. `name` and `tensor` are the prefixes of the
    /// names of its parts, in messages and in tensor names.
    fn of_all(&self, stored: StoredMatrix, name: String, tensor: String) -> BoundProjection {
        let n_experts = self.shape.n_experts as u64;
        let strided = |extent: FileExtent| ExpertOffsets::Strided {
            file_idx: extent.file_idx,
            first_bytes: extent.offset_bytes,
            stride_bytes: extent.len_bytes / n_experts,
        };
        BoundProjection {
            layout: stored.layout,
            name,
            tensor: Some(tensor),
            names: stored.names,
            codes: strided(stored.codes),
            scales: stored.scales.map(strided),
            biases: stored.biases.map(strided),
        }
    }

    /// Binds `[n_experts, 2 * inner, hidden]`, whose even rows are gate's and whose odd rows are
    /// up's, and `[n_experts, hidden, inner]`.
    fn interleaved(&self, table: &mut TensorTable<'_>) -> Result<ExpertBank> {
        let ExpertShape { n_experts, hidden, inner } = self.shape;
        let mut bind = |name: &str, n_rows: usize, n_cols: usize| {
            let base = format!("{}.experts.{name}", self.prefix);
            let required = RequiredMatrix { base: &base, n_stack: Some(n_experts), n_rows, n_cols };
            required.check_size()?;
            let stored = of_gpt_oss(table, &required)?;
            Ok::<_, Error>(self.of_all(stored, name.to_owned(), base.clone()))
        };
        let gate_up = bind("gate_up_proj", inner.saturating_mul(2), hidden)?;
        let down = bind("down_proj", hidden, inner)?;
        let layout = ExpertLayout::interleaved(gate_up.layout, down.layout);
        let spans = [layout.gate.whole(), layout.down];
        let bound = [gate_up, down].into_iter().zip(spans);
        let parts = bound.flat_map(|(bound, span)| parts_of(bound, span)).collect();
        Ok(self.bank_of(layout, parts))
    }

    /// Binds one tensor per expert.
    fn each(
        &self,
        table: &mut TensorTable<'_>,
        quantisation: &mut Quantisation,
        projection: Projection,
    ) -> Result<BoundProjection> {
        let Projection { n_rows, n_cols, .. } = projection;
        let mut all = Vec::new();
        for expert_idx in 0..self.shape.n_experts {
            let base = format!("{}.experts.{expert_idx}.{}", self.prefix, projection.name);
            let required = RequiredMatrix { base: &base, n_stack: None, n_rows, n_cols };
            table.create_matrix(quantisation, &required);
            all.push(StoredMatrix::bind(table, quantisation, &required)?);
        }
        self.check_alike(projection, &all)?;
        let offset_of = |extent: FileExtent| (extent.file_idx, extent.offset_bytes);
        let offsets = |part: fn(&StoredMatrix) -> Option<FileExtent>| {
            let offsets: Option<Vec<_>> = all.iter().map(|it| part(it).map(offset_of)).collect();
            offsets.map(ExpertOffsets::Each)
        };
        Ok(BoundProjection {
            layout: all[0].layout,
            name: format!("{}.", projection.name),
            tensor: None,
            names: all[0].names,
            codes: ExpertOffsets::Each(all.iter().map(|it| offset_of(it.codes)).collect()),
            scales: offsets(|it| it.scales),
            biases: offsets(|it| it.biases),
        })
    }

    /// Checks that all experts are of one kind; the error names an expert of the rarest kind.
    fn check_alike(&self, projection: Projection, all: &[StoredMatrix]) -> Result<()> {
        let count = |kind: MatrixKind| all.iter().filter(|it| it.layout.kind == kind).count();
        if all.iter().all(|it| it.layout.kind == all[0].layout.kind) {
            return Ok(());
        }
        let kinds = all.iter().map(|it| it.layout.kind);
        let rarest = kinds.clone().enumerate().min_by_key(|&(_, kind)| count(kind));
        let commonest = kinds.max_by_key(|&kind| count(kind));
        let Some(((expert_idx, odd), usual)) = rarest.zip(commonest) else { return Ok(()) };
        Err(Error::tensor(
            format!(
                "{}.experts.{expert_idx}.{}.{}",
                self.prefix, projection.name, all[expert_idx].names.codes
            ),
            format!(
                "is stored as {odd}, but other experts of its layer as {usual}: they must use the \
                 same format"
            ),
        ))
    }

    /// Binds `[n_experts, 2 * inner, hidden]`, gate rows first, and `[n_experts, hidden, inner]`.
    fn fused(
        &self,
        table: &mut TensorTable<'_>,
        (gate_up_name, down_name): (&str, &str),
    ) -> Result<[BoundProjection; 3]> {
        let ExpertShape { n_experts, hidden, inner } = self.shape;
        let n_stack = Some(n_experts);
        let gate_up = RequiredMatrix {
            base: gate_up_name,
            n_stack,
            n_rows: inner.saturating_mul(2),
            n_cols: hidden,
        };
        let gate_up = StoredMatrix::whole(&gate_up, &table.take(gate_up_name)?)?;
        let down = RequiredMatrix { base: down_name, n_stack, n_rows: hidden, n_cols: inner };
        let down = StoredMatrix::whole(&down, &table.take(down_name)?)?;
        let half = MatrixLayout { n_rows: inner, ..gate_up.layout };
        let bound = |name: &str, layout, extent: FileExtent, skip_bytes: usize| BoundProjection {
            layout,
            name: format!("{name}."),
            tensor: Some(format!("{}.switch_mlp.{name}.", self.prefix)),
            names: PartNames::PLAIN,
            codes: ExpertOffsets::Strided {
                file_idx: extent.file_idx,
                first_bytes: extent.offset_bytes + skip_bytes as u64,
                stride_bytes: extent.len_bytes / n_experts as u64,
            },
            scales: None,
            biases: None,
        };
        Ok([
            bound("gate_proj", half, gate_up.codes, 0),
            bound("up_proj", half, gate_up.codes, half.code_bytes()),
            bound("down_proj", down.layout, down.codes, 0),
        ])
    }

    /// Binds gate and up as `[n_experts, hidden, 2 * inner]`, gate columns first, and down as
    /// `[n_experts, inner, hidden]`.
    fn input_first(&self, table: &mut TensorTable<'_>, names: (&str, &str)) -> Result<ExpertBank> {
        let ExpertShape { n_experts, hidden, inner } = self.shape;
        let mut whole = |base: &str, n_rows: usize, n_cols: usize| {
            let required = RequiredMatrix { base, n_stack: Some(n_experts), n_rows, n_cols };
            required.check_size()?;
            let stored = StoredMatrix::whole(&required, &table.take(base)?)?;
            // The tensor's name has no suffix.
            let names = PartNames { codes: "", ..PartNames::PLAIN };
            let stored = StoredMatrix { names, ..stored };
            Ok::<_, Error>(self.of_all(stored, base.to_owned(), base.to_owned()))
        };
        let gate_up = whole(names.0, hidden, inner.saturating_mul(2))?;
        let down = whole(names.1, inner, hidden)?;
        let turned = |stored: MatrixLayout, n_rows: usize, n_cols: usize| MatrixLayout {
            kind: stored.kind,
            n_rows,
            n_cols,
        };
        let half = turned(gate_up.layout, inner, hidden);
        let layout = ExpertLayout::new(half, half, turned(down.layout, hidden, inner));
        let spans = [(gate_up, layout.gate), (down, layout.down)];
        let parts = spans.into_iter().flat_map(|(bound, span)| {
            let span = MatrixSpan { layout: bound.layout, ..span };
            parts_of(bound, span)
        });
        let parts = parts.collect();
        Ok(ExpertBank { is_input_first: true, ..self.bank_of(layout, parts) })
    }

    fn bank(&self, bound: [BoundProjection; 3]) -> ExpertBank {
        let [gate, up, down] = &bound;
        let layout = ExpertLayout::new(gate.layout, up.layout, down.layout);
        let spans = [layout.gate, layout.up, layout.down];
        let bound = bound.into_iter().zip(spans);
        let parts = bound.flat_map(|(bound, span)| parts_of(bound, span)).collect();
        self.bank_of(layout, parts)
    }

    fn bank_of(&self, layout: ExpertLayout, parts: Vec<BankPart>) -> ExpertBank {
        let ExpertShape { n_experts, .. } = self.shape;
        let name = self.prefix.to_owned();
        let (layer, records) = (self.layer, None);
        ExpertBank { layer, name, n_experts, layout, parts, records, is_input_first: false }
    }
}

/// Returns the name prefix of matrices that hold all experts of a layer; for gpt_oss, mlx-lm uses a
/// different one.
pub(super) fn stacked_stem(table: &TensorTable<'_>, prefix: &str) -> Option<String> {
    let name = |stem: &str| format!("{prefix}.{stem}.gate_proj.weight");
    let stem = match table.has(&name("switch_mlp")) {
        true => "switch_mlp",
        false if table.has_stored(&name("experts")) => "experts",
        false => return None,
    };
    Some(format!("{prefix}.{stem}"))
}

/// Returns the names of parts in packed records.
fn names_in_record(kind: MatrixKind) -> PartNames {
    match kind {
        MatrixKind::Affine(_) => {
            PartNames { scales: "scales", biases: "biases", ..PartNames::PLAIN }
        }
        MatrixKind::Fp8(_) => PartNames { scales: "weight_scale_inv", ..PartNames::PLAIN },
        MatrixKind::Float(_) | MatrixKind::Block(_) => {
            PartNames { scales: "scales", ..PartNames::PLAIN }
        }
    }
}

/// Returns the parts that the matrix has, with their offsets in the record.
fn parts_of(bound: BoundProjection, span: MatrixSpan) -> impl Iterator<Item = BankPart> {
    let layout = span.layout;
    let code = match layout.kind {
        MatrixKind::Block(kind) => PartRole::Blocks(kind),
        MatrixKind::Float(_) | MatrixKind::Fp8(_) | MatrixKind::Affine(_) => PartRole::Codes,
    };
    let scale = layout.kind.scale_kind().map_or(PartRole::Codes, PartRole::Scales);
    let BoundProjection { name, tensor, names, codes, scales, biases, .. } = bound;
    let all = [
        (names.codes, code, span.codes_at, layout.code_bytes(), Some(codes)),
        (names.scales, scale, span.scales_at, layout.scale_bytes(), scales),
        (names.biases, scale, span.biases_at, layout.bias_bytes(), biases),
    ];
    all.into_iter().filter_map(move |(part, role, record_at, len_bytes, offsets)| {
        let tensor = tensor.as_ref().map(|tensor| format!("{tensor}{part}"));
        let name = format!("{name}{part}");
        let (n_before_bytes, whole_bytes) = (0, len_bytes);
        offsets.map(|offsets| BankPart {
            name,
            tensor,
            role,
            record_at,
            len_bytes,
            n_before_bytes,
            whole_bytes,
            offsets,
        })
    })
}
