//! The device of rank 0: repeats each change of sessions on the other ranks.
//!
//! **Invariant:** a call takes effect on all ranks, or has no observable effect on any.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::session_budget::SessionBudget;
use crate::backend::{Backend, DeviceNames, ExpertSharding, ExpertTiers, SessionStates, StatePart};
use crate::error::{Error, Result};
use crate::experts::Arrived;
use crate::ids::{BufferId, StateId};
use crate::ops::{Batch, Plan, Purpose, Routes, StateSpec};
use crate::ranks::command::RankCommand;
use crate::ranks::link::SharedLink;

/// A backend whose sessions exist on all ranks.
#[derive(Debug)]
pub(crate) struct LeaderBackend {
    inner: Box<dyn Backend>,
    link: SharedLink,
    /// Whether marks were ever set. Until then, setting none requires no command.
    has_marks: bool,
}

impl LeaderBackend {
    pub(crate) fn new(inner: Box<dyn Backend>, link: SharedLink) -> Self {
        Self { inner, link, has_marks: false }
    }

    fn agree<T>(&self, result: Result<T>) -> Result<T> {
        self.link.lock().agree(result)
    }

    /// Sends a command that cannot fail. If ranks are gone, the next call that can fail reports it.
    fn broadcast(&self, command: &RankCommand) {
        drop(self.link.lock().broadcast(command));
    }
}

impl Backend for LeaderBackend {
    fn names(&self) -> DeviceNames {
        self.inner.names()
    }

    fn n_rows_max(&self) -> usize {
        self.inner.n_rows_max()
    }

    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        self.inner.submit(plan, batch)
    }

    fn routes(&mut self, purpose: Purpose) -> Result<&Routes> {
        self.inner.routes(purpose)
    }

    fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) -> Result<()> {
        self.inner.submit_experts(plan, arrived)
    }

    fn swap_rows(&mut self, buffer: BufferId, n_rows: usize) -> Result<()> {
        self.link.lock().broadcast(&RankCommand::SwapRows { buffer, n_rows })?;
        self.inner.swap_rows(buffer, n_rows)
    }

    fn write_rows(&mut self, buffer: BufferId, values: &[f32]) -> Result<()> {
        self.inner.write_rows(buffer, values)
    }

    fn read_row(&mut self, buffer: BufferId, row_idx: usize, target: &mut [f32]) -> Result<()> {
        self.inner.read_row(buffer, row_idx, target)
    }

    fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()> {
        let problem = "the step size is fixed for all ranks";
        Err(Error::Unsupported(format!("steps of {n_rows_max} rows: {problem}")))
    }

    fn reads_stall(&self) -> bool {
        self.inner.reads_stall()
    }

    fn states(&self) -> &dyn SessionStates {
        self
    }

    fn states_mut(&mut self) -> &mut dyn SessionStates {
        self
    }

    fn sharding(&mut self) -> Option<&mut dyn ExpertSharding> {
        self.inner.sharding()
    }

    fn tiers(&self) -> Option<&dyn ExpertTiers> {
        self.inner.tiers()
    }

    fn tiers_mut(&mut self) -> Option<&mut dyn ExpertTiers> {
        self.inner.tiers_mut()
    }
}

impl SessionStates for LeaderBackend {
    fn budget(&self) -> &Arc<SessionBudget> {
        self.inner.states().budget()
    }

    fn create_state(&mut self, spec: &StateSpec, context: usize) -> Result<StateId> {
        self.link.lock().check()?;
        let made = self.inner.states_mut().create_state(spec, context)?;
        let command = RankCommand::CreateState { state: made, context };
        let told = self.link.lock().broadcast(&command);
        let agreed = told.and_then(|()| self.agree(Ok(())));
        agreed.inspect_err(|_| self.inner.states_mut().drop_state(made)).map(|()| made)
    }

    fn reserve_positions(&mut self, state: StateId, positions: &Range<usize>) -> Result<()> {
        self.inner.states_mut().reserve_positions(state, positions)?;
        let Range { start: first, end } = *positions;
        self.link.lock().broadcast(&RankCommand::Reserve { state, first, end })?;
        self.agree(Ok(()))
    }

    fn fork_state(&mut self, state: StateId) -> Result<StateId> {
        let made = self.inner.states_mut().fork_state(state)?;
        let told = self.link.lock().broadcast(&RankCommand::Fork { from: state, state: made });
        let agreed = told.and_then(|()| self.agree(Ok(())));
        agreed.inspect_err(|_| self.inner.states_mut().drop_state(made)).map(|()| made)
    }

    fn drop_state(&mut self, state: StateId) {
        self.broadcast(&RankCommand::Drop { state });
        self.inner.states_mut().drop_state(state);
    }

    fn reset_state(&mut self, state: StateId) {
        self.broadcast(&RankCommand::Reset { state });
        self.inner.states_mut().reset_state(state);
    }

    fn commit_state(&mut self, state: StateId) {
        self.broadcast(&RankCommand::Commit { state });
        self.inner.states_mut().commit_state(state);
    }

    fn set_marks(&mut self, state: StateId, n_marks: usize) -> Result<()> {
        self.inner.states_mut().set_marks(state, n_marks)?;
        if n_marks == 0 && !self.has_marks {
            return Ok(());
        }
        self.has_marks = true;
        self.link.lock().broadcast(&RankCommand::SetMarks { state, n_marks })?;
        self.agree(Ok(()))
    }

    fn state_part_bytes(&self, state: StateId, part: StatePart) -> usize {
        self.inner.states().state_part_bytes(state, part)
    }

    fn read_state(&mut self, state: StateId, part: StatePart, target: &mut [u8]) -> Result<()> {
        self.inner.states_mut().read_state(state, part, target)
    }

    fn write_state(&mut self, state: StateId, part: StatePart, source: &[u8]) -> Result<()> {
        let command = RankCommand::WriteState { state, part, bytes: source.to_vec() };
        self.link.lock().broadcast(&command)?;
        self.inner.states_mut().write_state(state, part, source)
    }
}

impl Drop for LeaderBackend {
    fn drop(&mut self) {
        self.broadcast(&RankCommand::End);
    }
}
