//! The routed experts of a layer, in any of the three ways in which they are published, or packed.
//!
//! **Invariant:** all experts of a bank are stored alike, so that one layout serves them all.

use moeflux_kernels::{FloatKind, MatrixKind, MatrixLayout};

use crate::error::{Error, Result};
use crate::ids::LayerIdx;
use crate::spec::Quantisation;
use crate::weights::found::{Extent, FoundBank, Wanted};
use crate::weights::manifest::{BankPart, ExpertBank, PartRole, Places};
use crate::weights::packed::WantedMatrix;
use crate::weights::resident::{ExpertLayout, MatrixSpan};
use crate::weights::stored::StoredMatrix;
use crate::weights::table::Table;

/// Sizes of a layer's routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertShape {
    /// How many.
    pub n_experts: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Inner width of one expert.
    pub inner: usize,
}

/// The experts that are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct BankRequest<'n> {
    pub(super) layer: LayerIdx,
    /// `model.layers.3.mlp`.
    pub(super) prefix: &'n str,
    pub(super) shape: ExpertShape,
}

/// One of the three matrices of an expert.
#[derive(Clone, Copy, Debug)]
struct Projection {
    /// In names of tensors.
    name: &'static str,
    /// Of its codes, affine scales, affine biases and FP8 scales.
    parts: [&'static str; 4],
    n_rows: usize,
    n_cols: usize,
}

/// One matrix of all experts.
#[derive(Debug)]
struct BoundProjection {
    /// Of one expert.
    layout: MatrixLayout,
    codes: Places,
    scales: Option<Places>,
    biases: Option<Places>,
}

impl BankRequest<'_> {
    /// Takes the tensors of all experts.
    pub(super) fn bind(
        &self,
        table: &mut Table<'_>,
        quantisation: &mut Quantisation,
    ) -> Result<ExpertBank> {
        let prefix = self.prefix;
        assert!(self.shape.n_experts > 0, "a layer of experts has some");
        let per_expert = format!("{prefix}.experts.0.gate_proj.weight");
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
        if table.has(&per_expert) {
            let [gate, up, down] = self.projections().map(|it| self.each(table, quantisation, it));
            return Ok(self.bank([gate?, up?, down?]));
        }
        match fused.iter().find(|name| table.has(name)) {
            Some(gate_up) => {
                let down = gate_up.replace("gate_up_proj", "down_proj");
                Ok(self.bank(self.fused(table, (gate_up, &down))?))
            }
            None if table.is_gguf() => {
                Err(table.missing(&format!("{prefix}.switch_mlp.gate_proj.weight")))
            }
            None => Err(table.missing(&per_expert)),
        }
    }

    /// Records as `moeflux pack` writes them.
    fn packed(&self, found: &FoundBank<'_>, quantisation: &Quantisation) -> Result<ExpertBank> {
        let wanted = self.projections().map(|projection| {
            let Projection { name, n_rows, n_cols, .. } = projection;
            WantedMatrix { name, n_rows, n_cols }
        });
        let layout = found.layout(self.shape.n_experts, wanted, quantisation)?;
        let records = found.records();
        let strided = |record_at: usize| Places::Strided {
            file_idx: records.file_idx,
            first_bytes: records.first_bytes + record_at as u64,
            stride_bytes: records.record_bytes as u64,
        };
        let bound = [layout.gate, layout.up, layout.down].map(|span| BoundProjection {
            layout: span.layout,
            codes: strided(span.codes_at),
            scales: (span.layout.scale_bytes() > 0).then(|| strided(span.scales_at)),
            biases: (span.layout.bias_bytes() > 0).then(|| strided(span.biases_at)),
        });
        Ok(ExpertBank { records: Some(records), ..self.bank(bound) })
    }

    fn projections(&self) -> [Projection; 3] {
        let ExpertShape { hidden, inner, .. } = self.shape;
        let new = |name, parts, n_rows, n_cols| Projection { name, parts, n_rows, n_cols };
        let gate = [
            "gate_proj.weight",
            "gate_proj.scales",
            "gate_proj.biases",
            "gate_proj.weight_scale_inv",
        ];
        let up = ["up_proj.weight", "up_proj.scales", "up_proj.biases", "up_proj.weight_scale_inv"];
        let down = [
            "down_proj.weight",
            "down_proj.scales",
            "down_proj.biases",
            "down_proj.weight_scale_inv",
        ];
        [
            new("gate_proj", gate, inner, hidden),
            new("up_proj", up, inner, hidden),
            new("down_proj", down, hidden, inner),
        ]
    }

    /// `[n_experts, rows, cols]`, as MLX stacks them.
    fn stacked(
        &self,
        table: &mut Table<'_>,
        quantisation: &mut Quantisation,
        (stem, projection): (&str, Projection),
    ) -> Result<BoundProjection> {
        let base = format!("{stem}.{}", projection.name);
        let Projection { n_rows, n_cols, .. } = projection;
        let wanted = Wanted { base: &base, n_stack: Some(self.shape.n_experts), n_rows, n_cols };
        wanted.check_size()?;
        table.imagine_matrix(quantisation, &wanted);
        let stored = StoredMatrix::bind(table, quantisation, &wanted)?;
        let n_experts = self.shape.n_experts as u64;
        let strided = |extent: Extent| Places::Strided {
            file_idx: extent.file_idx,
            first_bytes: extent.offset_bytes,
            stride_bytes: extent.len_bytes / n_experts,
        };
        Ok(BoundProjection {
            layout: stored.layout,
            codes: strided(stored.codes),
            scales: stored.scales.map(strided),
            biases: stored.biases.map(strided),
        })
    }

    /// A tensor per expert.
    fn each(
        &self,
        table: &mut Table<'_>,
        quantisation: &Quantisation,
        projection: Projection,
    ) -> Result<BoundProjection> {
        let Projection { n_rows, n_cols, .. } = projection;
        let mut all = Vec::new();
        for expert_idx in 0..self.shape.n_experts {
            let base = format!("{}.experts.{expert_idx}.{}", self.prefix, projection.name);
            let wanted = Wanted { base: &base, n_stack: None, n_rows, n_cols };
            all.push(StoredMatrix::bind(table, quantisation, &wanted)?);
        }
        self.check_alike(projection, &all)?;
        let place = |extent: Extent| (extent.file_idx, extent.offset_bytes);
        let places = |part: fn(&StoredMatrix) -> Option<Extent>| {
            let places: Option<Vec<_>> = all.iter().map(|it| part(it).map(place)).collect();
            places.map(Places::Each)
        };
        Ok(BoundProjection {
            layout: all[0].layout,
            codes: Places::Each(all.iter().map(|it| place(it.codes)).collect()),
            scales: places(|it| it.scales),
            biases: places(|it| it.biases),
        })
    }

    /// Names the expert whose kind is the rarest, if there are several kinds.
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
            format!("{}.experts.{expert_idx}.{}.weight", self.prefix, projection.name),
            format!(
                "is stored as {odd} and other experts of its layer as {usual}: experts of a \
                 layer must be stored alike"
            ),
        ))
    }

    /// `[n_experts, 2 * inner, hidden]`, gate rows first, and `[n_experts, hidden, inner]`.
    fn fused(
        &self,
        table: &mut Table<'_>,
        (gate_up_name, down_name): (&str, &str),
    ) -> Result<[BoundProjection; 3]> {
        let ExpertShape { n_experts, hidden, inner } = self.shape;
        let n_stack = Some(n_experts);
        let gate_up =
            Wanted { base: gate_up_name, n_stack, n_rows: inner.saturating_mul(2), n_cols: hidden };
        let gate_up = StoredMatrix::whole(&gate_up, &table.take(gate_up_name)?)?;
        let down = Wanted { base: down_name, n_stack, n_rows: hidden, n_cols: inner };
        let down = StoredMatrix::whole(&down, &table.take(down_name)?)?;
        let half = MatrixLayout { n_rows: inner, ..gate_up.layout };
        let bound = |layout: MatrixLayout, extent: Extent, skip_bytes: usize| BoundProjection {
            layout,
            codes: Places::Strided {
                file_idx: extent.file_idx,
                first_bytes: extent.offset_bytes + skip_bytes as u64,
                stride_bytes: extent.len_bytes / n_experts as u64,
            },
            scales: None,
            biases: None,
        };
        Ok([
            bound(half, gate_up.codes, 0),
            bound(half, gate_up.codes, half.code_bytes()),
            bound(down.layout, down.codes, 0),
        ])
    }

    fn bank(&self, bound: [BoundProjection; 3]) -> ExpertBank {
        let [gate, up, down] = &bound;
        let layout = ExpertLayout::new(gate.layout, up.layout, down.layout);
        let spans = [layout.gate, layout.up, layout.down];
        let mut parts = Vec::new();
        for ((projection, bound), span) in self.projections().iter().zip(bound).zip(spans) {
            push_parts(&mut parts, projection, bound, span);
        }
        let ExpertShape { n_experts, .. } = self.shape;
        let name = self.prefix.to_owned();
        ExpertBank { layer: self.layer, name, n_experts, layout, parts, records: None }
    }
}

/// What stands before the names of matrices that hold all experts of a layer: of gpt_oss, mlx-lm
/// writes another one.
pub(super) fn stacked_stem(table: &Table<'_>, prefix: &str) -> Option<String> {
    let stems = ["switch_mlp", "experts"].map(|stem| format!("{prefix}.{stem}"));
    stems.into_iter().find(|stem| table.has(&format!("{stem}.gate_proj.weight")))
}

fn push_parts(
    parts: &mut Vec<BankPart>,
    projection: &Projection,
    bound: BoundProjection,
    span: MatrixSpan,
) {
    let layout = span.layout;
    let [codes, affine_scales, biases, fp8_scales] = projection.parts;
    let (scales, scale) = match layout.kind {
        MatrixKind::Affine(affine) => (affine_scales, affine.scale),
        MatrixKind::Float(_) | MatrixKind::Fp8Block | MatrixKind::Block(_) => {
            (fp8_scales, FloatKind::F32)
        }
    };
    let scale = PartRole::Scales(scale);
    let code = match layout.kind {
        MatrixKind::Block(kind) => PartRole::Blocks(kind),
        MatrixKind::Float(_) | MatrixKind::Fp8Block | MatrixKind::Affine(_) => PartRole::Codes,
    };
    let all = [
        (codes, code, span.codes_at, layout.code_bytes(), Some(bound.codes)),
        (scales, scale, span.scales_at, layout.scale_bytes(), bound.scales),
        (biases, scale, span.biases_at, layout.bias_bytes(), bound.biases),
    ];
    for (name, role, record_at, len_bytes, places) in all {
        if let Some(places) = places {
            parts.push(BankPart { name, role, record_at, len_bytes, places });
        }
    }
}
