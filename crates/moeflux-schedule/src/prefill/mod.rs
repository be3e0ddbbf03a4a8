//! A prompt that is being read, or the tokens of an answer that has lost its session.
//!
//! **Invariant:** its session holds a prefix of the tokens.

pub(crate) mod precedence;
pub(crate) mod scores;
mod marks;
pub(crate) mod chunk;

use std::sync::Arc;
use std::time::Duration;

use moeflux::step::{Feed, LongerSteps, Wanted};
use moeflux::{Session, TokenId};

use crate::prefill::marks::SaveMarks;
use crate::shared::JobFlags;
use crate::tracked::{JobId, RunningJob};

/// Upper bound on the checkpoints that reading a prompt saves.
const N_CHECKPOINTS_MAX: usize = 4;

/// A job, and the answer that resumes after the tokens; `None`: they are the job's prompt.
pub(crate) type PrefillId = (JobId, Option<usize>);

/// The facts about a prefill that other prompts need.
#[derive(Clone, Debug)]
pub(crate) struct Outline {
    pub(crate) prompt: Arc<[TokenId]>,
    /// Positions of the checkpoints that others can go back to, ascending.
    checkpoints: Vec<usize>,
    n_cached: usize,
}

/// A prompt that is being read: its first tokens are in a session.
pub(crate) struct Prefill {
    pub(crate) job: JobId,
    /// The answer that resumes after these tokens; `None`: this is the job's prompt.
    pub(crate) resumes: Option<usize>,
    pub(crate) flags: Arc<JobFlags>,
    pub(crate) outline: Outline,
    pub(crate) session: Session,
    /// Engine time that it has used.
    pub(crate) service: Duration,
    /// There was no memory for it between the layers of a step.
    pub(crate) is_short_of_room: bool,
    begun_at: Duration,
    scores: bool,
    n_best: Option<usize>,
    /// Makes steps longer while it exists.
    longer: Option<LongerSteps>,
    marks: SaveMarks,
    /// Checkpoints of the running step.
    step_checkpoints: Vec<usize>,
}

/// The parameters of a prefill besides its session.
pub(crate) struct Terms {
    /// The number of best logits that its first token needs; `None`: all.
    pub(crate) n_best: Option<usize>,
    pub(crate) longer: Option<LongerSteps>,
    /// The distance of the places up to which it is saved on a drive; `None`: it is not.
    pub(crate) mark_every: Option<usize>,
    pub(crate) begun_at: Duration,
}

impl Prefill {
    pub(crate) fn new(id: JobId, running_job: &RunningJob, session: Session, terms: Terms) -> Self {
        let job = &running_job.job;
        let prompt = job.prompt.as_slice().into();
        let scores = job.scores_prompt;
        Self { scores, ..Self::of_tokens(id, running_job, (prompt, session), terms) }
    }

    /// Reads the tokens of an answer that resumes after them.
    pub(crate) fn again(
        of: (JobId, usize),
        running_job: &RunningJob,
        read: (Arc<[TokenId]>, Session),
        terms: Terms,
    ) -> Self {
        let (id, answer_idx) = of;
        let terms = Terms { mark_every: None, ..terms };
        Self { resumes: Some(answer_idx), ..Self::of_tokens(id, running_job, read, terms) }
    }

    fn of_tokens(
        id: JobId,
        running_job: &RunningJob,
        (prompt, session): (Arc<[TokenId]>, Session),
        terms: Terms,
    ) -> Self {
        let job = &running_job.job;
        let n_cached = session.tokens().len();
        let last = prompt.len() - 1;
        let mut checkpoints: Vec<usize> = job.split_points.iter().copied().chain([last]).collect();
        checkpoints.retain(|position| *position > n_cached && *position <= last);
        checkpoints.sort_unstable();
        checkpoints.dedup();
        checkpoints.drain(..checkpoints.len().saturating_sub(N_CHECKPOINTS_MAX));
        let Terms { n_best, longer, mark_every, begun_at } = terms;
        Self {
            job: id,
            resumes: None,
            flags: Arc::clone(&running_job.flags),
            outline: Outline { prompt, checkpoints, n_cached },
            session,
            service: Duration::ZERO,
            is_short_of_room: false,
            begun_at,
            scores: false,
            n_best,
            longer,
            marks: SaveMarks::new(mark_every.filter(|_| !job.scores_prompt), n_cached),
            step_checkpoints: Vec::new(),
        }
    }

    pub(crate) fn id(&self) -> PrefillId {
        (self.job, self.resumes)
    }

    /// Whether its tokens are scored.
    pub(crate) fn is_scored(&self) -> bool {
        self.scores
    }

    /// Whether the answers that need it are cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.flags.are_cancelled(self.resumes)
    }

    /// Returns the number of tokens that were read.
    pub(crate) fn n_done(&self) -> usize {
        self.session.tokens().len()
    }

    /// Returns the number of tokens that are still to be read.
    pub(crate) fn n_left(&self) -> usize {
        self.outline.prompt.len() - self.n_done()
    }

    /// Returns the rows of its next step, at most `n_rows_max`. Longer steps are evenly sized.
    pub(crate) fn n_rows(&self, n_rows_max: usize) -> usize {
        let n_left = self.n_left();
        match self.longer {
            Some(_) => n_left.div_ceil(n_left.div_ceil(n_rows_max)),
            None => n_left.min(n_rows_max),
        }
    }

    /// Cancels the remaining checkpoints. Returns whether there were any.
    pub(crate) fn drop_checkpoints(&mut self) -> bool {
        let n_done = self.n_done();
        let makes_difference = self.outline.checkpoints.iter().any(|position| *position > n_done);
        self.outline.checkpoints.clear();
        self.marks.end() || makes_difference
    }

    /// Feeds the next rows.
    pub(crate) fn feed(&mut self, n_rows: usize) -> Feed<'_> {
        self.feed_as(Feed::prompt, n_rows)
    }

    /// Feeds the next rows to a step between the layers of another, which takes rows of answers.
    pub(crate) fn feed_beside(&mut self, n_rows: usize) -> Feed<'_> {
        self.feed_as(Feed::answer_run, n_rows)
    }

    fn feed_as<'s>(
        &'s mut self,
        feed: fn(&'s mut Session, &'s [TokenId]) -> Feed<'s>,
        n_rows: usize,
    ) -> Feed<'s> {
        let begin = self.session.tokens().len();
        let end = begin + n_rows;
        let Outline { prompt, checkpoints, .. } = &self.outline;
        self.step_checkpoints.clear();
        let of_step = checkpoints.iter().copied().chain(self.marks.advance(end));
        self.step_checkpoints.extend(of_step.filter(|at| (begin + 1..=end).contains(at)));
        self.step_checkpoints.sort_unstable();
        self.step_checkpoints.dedup();
        let wanted = match (self.scores, end == prompt.len()) {
            (true, _) => Wanted::All,
            (false, true) => Wanted::Last,
            (false, false) => Wanted::None,
        };
        feed(&mut self.session, &prompt[begin..end])
            .wanting(wanted)
            .best(self.n_best)
            .checkpoints(&self.step_checkpoints)
    }

    /// Returns the place up to which it is to be saved now, before the rest is read.
    pub(crate) fn unsaved_mark(&self, is_recurrent: bool) -> Option<usize> {
        let mark = self.marks.due().filter(|mark| *mark <= self.n_done())?;
        let has_state = !is_recurrent || self.session.checkpoints().contains(&mark);
        has_state.then_some(mark)
    }

    /// Records that such a place was saved, or is not to be.
    pub(crate) fn end_mark(&mut self, mark: usize) {
        self.marks.set_saved();
        // Its state is on the drive; the memory is for places where prompts branch off.
        if !self.outline.checkpoints.contains(&mark) {
            self.session.forget(mark);
        }
    }

    /// Returns a handle that reports progress while the session is in a step.
    pub(crate) fn progress_handle(&self) -> PrefillProgress {
        PrefillProgress {
            flags: Arc::clone(&self.flags),
            resumes: self.resumes,
            begun_at: self.begun_at,
            n_cached: self.outline.n_cached,
            n_before: self.n_done(),
            n_total: self.outline.prompt.len(),
        }
    }
}

impl Outline {
    /// Returns the most tokens at the start of another prompt that can be forked from this one once
    /// it is read.
    pub(crate) fn n_forkable(&self, n_shared: usize, is_recurrent: bool) -> usize {
        if !is_recurrent || n_shared >= self.prompt.len() {
            return n_shared;
        }
        let cached = (self.n_cached <= n_shared).then_some(self.n_cached);
        let checkpoints = self.checkpoints.iter().copied().filter(|position| *position <= n_shared);
        checkpoints.chain(cached).max().unwrap_or(0)
    }
}

/// A handle that reports the progress of a prompt while a step with it is running.
pub(crate) struct PrefillProgress {
    flags: Arc<JobFlags>,
    resumes: Option<usize>,
    begun_at: Duration,
    n_cached: usize,
    n_before: usize,
    n_total: usize,
}

impl PrefillProgress {
    /// Whether the answers that need it are cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.flags.are_cancelled(self.resumes)
    }

    /// Reports progress as if `n_more` further tokens had been read.
    pub(crate) fn report(&self, n_more: usize, now: Duration) {
        // The prompt of a resumed answer was read before.
        if self.resumes.is_some() {
            return;
        }
        let n_done = self.n_before + n_more;
        let n_read = n_done - self.n_cached;
        let spent = now.saturating_sub(self.begun_at);
        let n_left = u32::try_from(self.n_total - n_done).unwrap_or(u32::MAX);
        let left = u32::try_from(n_read).ok().filter(|it| *it > 0).map(|n_read| {
            let per_token = spent / n_read;
            per_token.saturating_mul(n_left)
        });
        self.flags.set_progress(n_done, left);
    }
}
