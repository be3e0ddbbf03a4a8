//! Walks a batch of rows through a model's plans: the only place where computing waits for experts.
//!
//! plan -> routes -> lease -> plan, layer by layer. **Invariant:** the rows of a batch may belong
//! to one session or to many; each row's result is the same in any company.

mod finite;

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::experts::predict::Stage;
use crate::experts::trace::{LayerShape, StepKind, TraceHeader, TraceWriter};
use crate::experts::{Experts, Request};
use crate::families::{LayerPlan, ModelPlan, MoePlan};
use crate::ids::{LayerIdx, TokenId};
use crate::ops::{Batch, N_OUTPUTS_MAX, Purpose, Routes};
use crate::spec::{FfnSpec, ModelSpec};

/// A model ready to run, apart from the device it runs on.
#[derive(Debug)]
pub struct Model {
    /// Shapes and constants.
    pub spec: ModelSpec,
    /// What to run.
    pub plan: ModelPlan,
    /// Per layer: bytes of one routed expert, for those who count them; 0 where there are none.
    pub expert_bytes: Vec<u64>,
    /// Names these weights: a saved state belongs to one fingerprint.
    pub fingerprint: u64,
    /// Where routes are written, if they are; `None` within once that has ended.
    pub trace: Option<Mutex<Option<TraceWriter>>>,
}

impl Model {
    /// The shapes that a trace of this model's routes begins with.
    #[must_use]
    pub fn trace_header(&self) -> TraceHeader {
        let layers =
            self.spec.layers.iter().enumerate().map(|(layer_idx, layer)| match &layer.ffn {
                FfnSpec::Moe(moe) => LayerShape {
                    n_experts: moe.n_experts,
                    top_k: moe.top_k,
                    record_bytes: self.expert_bytes[layer_idx],
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

/// What a model runs on.
#[derive(Debug)]
pub struct Device {
    /// Interprets the plans.
    pub backend: Box<dyn Backend>,
    /// Brings the routed experts.
    pub experts: Experts,
    /// One row of logits.
    pub logits: Vec<f32>,
    /// One row of any other buffer.
    pub row: Vec<f32>,
    /// The best of a row.
    pub best: Vec<(TokenId, f32)>,
    /// Prompts under way that have longer steps for memory of slots.
    pub n_borrowers: usize,
}

/// What comes back of a wanted row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Logits<'a> {
    /// One logit per token of the vocabulary.
    All(&'a [f32]),
    /// The best ones, best first; of equals the one of the lower token.
    Best(&'a [(TokenId, f32)]),
}

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepProgress {
    /// Rows that are complete, of those fed in one call.
    pub n_rows_done: usize,
    /// Rows that are being computed, behind those.
    pub n_rows_now: usize,
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
    device: &mut Device,
    batch: &Batch<'_>,
    layer_done: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<()> {
    let n_rows = batch.rows.len();
    assert!(n_rows <= device.backend.n_rows_max(), "a batch fits the workspace");
    device.experts.begin_step(n_rows);
    device.backend.submit(&model.plan.embed, batch)?;
    guess_late(model, device, batch, LayerIdx(0))?;
    for (layer_idx, layer) in model.plan.layers.iter().enumerate() {
        let ran = run_layer(model, device, batch, (LayerIdx(layer_idx), layer));
        if matches!(ran, Err(Error::NonFinite { .. })) {
            return Err(finite::locate(model, device, batch));
        }
        ran?;
        guess_late(model, device, batch, LayerIdx(layer_idx + 1))?;
        if layer_done(layer_idx + 1).is_break() {
            return Err(Error::Cancelled);
        }
    }
    finite::check_stream(model, device, batch)
}

fn run_layer(
    model: &Model,
    device: &mut Device,
    batch: &Batch<'_>,
    (layer, plan): (LayerIdx, &LayerPlan),
) -> Result<()> {
    let Some(moe) = &plan.moe else {
        return device.backend.submit(&plan.mixer, batch);
    };
    if matches!(device.experts, Experts::OnDevice) {
        device.backend.submit(&moe.whole, batch)?;
        return match model.trace {
            Some(_) => model.note_routes(layer, device.backend.routes(Purpose::Use)?),
            None => Ok(()),
        };
    }
    device.backend.submit(&plan.mixer, batch)?;
    let done = run_experts(model, device, batch, (layer, moe));
    if done.is_err() {
        device.experts.give_up();
    }
    done
}

fn run_experts(
    model: &Model,
    device: &mut Device,
    batch: &Batch<'_>,
    (layer, moe): (LayerIdx, &MoePlan),
) -> Result<()> {
    let next = LayerIdx(layer.0 + 1);
    let is_remote = device.backend.is_remote();
    let is_asking = is_remote && ask(model, device, batch, next)?;
    let routes = device.backend.routes(Purpose::Use)?;
    if !finite::all_finite(&routes.weights) {
        return Err(Error::NonFinite { place: format!("layer {}, route", layer.0) });
    }
    model.note_routes(layer, routes)?;
    let request = Request { layer, chosen: &routes.experts, n_rows: batch.rows.len() };
    device.experts.request(&request)?;
    if is_asking || (!is_remote && ask(model, device, batch, next)?) {
        guess(device, (next, Stage::Early))?;
    }
    let Device { backend, experts, .. } = device;
    backend.submit(&moe.shared, batch)?;
    while let Some(arrived) = experts.next_ready()? {
        backend.submit_experts(&moe.experts, &arrived)?;
        while let Some(next) = experts.next_move() {
            backend.bring_near(&next)?;
        }
    }
    backend.submit(&moe.combine, batch)
}

/// Lets a layer's router say beforehand what it would choose, where that is worth asking.
fn ask(model: &Model, device: &mut Device, batch: &Batch<'_>, layer: LayerIdx) -> Result<bool> {
    let next = model.plan.layers.get(layer.0).and_then(|layer| layer.moe.as_ref());
    let Some(moe) = next.filter(|_| device.experts.is_asking(batch.rows.len())) else {
        return Ok(false);
    };
    device.backend.submit(&moe.guess, batch)?;
    Ok(true)
}

/// The same once more, when the layer before is done: its own choice comes so soon behind that on a
/// device which has to be waited for that this would only delay it.
fn guess_late(
    model: &Model,
    device: &mut Device,
    batch: &Batch<'_>,
    layer: LayerIdx,
) -> Result<()> {
    if device.backend.is_remote() || !ask(model, device, batch, layer)? {
        return Ok(());
    }
    guess(device, (layer, Stage::Late))
}

/// Hears what a router said beforehand.
fn guess(device: &mut Device, (layer, stage): (LayerIdx, Stage)) -> Result<()> {
    let routes = device.backend.routes(Purpose::Guess)?;
    device.experts.guess((layer, stage), (&routes.experts, &routes.weights))
}

/// Computes the logits of the rows in [`Batch::outputs`], after [`run_layers`]; `sink` gets each
/// row's place in `outputs` and its logits: all of them, or the best where so many are enough and
/// the others would have to be fetched from a device.
///
/// # Errors
///
/// What the device reports.
pub fn run_head(
    model: &Model,
    device: &mut Device,
    batch: &Batch<'_>,
    n_best: Option<usize>,
    sink: &mut dyn FnMut(usize, Logits<'_>) -> Result<()>,
) -> Result<()> {
    let ModelPlan { head, head_and_best, .. } = &model.plan;
    let n_found = model.plan.best.head_dim / 2;
    let n_best = n_best.filter(|n| device.backend.is_remote() && *n <= n_found);
    let (plan, found) = match n_best {
        Some(_) => (head_and_best, model.plan.best),
        None => (head, model.plan.logits),
    };
    let mut n_done = 0;
    for outputs in batch.outputs.chunks(N_OUTPUTS_MAX) {
        device.backend.submit(plan, &Batch { outputs, ..*batch })?;
        for row_idx in 0..outputs.len() {
            let Device { backend, logits, best, .. } = &mut *device;
            let row = &mut logits[..found.head_dim];
            backend.read_row(found.buffer, row_idx, row)?;
            // The best ones begin with what is no number, if there is any.
            let judged = if n_best.is_some() { &row[..n_found] } else { &*row };
            if !finite::all_finite(judged) {
                return Err(finite::locate(model, device, batch));
            }
            let Some(n_best) = n_best else {
                sink(n_done + row_idx, Logits::All(row))?;
                continue;
            };
            let (values, tokens) = row.split_at(n_found);
            best.clear();
            best.extend(tokens.iter().map(|it| token_of(*it)).zip(values.iter().copied()));
            best.truncate(n_best);
            sink(n_done + row_idx, Logits::Best(best))?;
        }
        n_done += outputs.len();
    }
    Ok(())
}

/// A token that a device names by a number: exact, since [`crate::ops::Best`] takes fewer columns.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number; what is none becomes one that the vocabulary has or has not"
)]
fn token_of(number: f32) -> TokenId {
    TokenId(number as u32)
}
