//! Walks a batch of rows through a model's plans: the only place where computing waits for experts.
//!
//! plan -> routes -> lease -> plan, layer by layer. **Invariant:** the rows of a batch may belong
//! to one session or to many; each row's result is the same in any company.

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::experts::ExpertStore;
use crate::experts::trace::{LayerShape, StepKind, TraceHeader, TraceWriter};
use crate::families::{ModelPlan, MoePlan};
use crate::ids::LayerIdx;
use crate::ops::{Batch, N_OUTPUTS_MAX, Routes};
use crate::spec::{FfnSpec, ModelSpec};

/// A model ready to run, apart from the device it runs on.
#[derive(Debug)]
pub struct Model {
    /// Shapes and constants.
    pub spec: ModelSpec,
    /// What to run.
    pub plan: ModelPlan,
    /// The routed experts.
    pub experts: ExpertStore,
    /// Names these weights: a saved state belongs to one fingerprint.
    pub fingerprint: u64,
    /// Where routes are written, if they are; `None` within once that has ended.
    pub trace: Option<Mutex<Option<TraceWriter>>>,
}

impl Model {
    /// The shapes that a trace of this model's routes begins with.
    #[must_use]
    pub fn trace_header(&self) -> TraceHeader {
        let layers = self.spec.layers.iter().zip(0..).map(|(layer, layer_idx)| match &layer.ffn {
            FfnSpec::Moe(moe) => LayerShape {
                n_experts: moe.n_experts,
                top_k: moe.top_k,
                record_bytes: self.experts.record_bytes(LayerIdx(layer_idx)).unwrap_or(0),
            },
            FfnSpec::Dense { .. } => LayerShape::default(),
        });
        TraceHeader { fingerprint: self.fingerprint, layers: layers.collect() }
    }

    fn note_routes(&self, layer: LayerIdx, routes: &Routes) -> Result<()> {
        let Some(trace) = &self.trace else { return Ok(()) };
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(writer) = &mut *trace else { return Ok(()) };
        let is_one = routes.experts.len() == routes.top_k;
        let kind = if is_one { StepKind::Decode } else { StepKind::Prefill };
        writer.layer(kind, layer, &routes.experts)
    }
}

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepProgress {
    /// Rows that are complete, of those fed in one call.
    pub n_rows_done: usize,
    /// Rows fed in one call.
    pub n_rows: usize,
    /// Layers that the rows now computed have passed.
    pub n_layers_done: usize,
    /// Layers of the model.
    pub n_layers: usize,
}

/// Called after every layer; `Break` asks the work to stop.
pub type Watch<'a> = dyn FnMut(StepProgress) -> ControlFlow<()> + 'a;

/// Runs all layers over the rows of `batch`. `layer_done` is told the number of layers passed;
/// when it breaks, the step ends with [`Error::Cancelled`] and the sessions' states are between
/// two positions.
///
/// # Errors
///
/// What the device or the experts' store report, or [`Error::Cancelled`].
pub fn run_layers(
    model: &Model,
    backend: &mut dyn Backend,
    batch: &Batch<'_>,
    layer_done: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<()> {
    assert!(batch.rows.len() <= backend.n_rows_max(), "a batch fits the workspace");
    backend.submit(&model.plan.embed, batch)?;
    for (layer_idx, layer) in model.plan.layers.iter().enumerate() {
        backend.submit(&layer.mixer, batch)?;
        if let Some(moe) = &layer.moe {
            run_experts(model, backend, batch, (LayerIdx(layer_idx), moe))?;
        }
        if layer_done(layer_idx + 1).is_break() {
            return Err(Error::Cancelled);
        }
    }
    Ok(())
}

fn run_experts(
    model: &Model,
    backend: &mut dyn Backend,
    batch: &Batch<'_>,
    (layer, moe): (LayerIdx, &MoePlan),
) -> Result<()> {
    model.note_routes(layer, backend.routes())?;
    let chosen = backend.routes().union();
    let mut lease = model.experts.acquire(layer, &chosen)?;
    backend.submit(&moe.shared, batch)?;
    while let Some(arrived) = lease.next_ready()? {
        backend.submit_experts(&moe.experts, arrived)?;
    }
    backend.submit(&moe.combine, batch)
}

/// Computes the logits of the rows in [`Batch::outputs`], after [`run_layers`]; `sink` gets each
/// row's place in `outputs` and its logits. `logits` is scratch of one row.
///
/// # Errors
///
/// What the device reports.
pub fn run_head(
    model: &Model,
    backend: &mut dyn Backend,
    batch: &Batch<'_>,
    logits: &mut [f32],
    sink: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
) -> Result<()> {
    let mut n_done = 0;
    for outputs in batch.outputs.chunks(N_OUTPUTS_MAX) {
        backend.submit(&model.plan.head, &Batch { outputs, ..*batch })?;
        for row_idx in 0..outputs.len() {
            backend.read_row(model.plan.logits.buffer, row_idx, logits)?;
            sink(n_done + row_idx, logits)?;
        }
        n_done += outputs.len();
    }
    Ok(())
}
