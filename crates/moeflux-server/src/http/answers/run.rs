//! A running request: turns the events of its jobs into events of its answers.
//!
//! **Invariant:** as of [`moeflux_wire::ResponseEvent`]. Dropping a run cancels its unfinished
//! jobs.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use moeflux::Finish;
use moeflux_chat::PreparedPrompt;
use moeflux_schedule::{Event as JobEvent, Refusal, Scored, Ticket, Times};
use tokio::time::{Instant, sleep_until};

use crate::http::answers::inbox::Inbox;
use crate::http::answers::prompt::PromptJob;
use crate::http::answers::record::Record;
use crate::http::answers::unlike;
use crate::http::reply::{Problem, failure_of};
use crate::http::shared::ModelState;
use moeflux_wire::{AnswerEvents, PromptProgress, Reason, ResponseEvent, Score, Usage, scored};

/// Upper bound on the concurrent jobs of one request. Others wait here and leave the queue to other
/// requests.
const N_JOBS_MAX: usize = 8;
/// Upper bound on the pause before a full queue is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Upper bound on the job events that are processed before the client is sent their result.
const N_EVENTS_IN_A_ROW_MAX: usize = 32;

/// A running request: its jobs, and the events that they give.
pub(crate) struct RequestRun {
    state: Arc<ModelState>,
    inbox: Inbox,
    /// Prompts whose jobs were not submitted yet, with their indices.
    waiting: VecDeque<(usize, PromptJob)>,
    /// When to submit the first of them again even if no job has ended.
    retry_at: Option<Instant>,
    prompt_runs: Vec<PromptRun>,
    n_jobs: usize,
    /// When the first prompt began to be read.
    reading_since: Option<Instant>,
    pub(crate) record: Record,
}

/// A prompt of the request, and its answers so far.
struct PromptRun {
    /// Present while its job runs.
    ticket: Option<Ticket>,
    n_prompt_tokens: usize,
    /// The number of those tokens that need no computation, once that is known.
    n_cached_tokens: usize,
    n_answers: usize,
    n_finished: usize,
    prompt: PreparedPrompt,
    echo: Option<String>,
    has_scores: bool,
    /// Filled when the prompt is begun.
    answers: Vec<AnswerEvents>,
}

impl RequestRun {
    /// Creates a run of these prompts; [`RequestRun::submit`] begins it.
    pub(crate) fn new(
        state: Arc<ModelState>,
        prompt_jobs: VecDeque<PromptJob>,
        record: Record,
    ) -> Self {
        let prompt_run = |prompt_job: &PromptJob| PromptRun {
            ticket: None,
            n_prompt_tokens: prompt_job.job.prompt.len(),
            n_cached_tokens: 0,
            n_answers: prompt_job.job.n_answers,
            n_finished: 0,
            prompt: prompt_job.prompt.clone(),
            echo: prompt_job.echo.clone(),
            has_scores: prompt_job.job.scores_prompt,
            answers: Vec::new(),
        };
        let prompt_runs = prompt_jobs.iter().map(prompt_run).collect();
        let inbox = Inbox::new(Arc::clone(&state.served.service));
        let waiting = prompt_jobs.into_iter().enumerate().collect();
        let (retry_at, n_jobs, reading_since) = (None, 0, None);
        Self { state, inbox, waiting, retry_at, prompt_runs, n_jobs, reading_since, record }
    }

    /// Submits jobs to the scheduler. A full queue is no error for a request that has begun.
    pub(crate) fn submit(&mut self) -> Result<(), Problem> {
        let submitted = self.submit_more();
        self.record_problem(submitted)
    }

    fn submit_more(&mut self) -> Result<(), Problem> {
        self.retry_at = None;
        let has_begun = self.waiting.len() < self.prompt_runs.len();
        while let Some((prompt_idx, prompt_job)) = self.waiting.front() {
            if self.n_jobs == N_JOBS_MAX {
                break;
            }
            let sink = self.inbox.sink(*prompt_idx);
            match self.state.served.service.submit(prompt_job.job.clone(), sink) {
                Ok(ticket) => self.prompt_runs[*prompt_idx].ticket = Some(ticket),
                Err(Refusal::QueueFull { retry_after, .. }) if has_begun || self.n_jobs > 0 => {
                    self.retry_at = Some(Instant::now() + retry_after.min(PAUSE_MAX));
                    break;
                }
                Err(refusal) => return Err(refusal.into()),
            }
            self.n_jobs += 1;
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Whether all answers have ended.
    pub(crate) fn is_done(&self) -> bool {
        self.n_jobs == 0 && self.waiting.is_empty()
    }

    /// Returns the number of tokens of all prompts.
    pub(crate) fn n_prompt_tokens(&self) -> usize {
        self.prompt_runs.iter().map(|prompt_run| prompt_run.n_prompt_tokens).sum()
    }

    /// Returns the progress of reading the prompts.
    pub(crate) fn progress(&self) -> PromptProgress {
        let mut all = PromptProgress {
            n_total: self.n_prompt_tokens(),
            elapsed: self.reading_since.map_or(Duration::ZERO, |since| since.elapsed()),
            ..PromptProgress::default()
        };
        let mut left = self.waiting.is_empty().then_some(Duration::ZERO);
        for prompt_run in &self.prompt_runs {
            all.n_cached += prompt_run.n_cached_tokens;
            if let Some(ticket) = &prompt_run.ticket {
                let progress = ticket.progress();
                all.n_done += progress.n_done;
                left = left.zip(progress.left).map(|(left, more)| left.max(more));
            } else if prompt_run.n_finished == prompt_run.n_answers {
                all.n_done += prompt_run.n_prompt_tokens;
            }
        }
        all.seconds_left = left.map(|left| left.as_secs());
        all
    }

    /// Waits for an event of a job and appends the resulting events, possibly none. Events before a
    /// problem are valid. Cancel safe: no event is lost.
    pub(crate) async fn next(&mut self, events: &mut Vec<ResponseEvent>) -> Result<(), Problem> {
        let received = tokio::select! {
            received = self.inbox.next() => received,
            () = until(self.retry_at) => return self.submit(),
        };
        let received = self.handle_events(received, events);
        self.record_problem(received)
    }

    fn handle_events(
        &mut self,
        first: (usize, JobEvent),
        events: &mut Vec<ResponseEvent>,
    ) -> Result<(), Problem> {
        self.handle_event(first, events)?;
        for _ in 1..N_EVENTS_IN_A_ROW_MAX {
            let Some(received) = self.inbox.next_now() else { break };
            self.handle_event(received, events)?;
        }
        Ok(())
    }

    fn record_problem(&mut self, outcome: Result<(), Problem>) -> Result<(), Problem> {
        outcome.inspect_err(|problem| self.record.failed(problem))
    }

    fn handle_event(
        &mut self,
        (prompt_idx, event): (usize, JobEvent),
        events: &mut Vec<ResponseEvent>,
    ) -> Result<(), Problem> {
        let prompt_run = &mut self.prompt_runs[prompt_idx];
        match event {
            JobEvent::Begun { n_cached_tokens, n_cached_drive_tokens, missed, lookup } => {
                self.record.found(missed, lookup.as_ref());
                if let Some(row) = lookup.and_then(|it| it.row) {
                    unlike::warn(&self.state, self.record.id(), &row);
                }
                let n_prompt_tokens = prompt_run.n_prompt_tokens;
                let n_replayed = prompt_run.prompt.n_replayed;
                let usage = Usage {
                    n_prompt_tokens,
                    n_cached_tokens,
                    n_cached_drive_tokens,
                    n_replayed,
                    ..Usage::NONE
                };
                self.begin(prompt_idx, usage, events);
            }
            JobEvent::PromptScores(scores) => self.scores(prompt_idx, &scores, events),
            JobEvent::Token { answer_idx, token, text } => {
                self.record.token();
                let tokenizer = self.state.text().tokenizer();
                events.extend(prompt_run.answers[answer_idx].chosen(
                    tokenizer,
                    score(&token),
                    &text,
                ));
            }
            JobEvent::EndToken { answer_idx, token } => {
                prompt_run.answers[answer_idx]
                    .ended_by(self.state.text().tokenizer(), score(&token));
            }
            JobEvent::Finished { answer_idx, finish, stopped, rest, times } => {
                let outcome = AnswerOutcome { answer_idx, finish, stopped, rest, times };
                return self.finish(prompt_idx, &outcome, events);
            }
            JobEvent::Failed(error) => return Err(failure_of(&error).into()),
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, prompt_idx: usize, usage: Usage, events: &mut Vec<ResponseEvent>) {
        let Usage { n_cached_tokens, n_cached_drive_tokens, n_replayed, .. } = usage;
        let prompt_run = &mut self.prompt_runs[prompt_idx];
        prompt_run.n_cached_tokens = n_cached_tokens;
        self.reading_since.get_or_insert_with(Instant::now);
        self.state.n_replayed.fetch_add(n_replayed as u64, Ordering::Relaxed);
        self.record.begun(usage);
        let call_stem = format!("call_{}", self.state.server.id());
        let answer = |index| {
            let answer = prompt_run.prompt.answer_with_ids(&format!("{call_stem}_{index}"));
            AnswerEvents::new(index, answer, usage)
        };
        prompt_run.answers = prompt_run.indices(prompt_idx).map(answer).collect();
        let echo = prompt_run.echo.clone().filter(|_| !prompt_run.has_scores);
        let indices = prompt_run.indices(prompt_idx);
        let n_prompt_tokens = self.n_prompt_tokens();
        events.push(ResponseEvent::Begun {
            n_prompt_tokens,
            n_cached_tokens,
            n_cached_drive_tokens,
        });
        if let Some(text) = echo {
            let echoed =
                |index| ResponseEvent::Text { index, text: text.clone(), tokens: Vec::new() };
            events.extend(indices.map(echoed));
        }
    }

    /// Sends the prompt's whole text with its first scores, because characters may span tokens.
    fn scores(&mut self, prompt_idx: usize, scores: &[Scored], events: &mut Vec<ResponseEvent>) {
        let tokenizer = self.state.text().tokenizer();
        let tokens: Vec<_> = scores.iter().map(|it| scored(tokenizer, score(it))).collect();
        let prompt_run = &mut self.prompt_runs[prompt_idx];
        let text = prompt_run.echo.take().unwrap_or_default();
        let echoed =
            |index| ResponseEvent::Text { index, text: text.clone(), tokens: tokens.clone() };
        events.extend(prompt_run.indices(prompt_idx).map(echoed));
    }

    fn finish(
        &mut self,
        prompt_idx: usize,
        outcome: &AnswerOutcome,
        events: &mut Vec<ResponseEvent>,
    ) -> Result<(), Problem> {
        let reason = Reason::of(outcome.finish, outcome.stopped.as_deref())
            .expect("nothing is told of answers that were cancelled");
        self.record.finished(&reason, &outcome.times);
        let prompt_run = &mut self.prompt_runs[prompt_idx];
        let answer = &mut prompt_run.answers[outcome.answer_idx];
        events.extend(answer.end(&outcome.rest, reason));
        if let Some(kept) = answer.take_kept() {
            self.state.chat.keep(kept);
        }
        prompt_run.n_finished += 1;
        if prompt_run.n_finished < prompt_run.n_answers {
            return Ok(());
        }
        prompt_run.ticket = None;
        self.n_jobs -= 1;
        self.submit_more()
    }
}

impl Drop for RequestRun {
    fn drop(&mut self) {
        if !self.is_done() {
            self.record.cancelled();
        }
    }
}

/// How an answer ended.
struct AnswerOutcome {
    answer_idx: usize,
    finish: Finish,
    stopped: Option<String>,
    rest: String,
    times: Times,
}

impl PromptRun {
    /// Returns the indices of its answers among those of all prompts.
    fn indices(&self, prompt_idx: usize) -> Range<usize> {
        prompt_idx * self.n_answers..(prompt_idx + 1) * self.n_answers
    }
}

fn score(token: &Scored) -> Score<'_> {
    (token.token, token.logprob, &token.top)
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
