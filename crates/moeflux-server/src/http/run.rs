//! A running request: turns the events of its jobs into events of its answers.
//!
//! **Invariant:** as of [`moeflux_wire::Event`]. Dropping a run cancels its unfinished jobs.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use moeflux::Finish;
use moeflux_chat::PreparedPrompt;
use moeflux_schedule::{Event as JobEvent, Refusal, Scored, Ticket, Times};
use tokio::time::{Instant, sleep_until};

use crate::http::inbox::Inbox;
use crate::http::prompt::Planned;
use crate::http::record::Record;
use crate::http::reply::{Problem, failure_of};
use crate::http::shared::Shared;
use moeflux_wire::{AnswerEvents, Event, Progress, Reason, Score, Usage, scored};

/// Upper bound on the concurrent jobs of one request. Others wait here and leave the queue to other
/// requests.
const N_JOBS_MAX: usize = 8;
/// Upper bound on the pause before a full queue is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Upper bound on the job events that are processed before the client is sent their result.
const N_EVENTS_IN_A_ROW_MAX: usize = 32;

/// A running request.
pub(crate) struct Run {
    shared: Arc<Shared>,
    inbox: Inbox,
    /// Prompts whose jobs were not submitted yet, with their indices.
    waiting: VecDeque<(usize, Planned)>,
    /// When to submit the first of them again even if no job has ended.
    ask_again: Option<Instant>,
    parts: Vec<Part>,
    n_jobs: usize,
    pub(crate) record: Record,
}

/// A prompt and its answers.
struct Part {
    /// Present while its job runs.
    ticket: Option<Ticket>,
    n_prompt_tokens: usize,
    n_answers: usize,
    n_finished: usize,
    prompt: PreparedPrompt,
    echo: Option<String>,
    has_scores: bool,
    /// Filled when the prompt is begun.
    answers: Vec<AnswerEvents>,
}

impl Run {
    /// Creates a run of these prompts; [`Run::submit`] begins it.
    pub(crate) fn new(shared: Arc<Shared>, planned: VecDeque<Planned>, record: Record) -> Self {
        let part = |planned: &Planned| Part {
            ticket: None,
            n_prompt_tokens: planned.job.prompt.len(),
            n_answers: planned.job.n_answers,
            n_finished: 0,
            prompt: planned.prompt.clone(),
            echo: planned.echo.clone(),
            has_scores: planned.job.scores_prompt,
            answers: Vec::new(),
        };
        let parts = planned.iter().map(part).collect();
        let inbox = Inbox::new(Arc::clone(&shared.served.service));
        let waiting = planned.into_iter().enumerate().collect();
        Self { shared, inbox, waiting, ask_again: None, parts, n_jobs: 0, record }
    }

    /// Submits jobs to the scheduler. A full queue is no error for a request that has begun.
    pub(crate) fn submit(&mut self) -> Result<(), Problem> {
        let submitted = self.submit_more();
        self.noted(submitted)
    }

    fn submit_more(&mut self) -> Result<(), Problem> {
        self.ask_again = None;
        let has_begun = self.waiting.len() < self.parts.len();
        while let Some((part_idx, planned)) = self.waiting.front() {
            if self.n_jobs == N_JOBS_MAX {
                break;
            }
            let sink = self.inbox.sink(*part_idx);
            match self.shared.served.service.submit(planned.job.clone(), sink) {
                Ok(ticket) => self.parts[*part_idx].ticket = Some(ticket),
                Err(Refusal::QueueFull { retry_after, .. }) if has_begun || self.n_jobs > 0 => {
                    self.ask_again = Some(Instant::now() + retry_after.min(PAUSE_MAX));
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
        self.parts.iter().map(|part| part.n_prompt_tokens).sum()
    }

    /// Returns the progress of reading the prompts.
    pub(crate) fn progress(&self) -> Progress {
        let mut all = Progress { n_total: self.n_prompt_tokens(), ..Progress::default() };
        let mut left = self.waiting.is_empty().then_some(Duration::ZERO);
        for part in &self.parts {
            if let Some(ticket) = &part.ticket {
                let progress = ticket.progress();
                all.n_done += progress.n_done;
                left = left.zip(progress.left).map(|(left, more)| left.max(more));
            } else if part.n_finished == part.n_answers {
                all.n_done += part.n_prompt_tokens;
            }
        }
        all.seconds_left = left.map(|left| left.as_secs());
        all
    }

    /// Waits for an event of a job and appends the resulting events, possibly none. Events before a
    /// problem are valid. Cancel safe: no event is lost.
    pub(crate) async fn next(&mut self, events: &mut Vec<Event>) -> Result<(), Problem> {
        let heard = tokio::select! {
            heard = self.inbox.next() => heard,
            () = until(self.ask_again) => return self.submit(),
        };
        let heard = self.hear_all(heard, events);
        self.noted(heard)
    }

    fn hear_all(
        &mut self,
        first: (usize, JobEvent),
        events: &mut Vec<Event>,
    ) -> Result<(), Problem> {
        self.hear(first, events)?;
        for _ in 1..N_EVENTS_IN_A_ROW_MAX {
            let Some(heard) = self.inbox.next_now() else { break };
            self.hear(heard, events)?;
        }
        Ok(())
    }

    fn noted(&mut self, outcome: Result<(), Problem>) -> Result<(), Problem> {
        outcome.inspect_err(|problem| self.record.failed(problem))
    }

    fn hear(
        &mut self,
        (part_idx, event): (usize, JobEvent),
        events: &mut Vec<Event>,
    ) -> Result<(), Problem> {
        let part = &mut self.parts[part_idx];
        match event {
            JobEvent::Begun { n_cached_tokens, missed } => {
                self.record.missed(missed);
                self.begin(part_idx, n_cached_tokens, events);
            }
            JobEvent::PromptScores(scores) => self.scores(part_idx, &scores, events),
            JobEvent::Token { answer_idx, token, text } => {
                self.record.token();
                let tokenizer = self.shared.text().tokenizer();
                events.extend(part.answers[answer_idx].chosen(tokenizer, score(&token), &text));
            }
            JobEvent::EndToken { answer_idx, token } => {
                part.answers[answer_idx].ended_by(self.shared.text().tokenizer(), score(&token));
            }
            JobEvent::Finished { answer_idx, finish, stopped, rest, times } => {
                let end = End { answer_idx, finish, stopped, rest, times };
                return self.finish(part_idx, &end, events);
            }
            JobEvent::Failed(error) => return Err(failure_of(&error).into()),
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, part_idx: usize, n_cached_tokens: usize, events: &mut Vec<Event>) {
        let part = &mut self.parts[part_idx];
        let n_prompt_tokens = part.n_prompt_tokens;
        let n_replayed = part.prompt.n_replayed;
        self.shared.n_replayed.fetch_add(n_replayed as u64, Ordering::Relaxed);
        let usage = Usage { n_prompt_tokens, n_cached_tokens, n_replayed, ..Usage::default() };
        self.record.begun(usage);
        let call_stem = format!("call_{}", self.shared.common.id());
        let answer = |index| {
            let answer = part.prompt.answer(&format!("{call_stem}_{index}"));
            AnswerEvents::new(index, answer, usage)
        };
        part.answers = part.indices(part_idx).map(answer).collect();
        let echo = part.echo.clone().filter(|_| !part.has_scores);
        let indices = part.indices(part_idx);
        let n_prompt_tokens = self.n_prompt_tokens();
        events.push(Event::Begun { n_prompt_tokens, n_cached_tokens });
        if let Some(text) = echo {
            let echoed = |index| Event::Text { index, text: text.clone(), tokens: Vec::new() };
            events.extend(indices.map(echoed));
        }
    }

    /// Sends the prompt's whole text with its first scores, because characters may span tokens.
    fn scores(&mut self, part_idx: usize, scores: &[Scored], events: &mut Vec<Event>) {
        let tokenizer = self.shared.text().tokenizer();
        let tokens: Vec<_> = scores.iter().map(|it| scored(tokenizer, score(it))).collect();
        let part = &mut self.parts[part_idx];
        let text = part.echo.take().unwrap_or_default();
        let echoed = |index| Event::Text { index, text: text.clone(), tokens: tokens.clone() };
        events.extend(part.indices(part_idx).map(echoed));
    }

    fn finish(
        &mut self,
        part_idx: usize,
        end: &End,
        events: &mut Vec<Event>,
    ) -> Result<(), Problem> {
        let reason = Reason::of(end.finish, end.stopped.as_deref())
            .expect("nothing is told of answers that were cancelled");
        self.record.finished(&reason, &end.times);
        let part = &mut self.parts[part_idx];
        let answer = &mut part.answers[end.answer_idx];
        events.extend(answer.end(&end.rest, reason));
        if let Some(kept) = answer.take_kept() {
            self.shared.chat.keep(kept);
        }
        part.n_finished += 1;
        if part.n_finished < part.n_answers {
            return Ok(());
        }
        part.ticket = None;
        self.n_jobs -= 1;
        self.submit_more()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.is_done() {
            self.record.cancelled();
        }
    }
}

/// How an answer ended.
struct End {
    answer_idx: usize,
    finish: Finish,
    stopped: Option<String>,
    rest: String,
    times: Times,
}

impl Part {
    /// Returns the indices of its answers among those of all parts.
    fn indices(&self, part_idx: usize) -> Range<usize> {
        part_idx * self.n_answers..(part_idx + 1) * self.n_answers
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
