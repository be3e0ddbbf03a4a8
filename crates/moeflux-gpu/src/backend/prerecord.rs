//! Records the commands of an answer's next step while the device computes the current one.
//!
//! Steps of an answer are alike: one row of one session, at the next position. **Invariant:**
//! commands recorded ahead are submitted only for the plans and the row they were recorded for, and
//! only once these plans are requested. Before any other request, all plans requested so far are
//! recorded.

use std::collections::VecDeque;
use std::sync::Arc;

use moeflux::provider::error::Result;
use moeflux::provider::ids::{Position, StateId, TokenId};
use moeflux::provider::ops::{Batch, Row, RowKind, Segment};

use super::GpuBackend;
use super::record::PlanRecorder;
use crate::device::recorder::CommandRecorder;

/// A row that is alone in its step and whose logits are wanted, for any token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SingleRowStep {
    state: StateId,
    position: Position,
}

impl SingleRowStep {
    const fn of(batch: &Batch<'_>) -> Option<Self> {
        match (batch.rows, batch.segments, batch.outputs) {
            ([row], [segment], [0]) => Some(Self { state: segment.state, position: row.position }),
            _ => None,
        }
    }

    const fn next(self) -> Self {
        Self { state: self.state, position: Position(self.position.0 + 1) }
    }

    /// Calls the closure with the batch of this row.
    fn batch<T>(self, token: TokenId, see: impl FnOnce(&Batch<'_>) -> T) -> T {
        let rows = [Row { token, position: self.position }];
        let segments = [Segment::new(self.state, 0..1, RowKind::Decode)];
        see(&Batch { rows: &rows, segments: &segments, outputs: &[0] })
    }
}

/// The current step and the one after it.
#[derive(Debug, Default)]
pub(super) struct StepPrerecorder {
    /// Plans of this step so far, as long as it could be recorded again for the next position.
    step: Option<(SingleRowStep, Vec<usize>)>,
    next: Option<PrerecordedStep>,
}

/// A step recorded before it is requested.
#[derive(Debug)]
struct PrerecordedStep {
    row: SingleRowStep,
    plans: Vec<usize>,
    /// Commands, each with the number of plans at which it ends.
    commands: VecDeque<(usize, wgpu::CommandBuffer)>,
    /// Token of the row, once the step is requested.
    token: Option<TokenId>,
    n_requested: usize,
    /// Number of requested plans whose commands were submitted.
    n_submitted: usize,
}

impl StepPrerecorder {
    /// Drops the current step because something other than a plan was requested. The next step is
    /// not recorded ahead.
    pub(super) fn discard_current(&mut self) {
        self.step = None;
    }

    /// Drops the steps of a removed session, including commands not yet submitted.
    pub(super) fn discard_session(&mut self, state: StateId) {
        self.step.take_if(|(row, _)| row.state == state);
        self.next.take_if(|next| next.row.state == state);
    }

    fn note(&mut self, plan_idx: usize) {
        if let Some((_, plans)) = &mut self.step {
            plans.push(plan_idx);
        }
    }
}

impl GpuBackend {
    /// Begins a step.
    pub(super) fn begin_prerecorded_step(&mut self, batch: &Batch<'_>) {
        self.record_pending();
        let row = SingleRowStep::of(batch);
        self.prerecorder.step = row.map(|row| (row, Vec::new()));
        if self.prerecorder.next.as_ref().map(|next| next.row) != row {
            self.prerecorder.next = None;
        }
        let Some(next) = &mut self.prerecorder.next else { return };
        next.token = Some(batch.rows[0].token);
        self.flush();
        // Only now are the input and output copies of the recurrent states known.
        let of_state = (batch.segments[0].state, &batch.rows[0]);
        self.memory.batches.write_single_row(&self.gpu, of_state, &self.memory.states);
    }

    /// Submits commands recorded ahead for the requested plan. Returns `false` if there are none.
    pub(super) fn submit_prerecorded(&mut self, plan_idx: usize, batch: &Batch<'_>) -> bool {
        self.prerecorder.note(plan_idx);
        let Some(next) = self.prerecorder.next.as_mut().filter(|next| next.token.is_some()) else {
            return false;
        };
        let row = SingleRowStep::of(batch);
        let is_same = next.plans.get(next.n_requested) == Some(&plan_idx);
        if !is_same || row != Some(next.row) {
            self.record_pending();
            return false;
        }
        next.n_requested += 1;
        let n_requested = next.n_requested;
        let is_last = n_requested == next.plans.len();
        while let Some((_, buffer)) = next.commands.pop_front_if(|(end, _)| *end <= n_requested) {
            self.recorder.submit_recorded(buffer);
            self.memory.submitted();
            next.n_submitted = n_requested;
        }
        if is_last {
            self.prerecorder.next = None;
        }
        self.note(plan_idx, batch);
        true
    }

    /// Records requested plans whose commands were not submitted, and drops the commands recorded
    /// ahead, if their step has begun.
    pub(super) fn record_pending(&mut self) {
        let next = self.prerecorder.next.take_if(|next| next.token.is_some());
        let Some((next, token)) = next.and_then(|next| next.token.map(|token| (next, token)))
        else {
            return;
        };
        next.row.batch(token, |batch| {
            let mut plans = next.plans[next.n_submitted..next.n_requested].iter();
            let recorded = plans.try_for_each(|plan_idx| self.record(*plan_idx, batch));
            recorded.expect("its kernels were made when they were recorded ahead");
        });
    }

    /// Drops commands recorded ahead, because their bindings become invalid.
    pub(super) fn discard_prerecorded(&mut self) {
        self.record_pending();
        self.prerecorder.next = None;
    }

    /// Records the step after this one, if this one has a single row.
    pub(super) fn prerecord_next(&mut self) {
        let Some((row, plans)) = self.prerecorder.step.take() else { return };
        if self.gpu.is_profiled() {
            return;
        }
        // An error here occurs again, and is reported, when the step is requested.
        self.prerecorder.next = self.recorded(row.next(), plans).ok();
    }

    fn recorded(&self, row: SingleRowStep, plans: Vec<usize>) -> Result<PrerecordedStep> {
        let mut recorder = CommandRecorder::new(Arc::clone(&self.gpu))?;
        let mut plan_recorder = PlanRecorder { recorder: &mut recorder, memory: &self.memory };
        let part =
            self.memory.batches.single_row_part(row.state, row.position, &self.memory.states);
        let mut commands = VecDeque::new();
        for (idx, plan_idx) in plans.iter().enumerate() {
            row.batch(TokenId(0), |batch| {
                plan_recorder.plan(
                    &self.plans[*plan_idx],
                    batch,
                    self.memory.batches.place_single_row(&part),
                )
            })?;
            if plan_recorder.recorder.is_full() || idx + 1 == plans.len() {
                commands.extend(plan_recorder.recorder.finish().map(|buffer| (idx + 1, buffer)));
            }
        }
        Ok(PrerecordedStep { row, plans, commands, token: None, n_requested: 0, n_submitted: 0 })
    }
}
