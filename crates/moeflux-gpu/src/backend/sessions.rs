//! States of sessions, as the engine sees them.
//!
//! **Invariant:** commands recorded before a state moves or is written are submitted first.

use std::ops::Range;
use std::sync::Arc;

use moeflux::provider::backend::room::SessionBudget;
use moeflux::provider::backend::{SessionStates, StatePart};
use moeflux::provider::error::Result;
use moeflux::provider::ids::StateId;
use moeflux::provider::ops::StateSpec;

use super::GpuBackend;
use crate::memory::states::StateRange;

impl SessionStates for GpuBackend {
    fn budget(&self) -> &Arc<SessionBudget> {
        self.memory.states.budget()
    }

    fn create_state(&mut self, spec: &StateSpec, context: usize) -> Result<StateId> {
        self.flush_all();
        self.memory.states.create(&self.gpu, spec, context)
    }

    fn reserve_positions(&mut self, state: StateId, positions: &Range<usize>) -> Result<()> {
        if self.memory.states.is_reserved(state, positions) {
            return Ok(());
        }
        self.flush_all();
        self.memory.states.reserve(&self.gpu, state, positions)
    }

    fn fork_state(&mut self, state: StateId) -> Result<StateId> {
        self.flush_all();
        self.memory.states.fork(&self.gpu, state)
    }

    fn drop_state(&mut self, state: StateId) {
        // Commands recorded for the session run before its pages are reused.
        self.prerecorder.discard_session(state);
        if self.memory.states.remove(state) {
            self.flush_all();
            self.memory.states.trim(&self.gpu);
        }
    }

    fn reset_state(&mut self, state: StateId) {
        self.flush_all();
        // The next check reports a device failure.
        self.memory.states.reset(&self.gpu, state).ok();
    }

    fn commit_state(&mut self, state: StateId) {
        // Plans that were requested but not submitted belong to the step that is committed here.
        self.record_pending();
        self.memory.states.commit(state);
    }

    fn set_marks(&mut self, state: StateId, n_marks: usize) -> Result<()> {
        if self.memory.states.n_marks(state) == n_marks {
            return Ok(());
        }
        self.flush_all();
        self.memory.states.set_marks(&self.gpu, state, n_marks)
    }

    fn state_part_bytes(&self, state: StateId, part: StatePart) -> usize {
        self.memory.states.part_bytes(state, part)
    }

    fn read_state(&mut self, state: StateId, part: StatePart, target: &mut [u8]) -> Result<()> {
        let mut rest = target;
        for table_idx in 0..self.memory.states.ranges(state, part).len() {
            let ranges = &self.memory.states.ranges(state, part)[table_idx];
            let Some(table) = ranges.first().map(|it| it.table) else { continue };
            let n_stored = ranges.iter().map(StateRange::n_stored).sum();
            let n_saved: usize = ranges.iter().map(StateRange::n_saved).sum();
            let places: Vec<_> =
                ranges.iter().map(|it| (it.first_stored(), it.n_stored())).collect();
            let (buffer, layout) = (table.buffer.clone(), table.layout);
            let mut stored = vec![0.0; n_stored];
            self.read_ranges(&buffer, &places, &mut stored)?;
            let mut saved = vec![0.0; n_saved];
            layout.pack(&stored, &mut saved);
            let (target, after) = rest.split_at_mut(n_saved * size_of::<f32>());
            target.copy_from_slice(bytemuck::cast_slice(&saved));
            rest = after;
        }
        assert!(rest.is_empty(), "a layer has only its own kind of state");
        Ok(())
    }

    fn write_state(&mut self, state: StateId, part: StatePart, source: &[u8]) -> Result<()> {
        // Writes take effect before all later submissions, so recorded commands must be submitted
        // first.
        self.record_pending();
        self.flush();
        let mut rest = source;
        for range in self.memory.states.targets(state, part).into_iter().flatten() {
            let (source, after) = rest.split_at(range.n_saved() * size_of::<f32>());
            let saved: Vec<f32> = bytemuck::pod_collect_to_vec(source);
            let mut stored = vec![0.0; range.n_stored()];
            range.table.layout.unpack(&saved, &mut stored);
            let offset_bytes = (range.first_stored() * size_of::<f32>()) as u64;
            let bytes = bytemuck::cast_slice(&stored);
            self.gpu.upload(&range.table.buffer, offset_bytes, bytes)?;
            rest = after;
        }
        assert!(rest.is_empty(), "a layer has only its own kind of state");
        self.gpu.check()
    }
}
