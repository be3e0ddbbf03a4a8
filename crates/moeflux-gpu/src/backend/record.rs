//! Records steps as dispatches, with their bindings and the words that a batch adds.

use moeflux::provider::error::Result;
use moeflux::provider::ids::LayerIdx;
use moeflux::provider::ops::Batch;

use super::GpuBackend;
use super::memory::ModelMemory;
use super::plans::CompiledPlan;
use crate::device::recorder::CommandRecorder;
use crate::experts::ExpertBinding;
use crate::memory::batches::{PlacedBatch, SegmentParts};
use crate::params::narrow;
use crate::step::{BatchParams, DispatchStep, Over, ScoreMemory};

impl GpuBackend {
    /// Records the steps of a plan for a batch.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Device`] if the driver rejects a kernel.
    pub(super) fn record(&mut self, plan_idx: usize, batch: &Batch<'_>) -> Result<()> {
        if !self.memory.batches.prepare(batch, &self.memory.states) {
            self.flush();
        }
        self.memory.batches.place(&self.gpu);
        let placed = self.memory.batches.placed();
        let mut plan_recorder = PlanRecorder { recorder: &mut self.recorder, memory: &self.memory };
        plan_recorder.plan(&self.plans[plan_idx], batch, placed)?;
        self.note(plan_idx, batch);
        if self.recorder.is_full() {
            self.flush();
        }
        Ok(())
    }

    /// Notes the outputs of this plan and batch as the ones that can be read back.
    pub(super) fn note(&mut self, plan_idx: usize, batch: &Batch<'_>) {
        let compiled = &self.plans[plan_idx];
        self.routing.note(compiled, compiled.n_rows(batch));
        self.outputs.note(batch);
    }

    /// Records the steps of a plan of experts over all routed rows, once for each buffer that holds
    /// some of the experts.
    ///
    /// # Errors
    ///
    /// As [`GpuBackend::record`].
    pub(super) fn record_experts(
        &mut self,
        plan_idx: usize,
        n_rows: usize,
        bindings: &[ExpertBinding],
    ) -> Result<()> {
        let mut plan_recorder = PlanRecorder { recorder: &mut self.recorder, memory: &self.memory };
        for step in &self.plans[plan_idx].steps {
            for binding in bindings {
                let (n_rows, place) = (narrow(n_rows), binding.table_at);
                let batch_params = BatchParams { first_row: 0, n_rows, batch_at: 0, place };
                plan_recorder.rows(step, batch_params, Some(&binding.bind_group))?;
            }
        }
        self.outputs.discard();
        if self.recorder.is_full() {
            self.flush();
        }
        Ok(())
    }
}

/// Records the steps of plans; holds what their dispatches bind.
pub(super) struct PlanRecorder<'a> {
    pub(super) recorder: &'a mut CommandRecorder,
    pub(super) memory: &'a ModelMemory,
}

impl PlanRecorder<'_> {
    /// Records the steps of a plan for a batch whose rows are at `placed`.
    pub(super) fn plan(
        &mut self,
        compiled: &CompiledPlan,
        batch: &Batch<'_>,
        placed: PlacedBatch<'_>,
    ) -> Result<()> {
        let n_rows = narrow(compiled.n_rows(batch));
        let all = BatchParams { first_row: 0, n_rows, batch_at: placed.rows_at, place: 0 };
        let experts = &self.memory.experts;
        let steps = &compiled.steps;
        for (step_idx, step) in steps.iter().enumerate() {
            if !step.applies(|it| experts.bindings(it).len()) {
                continue;
            }
            match step.over {
                Over::Rows => self.rows(step, all, None)?,
                Over::State(layer)
                | Over::RowsOfLong(layer)
                | Over::IndexKeys(layer)
                | Over::Choices(layer, _) => {
                    let before = step_idx.checked_sub(1).map(|before| steps[before].over);
                    if before.and_then(Over::states_of) != Some(layer) {
                        let rest = &steps[step_idx..];
                        self.over_states(&rest[..n_over_same_states(rest)], layer, placed)?;
                    }
                }
                Over::Experts(layer) => {
                    let bindings = experts.bindings(layer);
                    assert!(!bindings.is_empty(), "layer {} has no experts here", layer.0);
                    for binding in bindings {
                        let batch_params = BatchParams { place: binding.table_at, ..all };
                        self.rows(step, batch_params, Some(&binding.bind_group))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Records steps over the states of a layer. Recurrent layers are computed from mark to mark:
    /// all steps for the parts before the first marks precede those for the parts after them, which
    /// start from the resulting states.
    fn over_states(
        &mut self,
        steps: &[DispatchStep],
        layer: LayerIdx,
        placed: PlacedBatch<'_>,
    ) -> Result<()> {
        let states = &self.memory.states;
        let is_recurrent = |parts: &SegmentParts<'_>| {
            parts.parts.first().is_some_and(|part| states.is_recurrent(part.arena, layer))
        };
        let parts = if is_recurrent(&placed.whole) { placed.between_marks } else { placed.whole };
        for group in parts.groups() {
            let arena = group.parts[0].arena;
            let bind_group = states.bind_group(arena, layer);
            let index_group = states.index_group(arena, layer);
            let mut rest = steps;
            while let Some(first) = rest.first() {
                let (together, after) = rest.split_at(first.n_together(rest));
                rest = after;
                let parts = group.of_rows(&first.n_rows);
                match first.over {
                    Over::IndexKeys(_) => {
                        self.over_parts(together, parts, (placed.rows_at, index_group))?;
                    }
                    Over::Choices(_, memory) => {
                        self.over_choices((together, memory), parts, index_group)?;
                    }
                    Over::RowsOfLong(_) => self.over_rows_of_long(first, group, placed.rows_at)?,
                    _ => self.over_parts(together, parts, (placed.rows_at, bind_group))?,
                }
            }
        }
        Ok(())
    }

    /// Records a step over the rows of long parts.
    fn over_rows_of_long(
        &mut self,
        step: &DispatchStep,
        group: SegmentParts<'_>,
        batch_at: u32,
    ) -> Result<()> {
        for run in group.rows_of_long() {
            let (first_row, n_rows) = (run.start, narrow(run.len()));
            let batch_params = BatchParams { first_row, n_rows, batch_at, place: 0 };
            self.rows(step, batch_params, None)?;
        }
        Ok(())
    }

    /// Records the steps that score and list positions, for the rows of each part that choose some:
    /// all steps for some rows before the next rows.
    fn over_choices(
        &mut self,
        (steps, memory): (&[DispatchStep], ScoreMemory),
        parts: SegmentParts<'_>,
        bind_group: &wgpu::BindGroup,
    ) -> Result<()> {
        for chunk in parts.chunks(1) {
            let Some(part) = chunk.parts.first() else { continue };
            let ranges = memory.rows(part.n_rows, part.n_seen).ok_or_else(|| {
                let problem = format!(
                    "chooses among at most {} positions, but a session has {}",
                    memory.n_scores_max, part.n_seen
                );
                self.recorder.gpu().error(&problem)
            })?;
            for rows in ranges {
                let (first_row, n_rows) = (rows.start, narrow(rows.len()));
                let batch_params = BatchParams { first_row, n_rows, batch_at: 0, place: chunk.at };
                for step in steps {
                    let grid = memory.groups(step.groups(n_rows), part.n_seen);
                    self.dispatch(step, (batch_params, grid), Some(bind_group))?;
                }
            }
        }
        Ok(())
    }

    /// Records steps over parts that can share a dispatch, all steps for one chunk before the next
    /// chunk.
    fn over_parts(
        &mut self,
        steps: &[DispatchStep],
        parts: SegmentParts<'_>,
        (batch_at, bind_group): (u32, &wgpu::BindGroup),
    ) -> Result<()> {
        let (Some(n_rows), Some(n_seen)) = (
            parts.parts.iter().map(|part| part.n_rows).max(),
            parts.parts.iter().map(|part| part.n_seen).max(),
        ) else {
            return Ok(());
        };
        let splits = steps[0].splits;
        let n_splits = splits.map_or(1, |splits| splits.of(n_seen));
        let n_parts_max = splits.map_or(usize::MAX, |it| it.n_parts_max(n_rows, n_splits));
        let first_row = splits.map_or(0, |_| n_splits | n_rows << 16);
        for chunk in parts.chunks(n_parts_max) {
            let n_parts = narrow(chunk.parts.len());
            let batch_params =
                BatchParams { first_row, n_rows: n_parts, batch_at, place: chunk.at };
            for step in steps {
                let grid = step.groups_of_parts(n_rows, n_parts, n_splits);
                self.dispatch(step, (batch_params, grid), Some(bind_group))?;
            }
        }
        Ok(())
    }

    /// Records a step over rows, if it applies to their number.
    fn rows(
        &mut self,
        step: &DispatchStep,
        batch_params: BatchParams,
        bind_group: Option<&wgpu::BindGroup>,
    ) -> Result<()> {
        if !step.n_rows.contains(&batch_params.n_rows) {
            return Ok(());
        }
        let grid = step.groups(batch_params.n_rows);
        self.dispatch(step, (batch_params, grid), bind_group)
    }

    /// Records a step; `bind_group` is the state, or the buffer of experts.
    fn dispatch(
        &mut self,
        step: &DispatchStep,
        (batch_params, grid): (BatchParams, [u32; 3]),
        bind_group: Option<&wgpu::BindGroup>,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let pipeline = step.pipeline.compiled(self.recorder.gpu())?;
        let largest = grid.iter().max();
        assert!(
            largest <= Some(&self.recorder.gpu().n_groups_max()),
            "{}: {grid:?} workgroups",
            step.name
        );
        let mut bytes = [0; 128];
        let n_bytes = 16 + 4 * step.params.len();
        let words = batch_params.words().into_iter().chain(step.params.iter().copied());
        for (target, word) in bytes[..n_bytes].chunks_exact_mut(4).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        let pass = self.recorder.pass();
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, &self.memory.group, &[]);
        if let Some(arena) = step.weights {
            pass.set_bind_group(1, &self.memory.weights.arenas[arena].bind_group, &[]);
        }
        match (step.over, bind_group) {
            (Over::State(_) | Over::IndexKeys(_) | Over::Choices(..), Some(state)) => {
                pass.set_bind_group(2, state, &[]);
            }
            (Over::Experts(_), Some(experts)) => pass.set_bind_group(1, experts, &[]),
            _ => {}
        }
        pass.set_immediates(0, &bytes);
        let [x, y, z] = grid;
        pass.dispatch_workgroups(x, y, z);
        self.recorder.note(step.name);
        Ok(())
    }
}

/// Returns the number of leading steps that are repeated over the same state.
fn n_over_same_states(steps: &[DispatchStep]) -> usize {
    let layer = steps[0].over.states_of();
    steps.iter().take_while(|step| step.over.states_of() == layer).count()
}
