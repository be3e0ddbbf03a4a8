//! Steps become dispatches: bound, with the words that a batch adds.

use std::ops::Range;

use moeflux::provider::error::Result;
use moeflux::provider::ids::LayerIdx;
use moeflux::provider::ops::{Batch, N_OUTPUTS_MAX, Segment};

use super::{Compiled, GpuBackend, Guess, Routed};
use crate::device::Gpu;
use crate::device::recorder::Recorder;
use crate::experts::{Bound, DeviceExperts};
use crate::memory::states::States;
use crate::memory::weights::DeviceWeights;
use crate::params::narrow;
use crate::step::{Head, Over, Step};

impl GpuBackend {
    /// Records the steps of a plan for a batch.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Device`] when the driver does not take a kernel.
    pub(super) fn record(&mut self, plan_idx: usize, batch: &Batch<'_>) -> Result<()> {
        if !self.batches.has_room(batch) {
            self.flush();
        }
        let batch_at = self.batches.place(&self.gpu, batch);
        let mut recording = Recording {
            recorder: &mut self.recorder,
            model_group: &self.model_group,
            weights: &self.weights,
            gpu: &self.gpu,
            experts: &self.experts,
            states: &self.states,
            n_steps_ahead: 0,
        };
        recording.plan(&self.plans[plan_idx], batch, batch_at)?;
        self.note(plan_idx, batch);
        if self.recorder.is_full() {
            self.flush();
        }
        Ok(())
    }

    /// What can be read back is what this plan leaves for this batch.
    pub(super) fn note(&mut self, plan_idx: usize, batch: &Batch<'_>) {
        let compiled = &self.plans[plan_idx];
        let n_rows = compiled.n_rows(batch);
        if let Some((view, shape)) = compiled.guess {
            self.guess = Some(Guess { view, shape, n_rows });
        }
        if compiled.has_router {
            self.routed = Routed { shape: compiled.routes[1], n_rows, is_here: false };
        }
        self.last_rows = (batch.rows.len(), batch.outputs.len().min(N_OUTPUTS_MAX));
        self.kept_rows = None;
    }

    /// Records the steps of a plan of experts over all rows that were routed, once for each buffer
    /// that holds some of the experts.
    ///
    /// # Errors
    ///
    /// As [`GpuBackend::record`].
    pub(super) fn record_experts(
        &mut self,
        plan_idx: usize,
        n_rows: usize,
        bound: &[Bound],
    ) -> Result<()> {
        let mut recording = Recording {
            recorder: &mut self.recorder,
            model_group: &self.model_group,
            weights: &self.weights,
            gpu: &self.gpu,
            experts: &self.experts,
            states: &self.states,
            n_steps_ahead: 0,
        };
        for step in &self.plans[plan_idx].steps {
            for bound in bound {
                let (n_rows, place) = (narrow(n_rows), bound.table_at);
                let head = Head { first_row: 0, n_rows, batch_at: 0, place };
                recording.dispatch(step, head, Some(&bound.bind_group))?;
            }
        }
        self.kept_rows = None;
        if self.recorder.is_full() {
            self.flush();
        }
        Ok(())
    }
}

/// What commands are recorded with.
pub(super) struct Recording<'a> {
    pub(super) recorder: &'a mut Recorder,
    pub(super) model_group: &'a wgpu::BindGroup,
    pub(super) weights: &'a DeviceWeights,
    pub(super) gpu: &'a Gpu,
    pub(super) experts: &'a DeviceExperts,
    pub(super) states: &'a States,
    /// Steps that will have been committed before these commands run.
    pub(super) n_steps_ahead: u32,
}

impl Recording<'_> {
    /// Records the steps of a plan for a batch whose rows are at a place.
    pub(super) fn plan(
        &mut self,
        compiled: &Compiled,
        batch: &Batch<'_>,
        batch_at: u32,
    ) -> Result<()> {
        let n_rows = narrow(compiled.n_rows(batch));
        let all = Head { first_row: 0, n_rows, batch_at, place: 0 };
        let experts = self.experts;
        let steps = &compiled.steps;
        for (step_idx, step) in steps.iter().enumerate() {
            if !step.finds(|it| experts.bound(it).len()) {
                continue;
            }
            match step.over {
                Over::Rows => self.dispatch(step, all, None)?,
                Over::State(layer) => {
                    let is_first = step_idx == 0 || steps[step_idx - 1].over != step.over;
                    let alike = &steps[step_idx..][..n_alike(&steps[step_idx..])];
                    let alike = if is_first { alike } else { &[] };
                    for segment in batch.segments.iter().filter(|it| !it.rows.is_empty()) {
                        self.segment((step, alike), (layer, segment, batch_at), batch)?;
                    }
                }
                Over::Experts(layer) => {
                    let bound = experts.bound(layer);
                    assert!(!bound.is_empty(), "layer {} has no experts here", layer.0);
                    for bound in bound {
                        let head = Head { place: bound.table_at, ..all };
                        self.dispatch(step, head, Some(&bound.bind_group))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Records a step over the state of a segment; where that goes from mark to mark, all steps
    /// alike at the first of them.
    fn segment(
        &mut self,
        (step, alike): (&Step, &[Step]),
        of: OfSegment<'_>,
        batch: &Batch<'_>,
    ) -> Result<()> {
        let memory = self.states.layer(of.1.state, of.0);
        if memory.is_recurrent() && !of.1.marks.is_empty() {
            return self.parts(alike, of);
        }
        let place = if memory.is_recurrent() {
            let half = self.half(of.1);
            copies(half, 1 - half)
        } else {
            narrow(batch.rows[of.1.rows.start].position.0)
        };
        self.dispatch(step, head(of, &of.1.rows, place), Some(&memory.bind_group))
    }

    /// Records steps over the state of a recurrent layer, from mark to mark of a segment: all of
    /// them for one part before the next, which begins with what the part before it leaves.
    fn parts(&mut self, steps: &[Step], of: OfSegment<'_>) -> Result<()> {
        let memory = self.states.layer(of.1.state, of.0);
        let half = self.half(of.1);
        let mut found = half;
        for (part_idx, rows) in of.1.parts().enumerate() {
            let is_last = part_idx == of.1.marks.len();
            let left = if is_last { 1 - half } else { 2 + narrow(part_idx) };
            for step in steps {
                let head = head(of, &rows, copies(found, left));
                self.dispatch(step, head, Some(&memory.bind_group))?;
            }
            found = left;
        }
        Ok(())
    }

    /// Which copy of recurrent layers' states is the state when these commands run.
    fn half(&self, segment: &Segment) -> u32 {
        (self.states.half(segment.state) + self.n_steps_ahead) % 2
    }

    /// Records a step; `bound` is the state, or the buffer of experts.
    fn dispatch(&mut self, step: &Step, head: Head, bound: Option<&wgpu::BindGroup>) -> Result<()> {
        let grid = [step.grid.x, step.grid.y, step.grid.z].map(|extent| extent.of(head.n_rows));
        if !step.runs(head) || grid.contains(&0) {
            return Ok(());
        }
        let pipeline = step.pipeline.made(self.gpu)?;
        let largest = grid.iter().max();
        assert!(largest <= Some(&self.gpu.n_groups_max()), "{}: {grid:?} workgroups", step.name);
        let mut bytes = [0; 128];
        let n_bytes = 16 + 4 * step.params.len();
        let words = head.words().into_iter().chain(step.params.iter().copied());
        for (target, word) in bytes[..n_bytes].chunks_exact_mut(4).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        let pass = self.recorder.pass();
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, self.model_group, &[]);
        if let Some(arena) = step.weights {
            pass.set_bind_group(1, &self.weights.arenas[arena].bind_group, &[]);
        }
        match (step.over, bound) {
            (Over::State(_), Some(bound)) => pass.set_bind_group(2, bound, &[]),
            (Over::Experts(_), Some(bound)) => pass.set_bind_group(1, bound, &[]),
            _ => {}
        }
        pass.set_immediates(0, &bytes);
        let [x, y, z] = grid;
        pass.dispatch_workgroups(x, y, z);
        self.recorder.note(step.name);
        Ok(())
    }
}

/// A segment, the layer whose state of its session is meant, and where the batch is.
type OfSegment<'a> = (LayerIdx, &'a Segment, u32);

fn head((_, _, batch_at): OfSegment<'_>, rows: &Range<usize>, place: u32) -> Head {
    Head { first_row: narrow(rows.start), n_rows: narrow(rows.len()), batch_at, place }
}

/// Which copy of a recurrent layer's state a step finds, and which it leaves: see `common.wgsl`.
const fn copies(found: u32, left: u32) -> u32 {
    found | left << 16
}

/// Steps from the first on that are repeated over the same state.
fn n_alike(steps: &[Step]) -> usize {
    steps.iter().take_while(|step| step.over == steps[0].over).count()
}
