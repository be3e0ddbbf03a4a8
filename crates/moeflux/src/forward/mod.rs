//! Runs a batch of rows through a model's plans: the only place where computing waits for experts.
//!
//! plan -> routes -> lease -> plan, layer by layer. **Invariant:** the rows of a batch may belong
//! to one session or to several; a row's result does not depend on the other rows.

mod logits;
mod tables;
mod finite;
mod sharded;
mod follow;

pub(crate) use follow::follow;
pub(crate) use logits::LogitRows;
pub use logits::Logits;
pub(crate) use tables::{RowTables, rows_that_need};

use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::experts::predict::GuessStage;
use crate::experts::stream::N_ROWS_ANY_ORDER;
use crate::experts::trace::{LayerShape, StepKind, TraceHeader, TraceWriter};
use crate::experts::{ExpertRequest, Experts};
use crate::families::{LayerPlan, ModelPlan, MoePlan};
use crate::ids::{LayerIdx, TokenId};
use crate::ops::{Batch, Heads, Op, Purpose, Routes};
use crate::ranks::{ExchangeStage, OwnedBatch, RankLink, SharedLink, bytes_of};
use crate::spec::{FfnSpec, ModelSpec};

/// A model ready to run, apart from the device.
#[derive(Debug)]
pub struct LoadedModel {
    /// Shapes and constants.
    pub spec: ModelSpec,
    /// Plans of the model.
    pub plan: ModelPlan,
    /// Bytes of one routed expert in each layer, for statistics; 0 for layers without experts.
    pub expert_bytes: Vec<u64>,
    /// Identifies these weights: a saved state belongs to one fingerprint.
    pub fingerprint: u64,
    /// Writer of the trace of routes, if enabled; the inner `None` means that tracing has ended.
    pub trace: Option<Mutex<Option<TraceWriter>>>,
}

impl LoadedModel {
    /// Returns the header of a trace of this model's routes.
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

    fn note_routes(&self, batch: &Batch<'_>, layer: LayerIdx, routes: &Routes) -> Result<()> {
        let Some(trace) = &self.trace else { return Ok(()) };
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(writer) = &mut *trace else { return Ok(()) };
        let kind = if batch.is_decode() { StepKind::Decode } else { StepKind::Prefill };
        writer.layer(kind, layer, &routes.experts)
    }
}

/// The device that a model runs on, with its experts and the loans of their slots.
#[derive(Debug)]
pub(crate) struct DeviceContext {
    /// Interprets the plans.
    pub backend: Box<dyn Backend>,
    /// Provides the routed experts.
    pub experts: Experts,
    /// Provides rows of tables, if the model has any.
    pub tables: Option<RowTables>,
    /// Scratch for one row of any buffer.
    pub row: Vec<f32>,
    /// Slots whose memory is lent, by borrower.
    pub lent: LentSlots,
    /// Number of running prompts with longer steps in memory lent by slots.
    pub n_borrowers: usize,
    /// A step that is paused between two layers.
    pub paused: Option<PausedStep>,
    /// Present if experts are sharded among several machines.
    pub group: Option<ShardGroup>,
}

/// Slots whose memory is lent, by borrower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LentSlots {
    /// To prompts, for longer steps.
    pub n_slots_for_prompts: usize,
    /// To sessions, for keys, values and states.
    pub n_slots_for_sessions: usize,
}

/// Machines among which the rows of every expert are sharded.
#[derive(Clone, Debug)]
pub(crate) struct ShardGroup {
    /// The connection between them.
    pub link: SharedLink,
    /// Number of experts that each of them can hold at once.
    pub n_chunk_experts: usize,
}

impl ShardGroup {
    fn begin_layer(&self, layers: (LayerIdx, LayerIdx), batch: &Batch<'_>) -> Result<()> {
        let mut link = self.link.lock();
        match link.is_leader() {
            true => link.begin_layer(layers, &|| OwnedBatch::of(batch)),
            false => Ok(()),
        }
    }

    fn end_layer(&self, layer: LayerIdx, is_done: bool) {
        self.link.lock().end_layer(layer, is_done);
    }

    fn rank(&self) -> usize {
        self.link.lock().topology().rank
    }

    /// Exchanges values with all ranks: see [`crate::ranks::RankLink::exchange`].
    fn exchange(
        &self,
        stage: ExchangeStage,
        hash: u64,
        own: Result<Vec<f32>>,
    ) -> Result<MutexGuard<'_, RankLink>> {
        let mut link = self.link.lock();
        match own {
            Ok(own) => link.exchange(stage, hash, Ok(&bytes_of(&own)))?,
            Err(error) => link.exchange(stage, hash, Err(error))?,
        }
        Ok(link)
    }
}

impl DeviceContext {
    /// Changes what slots lend. Returns whether that was possible: see [`Experts::lend`].
    ///
    /// # Errors
    ///
    /// As [`Experts::lend`].
    pub(crate) fn lend(&mut self, lent: LentSlots) -> Result<bool> {
        let n_slots = lent.n_slots_for_prompts + lent.n_slots_for_sessions;
        let is_lent = self.experts.lend(n_slots)?;
        if is_lent {
            self.lent = lent;
        }
        Ok(is_lent)
    }
}

/// A step that is paused between two layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PausedStep {
    /// Rows of the step.
    pub n_rows: usize,
    /// Whether its first rows were swapped out, so that others can be computed in their place.
    pub is_swapped_out: bool,
}

/// Progress of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepProgress {
    /// Rows completed, of those fed in one call.
    pub n_rows_done: usize,
    /// Rows being computed, after those.
    pub n_rows_now: usize,
    /// Rows fed in one call.
    pub n_rows: usize,
    /// Layers completed for the rows being computed.
    pub n_layers_done: usize,
    /// Layers of the model.
    pub n_layers: usize,
}

/// Called after every layer; `Break` requests cancellation.
pub(crate) type LayerCallback<'a> = dyn FnMut(StepProgress) -> ControlFlow<()> + 'a;

/// Runs the next layer over the rows of `batch`; the first layer includes the embedding. Other
/// batches may run in between if the rows of [`ModelPlan::carried`] are restored before this one
/// continues. Until the states of its sessions are committed, a batch can be restarted. With
/// several machines, the caller intends to run the layers before `end` without a pause.
///
/// # Errors
///
/// Errors of the device or of the expert store.
pub(crate) fn run_next_layer(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    (layer, end): (LayerIdx, LayerIdx),
) -> Result<()> {
    if let Some(group) = &device.group {
        group.begin_layer((layer, end), batch)?;
    }
    let ran = run_layer_and_guess(model, device, batch, layer);
    if let Some(group) = &device.group {
        group.end_layer(layer, ran.is_ok());
    }
    ran
}

fn run_layer_and_guess(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    layer: LayerIdx,
) -> Result<()> {
    if layer.0 == 0 {
        assert!(batch.rows.len() <= device.backend.n_rows_max(), "a batch fits the workspace");
        device.experts.begin_step(batch.rows.len(), is_small(batch));
        let asked = tables::ask(model, device, batch);
        tables::report_later(device, asked)?;
        device.backend.submit(&model.plan.embed, batch)?;
        guess_late(model, device, batch, layer)?;
    }
    let advanced = tables::advance(device);
    tables::report_later(device, advanced)?;
    let ran = run_layer(model, device, batch, (layer, &model.plan.layers[layer.0]));
    if matches!(ran, Err(Error::NonFinite { .. })) {
        return Err(finite::locate(model, device, batch));
    }
    ran?;
    let next = LayerIdx(layer.0 + 1);
    if next.0 == model.plan.layers.len() {
        return finite::check_stream(model, device, batch);
    }
    guess_late(model, device, batch, next)
}

/// Returns the residual stream.
#[must_use]
pub(crate) fn residual_stream(model: &LoadedModel) -> Heads {
    let Some(Op::Embed(embed)) = model.plan.embed.ops().first() else {
        unreachable!("a model begins with its embedding")
    };
    embed.out
}

/// Returns whether experts may come in any order: the outputs kept for the sum take little memory.
fn is_small(batch: &Batch<'_>) -> bool {
    batch.is_decode() || batch.rows.len() <= N_ROWS_ANY_ORDER
}

fn run_layer(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    (layer, plan): (LayerIdx, &LayerPlan),
) -> Result<()> {
    let Some(moe) = &plan.moe else {
        let supplied = tables::supply(model, device, batch, layer);
        tables::report_later(device, supplied)?;
        return device.backend.submit(&plan.mixer, batch);
    };
    if let Some(group) = device.group.clone() {
        let done = sharded::run_layer(model, (device, &group), batch, (layer, plan));
        if done.is_err() {
            device.experts.give_up();
        }
        return done;
    }
    tables::supply(model, device, batch, layer)?;
    if matches!(device.experts, Experts::OnDevice) {
        device.backend.submit(&moe.whole, batch)?;
        return match model.trace {
            Some(_) => model.note_routes(batch, layer, device.backend.routes(Purpose::Compute)?),
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
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    (layer, moe): (LayerIdx, &MoePlan),
) -> Result<()> {
    request_experts(model, device, batch, (layer, is_small(batch)))?;
    let DeviceContext { backend, experts, .. } = device;
    backend.submit(&moe.shared, batch)?;
    while let Some(arrived) = experts.next_ready()? {
        backend.submit_experts(&moe.experts, &arrived)?;
        while let Some(next) = experts.next_move() {
            backend.tiers_or_refuse()?.copy_to_device(&next)?;
        }
    }
    backend.submit(&moe.combine, batch)
}

/// Requests the experts that a layer's router chose, and those that the next one may choose.
fn request_experts(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    (layer, is_small): (LayerIdx, bool),
) -> Result<()> {
    let next = LayerIdx(layer.0 + 1);
    let reads_stall = device.backend.reads_stall();
    let has_routed = reads_stall && route_ahead(model, device, batch, next)?;
    let routes = device.backend.routes(Purpose::Compute)?;
    if !finite::all_finite(&routes.weights) {
        return Err(Error::NonFinite { place: format!("layer {}, route", layer.0) });
    }
    model.note_routes(batch, layer, routes)?;
    let request = ExpertRequest { layer, chosen: &routes.experts, is_small };
    device.experts.request(&request)?;
    if has_routed || (!reads_stall && route_ahead(model, device, batch, next)?) {
        guess(device, (next, GuessStage::Early))?;
    }
    Ok(())
}

/// Runs a layer's router ahead of its turn, if that is worthwhile. Returns whether it ran.
fn route_ahead(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    layer: LayerIdx,
) -> Result<bool> {
    let next = model.plan.layers.get(layer.0).and_then(|layer| layer.moe.as_ref());
    let Some(moe) = next.filter(|_| device.experts.needs_guess(is_small(batch))) else {
        return Ok(false);
    };
    device.backend.submit(&moe.guess, batch)?;
    Ok(true)
}

/// Guesses once more when the layer before is done. Does nothing where reads stall the device: the
/// router itself follows so soon that waiting for the guess would only delay it.
fn guess_late(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    layer: LayerIdx,
) -> Result<()> {
    if device.backend.reads_stall() || !route_ahead(model, device, batch, layer)? {
        return Ok(());
    }
    match (guess(device, (layer, GuessStage::Late)), &device.group) {
        // The other ranks do not know of this guess; they learn of the error at the next exchange.
        (Err(error), Some(group)) => {
            group.link.lock().defer(error);
            Ok(())
        }
        (guessed, _) => guessed,
    }
}

/// Reads the guess of a router and passes it on.
fn guess(device: &mut DeviceContext, (layer, stage): (LayerIdx, GuessStage)) -> Result<()> {
    let routes = device.backend.routes(Purpose::Prefetch)?;
    device.experts.guess((layer, stage), (&routes.experts, &routes.weights))
}

/// Computes the logits of the rows in [`Batch::outputs`], at most [`crate::ops::N_OUTPUTS_MAX`],
/// after the last layer. Appends a row to `logits` for each: all of its logits, or only the
/// `n_best` largest if all would have to be fetched from a device.
///
/// # Errors
///
/// Errors of the device; [`Error::NonFinite`] if a logit is not finite.
pub(crate) fn run_head(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    n_best: &[Option<usize>],
    logits: &mut LogitRows,
) -> Result<()> {
    let ModelPlan { head, head_and_best, logits: all, best, .. } = &model.plan;
    let n_found = best.head_dim / 2;
    let reads_stall = device.backend.reads_stall();
    let n_best = n_best.iter().map(|it| it.filter(|n| reads_stall && *n <= n_found));
    let finds_best = n_best.clone().any(|it| it.is_some());
    device.backend.submit(if finds_best { head_and_best } else { head }, batch)?;
    for (row_idx, n_best) in n_best.enumerate() {
        let is_finite = match n_best {
            None => {
                let row = logits.push_all(all.head_dim);
                device.backend.read_row(all.buffer, row_idx, row)?;
                finite::all_finite(row)
            }
            Some(n_best) => {
                let DeviceContext { backend, row, .. } = &mut *device;
                row.resize(best.head_dim, 0.0);
                backend.read_row(best.buffer, row_idx, row)?;
                let (values, tokens) = row.split_at(n_found);
                let tokens = tokens.iter().map(|it| token_of(*it));
                logits.push_best(tokens.zip(values.iter().copied()).take(n_best));
                // NaN comes first, if there is any.
                finite::all_finite(values)
            }
        };
        if !is_finite && device.group.is_some() {
            // The search for the place would need the other ranks, which do not take part here.
            return Err(Error::NonFinite { place: "the logits".to_owned() });
        }
        if !is_finite {
            return Err(finite::locate(model, device, batch));
        }
    }
    Ok(())
}

/// Returns the token that a device represents as a float: exact, because [`crate::ops::TopK`] takes
/// fewer than 2^24 columns.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number; NaN becomes a token that is checked against the vocabulary"
)]
fn token_of(number: f32) -> TokenId {
    TokenId(number as u32)
}
