//! Trial of a device's matrix unit. A small layer is computed with the unit and with plain kernels
//! before the first model is.
//!
//! Driver support for cooperative matrices is new, and a driver that loads them from a wrong
//! address reports nothing. **Invariant:** a unit that is wrong in any of its uses (matrix
//! products, experts sorted into tiles) is not used.

use std::sync::Arc;

use moeflux::provider::backend::{Arithmetic, Backend, ExpertTiers};
use moeflux::provider::error::Result;
use moeflux::provider::ids::{BufferId, ExpertIdx, LayerIdx, Position, TokenId};
use moeflux::provider::ops::{
    Batch, Combine, Embed, ExpertFfn, Heads, MatMul, Op, Plan, Purpose, Route, RouterKind, Row,
    Workspace,
};
use moeflux::provider::weights::{ExpertView, OwnedMatrix, Weights};
use moeflux_kernels::{Affine, FloatKind, MatrixKind, MatrixLayout};

use crate::backend::GpuBackend;
use crate::config::{GpuConfig, Matrices};
use crate::device::Gpu;
use crate::values::{WeightGenerator, relative_error};

/// Input tiles have 64 and 128 rows: some are whole, some partial.
const N_ROWS: usize = 150;
/// Columns of all matrices, and rows of most outputs: a row of tiles and a part of one.
const WIDTH: usize = 192;
const N_EXPERTS: usize = 4;
const TOP_K: usize = 2;
/// Relative error bound. Rounding causes some 3e-4; one wrong column in a hundred causes 1e-1.
const ERROR_MAX: f64 = 1e-2;

/// Returns whether the unit's results agree with those of plain kernels.
///
/// # Errors
///
/// [`moeflux::Error::Device`] or [`moeflux::Error::NoRoom`], as the device reports.
pub(crate) fn matrices_agree(gpu: &Arc<Gpu>, matrices: Matrices) -> Result<bool> {
    let layer = TrialLayer::new()?;
    let plain = GpuConfig { arithmetic: Arithmetic::F32, ..GpuConfig::default() };
    let expected = layer.outputs(gpu, plain.clone())?;
    let staged = GpuConfig { arithmetic: Arithmetic::F16Staged, matrices, ..plain };
    let outputs = layer.outputs(gpu, staged)?;
    Ok(outputs.iter().zip(&expected).all(|(x, y)| is_close(x, y)))
}

/// Returns whether the error is within [`ERROR_MAX`]. NaN is close to nothing.
fn is_close(values: &[f32], expected: &[f32]) -> bool {
    relative_error(values, expected) <= ERROR_MAX
}

/// A product of many rows, and routed experts over them.
struct TrialLayer {
    weights: Weights,
    workspace: Workspace,
    plan: Plan,
    outputs: [BufferId; 2],
    expert: [OwnedMatrix; 3],
}

impl TrialLayer {
    fn new() -> Result<Self> {
        let mut values = WeightGenerator::new(1);
        let (mut weights, mut workspace) = (Weights::default(), Workspace::default());
        let float = |n_cols| MatrixLayout {
            kind: MatrixKind::Float(FloatKind::F32),
            n_rows: N_ROWS,
            n_cols,
        };
        let mut input = |name, n_cols| -> Result<(Heads, Op)> {
            let table = weights.push_matrix(values.matrix(float(n_cols))?);
            let out = workspace.buffer(name, n_cols);
            Ok((out, Op::Embed(Embed { table, out })))
        };
        let (x, embed) = input("x", WIDTH)?;
        let (logits, embed_logits) = input("logits", N_EXPERTS)?;
        let affine = Affine::new(4, 64, FloatKind::Bf16);
        let kind = MatrixKind::Affine(affine);
        let layout = MatrixLayout { kind, n_rows: WIDTH, n_cols: WIDTH };
        let weight = weights.push_matrix(values.matrix(layout)?);
        let [product, sum, out] =
            ["product", "sum", "out"].map(|name| workspace.buffer(name, WIDTH));
        let router = RouterKind::Softmax { renormalise: true };
        let route = Route { logits, kind: router, top_k: TOP_K, purpose: Purpose::Compute };
        let (shared, shared_gate, residual) = (None, None, Some(x));
        let plan = Plan::new(vec![
            embed,
            embed_logits,
            Op::MatMul(MatMul { weight, bias: None, x, out: product }),
            Op::Route(route),
            Op::ExpertFfn(ExpertFfn { layer: LayerIdx(0), x, sum, limit: None, biases: None }),
            Op::Combine(Combine { sum, shared, shared_gate, residual, out }),
        ]);
        let expert = [values.matrix(layout)?, values.matrix(layout)?, values.matrix(layout)?];
        let outputs = [product.buffer, out.buffer];
        Ok(Self { weights, workspace, plan, outputs, expert })
    }

    fn outputs(&self, gpu: &Arc<Gpu>, config: GpuConfig) -> Result<[Vec<f32>; 2]> {
        let (weights, workspace) = (&self.weights, &self.workspace);
        let mut backend = GpuBackend::new(Arc::clone(gpu), weights, workspace, N_ROWS, config)?;
        let [gate, up, down] = &self.expert;
        for expert in (0..N_EXPERTS).map(ExpertIdx) {
            let view = ExpertView { gate: gate.view(), up: up.view(), down: down.view() };
            backend.keep_expert((LayerIdx(0), expert), N_EXPERTS, &view)?;
        }
        let row = |(idx, token)| Row { token: TokenId(token), position: Position(idx) };
        let rows: Vec<Row> = (0..N_ROWS).zip(0..).map(row).collect();
        backend.submit(&self.plan, &Batch { rows: &rows, segments: &[], outputs: &[] })?;
        let mut read = |buffer| -> Result<Vec<f32>> {
            let mut values = vec![0.0; N_ROWS * WIDTH];
            for (idx, row) in values.chunks_exact_mut(WIDTH).enumerate() {
                backend.read_row(buffer, idx, row)?;
            }
            Ok(values)
        };
        let [first, second] = self.outputs;
        Ok([read(first)?, read(second)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::adapters;

    #[test]
    fn a_sound_unit_agrees() {
        let adapters = adapters();
        // The tests of `tests/it` report a missing adapter.
        let Some(adapter) = adapters.first() else { return };
        let gpu = Gpu::open(adapter).unwrap();
        assert!(gpu.facts().has_f16, "without f16 both ways are the same");
        assert!(matrices_agree(&gpu, Matrices::Emulated).unwrap());
    }

    #[test]
    fn wrong_values_are_not_close() {
        let expected: Vec<f32> = (0_u16..1000).map(|idx| f32::from(idx % 7) - 3.0).collect();
        assert!(is_close(&expected, &expected));
        let mut values: Vec<f32> = expected.iter().map(|value| value * 1.0005).collect();
        assert!(is_close(&values, &expected), "rounding");
        values[123] = f32::NAN;
        assert!(!is_close(&values, &expected), "NaN");
        values[123] = 40.0;
        assert!(!is_close(&values, &expected), "a wrong value");
        assert!(!is_close(&[0.0; 4], &[0.0; 4]), "nothing was computed");
    }
}
