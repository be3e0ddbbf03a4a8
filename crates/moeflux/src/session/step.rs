//! One step: rows of one or several sessions, computed together, layer by layer.
//!
//! **Invariant:** no session changes before the whole step is complete; then each changes
//! atomically. A failure or cancellation that concerns some sessions leaves these unchanged; the
//! others get the same bytes that they would get alone.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::forward::{
    DeviceContext, LoadedModel, PausedStep, StepProgress, rows_that_need, run_head, run_next_layer,
};
use crate::ids::{ExpertIdx, LayerIdx};
use crate::ops::{N_OUTPUTS_MAX, Purpose, RowKind};
use crate::session::checkpoints::{RecurrentCopy, book_copy, check_copies};
use crate::session::rows::feed::Feed;
use crate::session::rows::output::StepOutput;
use crate::session::rows::{N_ROWS_BESIDE, StepRows};
use crate::session::runtime::Runtime;
use crate::session::runtime::fair_lock::FairLockGuard;
use crate::session::runtime::loans::{end_longer_steps, retry_after_lending, shrink};

/// Feeds tokens to sessions of one engine in one step. [`Feed::outcome`] returns the result of each
/// feed afterwards.
///
/// # Errors
///
/// [`Error::Input`] for invalid feeds, sessions of different engines, or more rows than a step
/// takes; errors that concern all feeds, such as a failed device. All sessions are then as they
/// were before.
pub fn step(feeds: &mut [Feed<'_>], output: &mut StepOutput) -> Result<()> {
    output.clear();
    if feeds.is_empty() {
        return Ok(());
    }
    let n_rows: usize = feeds.iter().map(|feed| feed.tokens.len()).sum();
    let are_answers = feeds.iter().all(|feed| feed.kind == RowKind::Decode);
    if !are_answers || n_rows > N_ROWS_BESIDE {
        let mut step = StepUnderWay::begin(feeds)?;
        while step.advance()? {}
        while step.next_logits(output)? {}
        return step.commit();
    }
    check(feeds)?;
    // Without the lock of the workspace, a step must hold the device throughout.
    let mut step = StepUnderWay::begin_with(feeds, None)?;
    let runtime = Arc::clone(&step.runtime);
    let device = &mut *runtime.lock()?;
    swap_out(&runtime, device)?;
    while step.advance_on(device)? {}
    while step.next_logits_on(device, output)? {}
    step.commit_on(device)
}

/// Fails if the feeds cannot share a step.
fn check(feeds: &[Feed<'_>]) -> Result<()> {
    for feed in feeds {
        if !Arc::ptr_eq(&feed.session.runtime, &feeds[0].session.runtime) {
            let problem = "sessions of different engines cannot share a step";
            return Err(Error::Input(problem.into()));
        }
        feed.check().inspect_err(|error| tracing::warn!(%error, "tokens rejected"))?;
    }
    Ok(())
}

/// A step in progress. It can be paused between two layers: other threads, and this one, may then
/// [`step`] up to [`N_ROWS_BESIDE`] answer rows of other sessions. If dropped before
/// [`StepUnderWay::commit`], it leaves all sessions as they were.
#[derive(Debug)]
pub struct StepUnderWay<'f, 's> {
    feeds: &'f mut [Feed<'s>],
    runtime: Arc<Runtime>,
    step_rows: StepRows,
    n_layers_done: usize,
    n_outputs_done: usize,
    /// The lock of the workspace. Answers in [`step`] need none.
    workspace_guard: Option<FairLockGuard>,
}

impl<'f, 's> StepUnderWay<'f, 's> {
    /// Begins a step with any rows. Waits for a step of another thread to end.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for invalid feeds, more rows than a step takes, or if this thread has a
    /// step in progress already.
    ///
    /// # Panics
    ///
    /// If there are no feeds.
    pub fn begin(feeds: &'f mut [Feed<'s>]) -> Result<Self> {
        check(feeds)?;
        let workspace_guard = feeds[0].session.runtime.lock_workspace()?;
        Self::begin_with(feeds, Some(workspace_guard))
    }

    /// As [`StepUnderWay::begin`], for feeds that were checked, with the workspace locked.
    pub(super) fn begin_with(
        feeds: &'f mut [Feed<'s>],
        workspace_guard: Option<FairLockGuard>,
    ) -> Result<Self> {
        let runtime = Arc::clone(&feeds[0].session.runtime);
        let mut step_rows = runtime.take_rows();
        step_rows.fill(feeds);
        let mut step = Self {
            feeds,
            runtime,
            step_rows,
            n_layers_done: 0,
            n_outputs_done: 0,
            workspace_guard,
        };
        step.prepare()?;
        Ok(step)
    }

    fn prepare(&mut self) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        let mut device = runtime.lock()?;
        let (n_rows, n_rows_max) = (self.step_rows.rows.len(), device.backend.n_rows_max());
        if n_rows > n_rows_max {
            let problem =
                format!("{n_rows} rows exceed this engine's maximum of {n_rows_max} per step");
            return Err(Error::Input(problem));
        }
        tracing::debug!(n_rows, n_feeds = self.feeds.len(), "a step begins");
        for feed in &mut *self.feeds {
            feed.session.apply_reset(&mut device);
        }
        self.reserve(&mut device)?;
        if self.workspace_guard.is_some() {
            device.paused = Some(PausedStep { n_rows, is_swapped_out: false });
        }
        Ok(())
    }

    /// Allocates memory for all rows, marks and checkpoints. Feeds for which it is short are left
    /// out before anything is computed.
    fn reserve(&mut self, device: &mut DeviceContext) -> Result<()> {
        let spec = &self.runtime.model().plan.state;
        let mut is_whole = true;
        for (feed_rows, segment) in self.step_rows.by_feed.iter().zip(self.step_rows.segments()) {
            let feed = &mut self.feeds[feed_rows.feed_idx];
            let begin = feed.session.tokens.len();
            let positions = begin..begin + feed_rows.rows.len();
            let reserved = retry_after_lending(&self.runtime, device, &mut |device| {
                device.backend.states_mut().reserve_positions(segment.state, &positions)?;
                device.backend.states_mut().set_marks(segment.state, segment.marks.len())?;
                check_copies(self.runtime.copies(), spec, feed.marks.len())
            });
            match reserved {
                Ok(()) => {}
                Err(error @ Error::NoRoom { .. }) => {
                    feed.failure = Some(error);
                    is_whole = false;
                }
                Err(error) => return Err(error),
            }
        }
        if !is_whole {
            self.begin_again();
        }
        Ok(())
    }

    /// Returns the progress.
    #[must_use]
    pub fn progress(&self) -> StepProgress {
        let n_rows = self.step_rows.rows.len();
        StepProgress {
            n_rows_done: 0,
            n_rows_now: n_rows,
            n_rows,
            n_layers_done: self.n_layers_done,
            n_layers: self.runtime.model().plan.layers.len(),
        }
    }

    /// Runs one layer. Returns whether there are more. Feeds whose flag is set, or in which a row
    /// chose an expert that cannot be read, are left out from then on.
    ///
    /// # Errors
    ///
    /// Errors that concern all feeds.
    pub fn advance(&mut self) -> Result<bool> {
        self.workspace_guard.iter().for_each(FairLockGuard::take_over);
        let runtime = Arc::clone(&self.runtime);
        let device = &mut *runtime.lock()?;
        swap_in(&runtime, device)?;
        self.advance_on(device)
    }

    fn advance_on(&mut self, device: &mut DeviceContext) -> Result<bool> {
        let runtime = Arc::clone(&self.runtime);
        let model = runtime.model();
        self.leave_out_cancelled();
        if self.step_rows.is_empty() || self.n_layers_done == model.plan.layers.len() {
            return Ok(false);
        }
        let layer = LayerIdx(self.n_layers_done);
        // A step that may be paused between layers does not announce the next ones.
        let end = match self.workspace_guard {
            Some(_) => LayerIdx(layer.0 + 1),
            None => LayerIdx(model.plan.layers.len()),
        };
        let n_rows = self.step_rows.rows.len();
        tracing::trace!(layer = layer.0, n_rows, "a layer begins");
        match run_next_layer(model, device, &self.step_rows.batch(), (layer, end)) {
            Ok(()) => self.n_layers_done += 1,
            Err(Error::Expert { layer, expert, problem }) => {
                self.leave_out_users(device, (layer, expert), &problem)?;
            }
            Err(error @ Error::TableRow { .. }) => self.leave_out_readers(device, &error)?,
            Err(error) => return Err(error),
        }
        Ok(!self.step_rows.is_empty() && self.n_layers_done < model.plan.layers.len())
    }

    /// Leaves out cancelled feeds and restarts the others, if that is less work than continuing
    /// with the cancelled rows.
    fn leave_out_cancelled(&mut self) {
        let by_feed = self.step_rows.by_feed.iter();
        let cancelled = by_feed.filter(|feed_rows| self.feeds[feed_rows.feed_idx].is_cancelled());
        let n_cancelled: usize = cancelled.map(|feed_rows| feed_rows.rows.len()).sum();
        if n_cancelled == 0 {
            return;
        }
        let (n_rows, n_layers) =
            (self.step_rows.rows.len(), self.runtime.model().plan.layers.len());
        let n_left = n_rows - n_cancelled;
        if n_left > 0 && (n_layers - self.n_layers_done) * n_rows <= n_layers * n_left {
            return;
        }
        for feed_rows in &self.step_rows.by_feed {
            let feed = &mut self.feeds[feed_rows.feed_idx];
            if feed.is_cancelled() {
                feed.failure = Some(Error::Cancelled);
            }
        }
        self.begin_again();
    }

    /// Leaves out the feeds with rows that chose this expert in the layer that ran last.
    fn leave_out_users(
        &mut self,
        device: &mut DeviceContext,
        (layer, expert): (usize, usize),
        problem: &str,
    ) -> Result<()> {
        let failure = || Error::Expert { layer, expert, problem: problem.to_owned() };
        let routes = device.backend.routes(Purpose::Compute)?;
        let mut n_found = 0;
        for (row_idx, _) in routes.uses_of(ExpertIdx(expert)) {
            let feed_rows =
                self.step_rows.by_feed.iter().find(|feed_rows| feed_rows.rows.contains(&row_idx));
            let Some(feed_rows) = feed_rows else { continue };
            self.feeds[feed_rows.feed_idx].failure.get_or_insert_with(failure);
            n_found += 1;
        }
        if n_found == 0 {
            return Err(failure());
        }
        self.begin_again();
        Ok(())
    }

    /// Leaves out the feeds with rows that need a row of a table which cannot be read.
    fn leave_out_readers(&mut self, device: &DeviceContext, error: &Error) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        let readers = rows_that_need(runtime.model(), device, &self.step_rows.batch(), error);
        if readers.is_empty() {
            return Err(error.clone());
        }
        for row_idx in readers {
            let mut by_feed = self.step_rows.by_feed.iter();
            let feed_rows = by_feed.find(|feed_rows| feed_rows.rows.contains(&row_idx));
            let Some(feed_rows) = feed_rows else { continue };
            self.feeds[feed_rows.feed_idx].failure.get_or_insert_with(|| error.clone());
        }
        self.begin_again();
        Ok(())
    }

    /// Restarts the step with the remaining feeds.
    fn begin_again(&mut self) {
        self.step_rows.fill(self.feeds);
        self.n_layers_done = 0;
    }

    /// Appends the logits of further wanted rows to `output`. Returns whether there were any. Must
    /// follow the last layer.
    ///
    /// # Errors
    ///
    /// Errors that concern all feeds.
    pub fn next_logits(&mut self, output: &mut StepOutput) -> Result<bool> {
        let runtime = Arc::clone(&self.runtime);
        let device = &mut *runtime.lock()?;
        swap_in(&runtime, device)?;
        self.next_logits_on(device, output)
    }

    /// Returns whether logits of wanted rows remain to be computed.
    pub(super) fn has_more_logits(&self) -> bool {
        !self.step_rows.is_empty() && self.n_outputs_done < self.step_rows.n_outputs()
    }

    fn next_logits_on(
        &mut self,
        device: &mut DeviceContext,
        output: &mut StepOutput,
    ) -> Result<bool> {
        let model = self.runtime.model();
        let n_outputs = if self.step_rows.is_empty() { 0 } else { self.step_rows.n_outputs() };
        let begin = self.n_outputs_done;
        let end = n_outputs.min(begin + N_OUTPUTS_MAX);
        if begin == end {
            return Ok(false);
        }
        assert_eq!(self.n_layers_done, model.plan.layers.len(), "logits come after all layers");
        let (batch, n_best) = self.step_rows.batch_of(begin..end);
        if let Err(error) = run_head(model, device, &batch, n_best, &mut output.logits) {
            output.logits.truncate(output.rows.len());
            return Err(error);
        }
        output.rows.extend((begin..end).map(|output_idx| self.step_rows.output_of(output_idx)));
        self.n_outputs_done = end;
        Ok(true)
    }

    /// Completes the step: the sessions of all feeds that were not left out then hold their tokens.
    ///
    /// # Errors
    ///
    /// If the device fails; each session then holds all of its tokens or is as it was before.
    ///
    /// # Panics
    ///
    /// If layers remain.
    pub fn commit(mut self) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        // The guard is dropped before the step, whose drop locks the device.
        let mut device = runtime.lock()?;
        let committed = self.commit_on(&mut device);
        drop(device);
        committed
    }

    fn commit_on(&mut self, device: &mut DeviceContext) -> Result<()> {
        let n_layers = self.runtime.model().plan.layers.len();
        assert!(self.step_rows.is_empty() || self.n_layers_done == n_layers, "all layers are done");
        for idx in 0..self.step_rows.by_feed.len() {
            self.commit_feed(device, idx)?;
        }
        // New checkpoints replaced older ones, and the previous step's marks are gone.
        shrink(&self.runtime, device);
        Ok(())
    }

    /// Completes the step for one feed. If memory for its checkpoints is short, the feed is left
    /// out.
    fn commit_feed(&mut self, device: &mut DeviceContext, idx: usize) -> Result<()> {
        let feed_rows = &self.step_rows.by_feed[idx];
        let feed = &mut self.feeds[feed_rows.feed_idx];
        let spec = &self.runtime.model().plan.state;
        let end = feed.session.tokens.len() + feed_rows.rows.len();
        let booked = retry_after_lending(&self.runtime, device, &mut |_| {
            // All copies are checked together: slots are lent for the bytes that the error names.
            check_copies(self.runtime.copies(), spec, feed.marks.len())?;
            let copies = feed.marks.iter().map(|_| book_copy(self.runtime.copies(), spec));
            copies.collect::<Result<Vec<_>>>()
        });
        let mut bookings = match booked {
            Ok(bookings) => bookings.into_iter(),
            Err(error) => {
                feed.failure = Some(error);
                return Ok(());
            }
        };
        let session = &mut *feed.session;
        let (backend, state) = (device.backend.as_mut(), session.state);
        let mut copies = Vec::new();
        let inside = (0..).zip(feed.marks).filter(|(_, mark)| **mark < end);
        for ((mark_idx, position), booking) in inside.zip(&mut bookings) {
            let copy = RecurrentCopy::of(backend, (state, Some(mark_idx)), spec, booking)?;
            copies.push((*position, copy));
        }
        // From here on the tokens are fed, even if the copy after the last of them fails.
        backend.states_mut().commit_state(state);
        session
            .tokens
            .extend(self.step_rows.rows[feed_rows.rows.clone()].iter().map(|row| row.token));
        copies.into_iter().for_each(|(position, copy)| session.checkpoints.keep(position, copy));
        if let Some(booking) = bookings.next() {
            let copy = RecurrentCopy::of(backend, (state, None), spec, booking)?;
            session.checkpoints.keep(end, copy);
        }
        Ok(())
    }
}

impl Drop for StepUnderWay<'_, '_> {
    fn drop(&mut self) {
        self.runtime.keep_rows(std::mem::take(&mut self.step_rows));
        if self.workspace_guard.is_some() {
            let mut device = self.runtime.lock_to_clean_up();
            device.paused = None;
            end_longer_steps(&self.runtime, &mut device);
        }
    }
}

/// Swaps out the first rows of a paused step, if there is one, to compute answers in their place.
fn swap_out(runtime: &Runtime, device: &mut DeviceContext) -> Result<()> {
    swap_paused_rows(runtime.model(), device, true)
}

/// Swaps the rows of a paused step back in before it continues.
fn swap_in(runtime: &Runtime, device: &mut DeviceContext) -> Result<()> {
    swap_paused_rows(runtime.model(), device, false)
}

fn swap_paused_rows(
    model: &LoadedModel,
    device: &mut DeviceContext,
    is_swapped_out: bool,
) -> Result<()> {
    let Some(paused) = device.paused.filter(|paused| paused.is_swapped_out != is_swapped_out)
    else {
        return Ok(());
    };
    let n_rows = paused.n_rows.min(N_ROWS_BESIDE);
    for buffer in &model.plan.carried {
        device.backend.swap_rows(*buffer, n_rows)?;
    }
    device.paused = Some(PausedStep { is_swapped_out, ..paused });
    Ok(())
}
