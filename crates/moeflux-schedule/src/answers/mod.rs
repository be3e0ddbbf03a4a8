//! Running answers: one step feeds rows of all of them, and its logits give their next tokens.
//!
//! **Invariant:** an answer's session holds its prompt and every token that was reported and fed.
//! An answer does not depend on the others.

pub(crate) mod decode;
pub(crate) mod parked;
mod sessions;

use std::sync::atomic::Ordering;
use std::time::Duration;

use moeflux::clock::Clock;
use moeflux::sample::Choice;
use moeflux::step::{Feed, Logits, StepOutput, Wanted, step};
use moeflux::{Chosen, Engine, Error, Finish, Generation, ModelText, Result, Session, TokenId};

use crate::answers::decode::DecodeState;
use crate::answers::parked::{Parked, Unparked};
use crate::job::{Event, Job, Owner, Scored};
use crate::session_cache::{SessionCache, SessionOrigin};
use crate::shared::SharedState;
use crate::tracked::{EndedAnswer, JobId, RunningJobs};

/// During an answer, a model with recurrent layers saves a checkpoint every so often, in tokens.
const CHECKPOINT_EVERY: usize = 512;

/// References that all parts of the scheduler need.
#[derive(Clone, Copy)]
pub(crate) struct Context<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) text: &'e ModelText,
    pub(crate) shared: &'e SharedState,
    pub(crate) clock: &'e dyn Clock,
}

/// An answer that has a session and takes part in steps.
struct RunningAnswer<'e> {
    decode: DecodeState<'e>,
    session: Session,
    n_best: Option<usize>,
    /// The number of its pending tokens that the next step feeds.
    n_rows: usize,
    /// The positions at which the next step saves checkpoints.
    checkpoints: Vec<usize>,
    /// The error because of which its session cannot grow.
    shortage: Option<Error>,
}

/// Answers to one prompt that have no session yet.
struct UnstartedAnswers<'e> {
    job: JobId,
    /// The session of the prompt.
    prompt_session: Session,
    decodes: Vec<DecodeState<'e>>,
    has_begun: bool,
}

/// All answers, their jobs, and the sessions that remain when they end.
pub(crate) struct Answers<'e> {
    context: Context<'e>,
    pub(crate) jobs: RunningJobs,
    pub(crate) session_cache: SessionCache,
    running: Vec<RunningAnswer<'e>>,
    parked: Parked<'e>,
    unstarted: Vec<UnstartedAnswers<'e>>,
    output: StepOutput,
    /// Total wait of steps for drives, and total tokens of answers, at the last [`Self::publish`].
    published: (Duration, u64),
    /// The engine no longer works.
    pub(crate) is_stopped: bool,
}

impl<'e> Answers<'e> {
    pub(crate) fn new(context: Context<'e>, session_cache: SessionCache) -> Self {
        Self {
            context,
            jobs: RunningJobs::default(),
            session_cache,
            running: Vec::new(),
            parked: Parked::default(),
            unstarted: Vec::new(),
            output: StepOutput::default(),
            published: (Duration::ZERO, context.shared.stats().n_answer_tokens),
            is_stopped: false,
        }
    }

    /// Returns the number of answers that have session slots.
    pub(crate) fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Returns the sessions of running answers, for prompts with the same start.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (Owner, &Session)> {
        self.running.iter().map(|answer| (self.jobs.owner(answer.decode.job), &answer.session))
    }

    pub(crate) fn session_mut(&mut self, idx: usize) -> &mut Session {
        &mut self.running[idx].session
    }

    /// Begins the answers to a prompt that was read. They get sessions as these become free.
    pub(crate) fn begin(&mut self, job: JobId, session: Session, logits: Logits<'_>) {
        let mut decodes = Vec::new();
        // The job ends with its last answer.
        let SessionOrigin { owner, split_points, n_reused } = self.jobs.of(job).origin();
        let split_points = split_points.to_vec();
        let n_answers = self.jobs.of(job).job.n_answers;
        for answer_idx in 0..n_answers {
            match self.first_token((job, answer_idx), &session, logits) {
                Ok(decode) => decodes.extend(decode),
                Err(error) => self.jobs.fail(job, error, self.context.shared),
            }
        }
        if decodes.is_empty() {
            let origin = SessionOrigin { owner, split_points: &split_points, n_reused };
            self.session_cache.put(session, origin);
        } else {
            self.unstarted.push(UnstartedAnswers {
                job,
                prompt_session: session,
                decodes,
                has_begun: false,
            });
        }
    }

    /// Chooses the first token of an answer. Returns `None` if the answer ends with it.
    fn first_token(
        &mut self,
        (job, answer_idx): (JobId, usize),
        session: &Session,
        logits: Logits<'_>,
    ) -> Result<Option<DecodeState<'e>>> {
        let asked = &self.jobs.of(job).job;
        let n_tokens_max = asked.n_tokens_max;
        let generation = self.context.generation(asked, answer_idx)?;
        let (tokens, token_at) = (Vec::new(), self.context.clock.now());
        let mut decode = DecodeState { job, answer_idx, generation, tokens, n_tokens: 0, token_at };
        let finish = if n_tokens_max == Some(0) {
            Some(Finish::Length)
        } else {
            self.choose(&mut decode, session, logits)?
        };
        match finish {
            None => Ok(Some(decode)),
            Some(finish) => {
                self.end_answer(decode, finish);
                Ok(None)
            }
        }
    }

    /// Chooses a token and takes the tokens that a mask forces after it. Returns the reason if the
    /// answer ends here.
    fn choose(
        &mut self,
        decode: &mut DecodeState<'e>,
        session: &Session,
        logits: Logits<'_>,
    ) -> Result<Option<Finish>> {
        let answer_idx = decode.answer_idx;
        let chosen = decode.generation.accept(logits, session)?;
        if chosen.finish == Some(Finish::EndToken) {
            if chosen.choice.logprob.is_some() {
                let token = scored(&chosen.choice);
                self.jobs.end_token(decode.job, Event::EndToken { answer_idx, token });
            }
            return Ok(Some(Finish::EndToken));
        }
        let (token, event) = token_event(answer_idx, &chosen);
        let mut finish = chosen.finish;
        self.report_token(decode, token, event);
        while finish.is_none() {
            let Some(chosen) = decode.generation.take_forced(session)? else { break };
            if chosen.finish == Some(Finish::EndToken) {
                return Ok(chosen.finish);
            }
            let (token, event) = token_event(answer_idx, &chosen);
            finish = chosen.finish;
            self.context.shared.stats().n_forced_tokens += 1;
            self.report_token(decode, token, event);
        }
        Ok(finish)
    }

    fn report_token(&mut self, decode: &mut DecodeState<'e>, token: TokenId, event: Event) {
        decode.tokens.push(token);
        decode.n_tokens += 1;
        let (now, shared) = (self.context.clock.now(), self.context.shared);
        {
            let mut stats = shared.stats();
            stats.n_answer_tokens += 1;
            if decode.n_tokens > 1 {
                stats.between_tokens.add_time(now.saturating_sub(decode.token_at));
            }
        }
        decode.token_at = now;
        self.jobs.token(decode.job, event, now, shared);
    }

    /// Gives a session to the first answer of a prompt. Returns whether there was such an answer,
    /// and memory for it. `is_read`: a prompt is being read.
    pub(crate) fn start_first(&mut self, is_read: bool) -> bool {
        let is_new = |unstarted: &UnstartedAnswers<'_>| !unstarted.has_begun;
        self.start_where(is_new, is_read)
    }

    /// Does the same for any answer without a session.
    pub(crate) fn start_further(&mut self, is_read: bool) -> bool {
        self.start_where(|_| true, is_read)
    }

    fn start_where(&mut self, is_wanted: fn(&UnstartedAnswers<'_>) -> bool, is_read: bool) -> bool {
        let jobs = &self.jobs;
        let is_next = |it: &UnstartedAnswers<'_>| is_wanted(it) && jobs.of(it.job).is_ready();
        self.unstarted.iter().position(is_next).is_some_and(|idx| self.start(idx, is_read))
    }

    /// Whether an answer could begin or resume if it had a session slot.
    pub(crate) fn wants_session_slot(&self) -> bool {
        let is_ready = |job| self.jobs.of(job).is_ready();
        self.unstarted.iter().any(|it| is_ready(it.job))
            || self.parked.has_any(|decode| is_ready(decode.job))
    }

    /// Parks an answer whose client takes no tokens. Returns whether there was one.
    pub(crate) fn park_one(&mut self) -> bool {
        let jobs = &self.jobs;
        let is_paused = |it: &RunningAnswer<'_>| !jobs.of(it.decode.job).is_ready();
        let Some(idx) = self.running.iter().position(is_paused) else { return false };
        let RunningAnswer { decode, session, .. } = self.running.remove(idx);
        self.parked.put(decode, session);
        true
    }

    /// Takes a parked answer whose client takes tokens again.
    pub(crate) fn unpark(&mut self) -> Option<Unparked<'e>> {
        let jobs = &self.jobs;
        self.parked.unpark(|decode| jobs.of(decode.job).is_ready())
    }

    /// Resumes an answer that was parked with its session.
    pub(crate) fn resume_with_session(&mut self, decode: DecodeState<'e>, session: Session) {
        self.running.push(RunningAnswer::new(decode, session));
    }

    /// Resumes a parked answer whose tokens were read again.
    pub(crate) fn resume(&mut self, of: (JobId, usize), session: Session, logits: Logits<'_>) {
        let Some(mut decode) = self.parked.take_recomputed(of) else { return };
        decode.tokens.clear();
        let chosen = self.choose(&mut decode, &session, logits);
        self.take_up(RunningAnswer::new(decode, session), chosen);
    }

    /// Parks an answer again because its tokens were not read completely.
    pub(crate) fn put_back(&mut self, of: (JobId, usize)) {
        self.parked.put_back(of);
    }

    /// Fails an answer whose tokens cannot be read.
    pub(crate) fn fail_parked(&mut self, of: (JobId, usize), error: Error) {
        if let Some(decode) = self.parked.take_recomputed(of) {
            self.jobs.fail(decode.job, error, self.context.shared);
        }
    }

    /// Starts one answer of this prompt. The first answer starts last: it continues in the
    /// prompt's own session, with the checkpoints to which later prompts can go back.
    fn start(&mut self, idx: usize, is_read: bool) -> bool {
        let mut unstarted = self.unstarted.remove(idx);
        let decode = unstarted.decodes.pop().expect("answers without a session are at least one");
        if unstarted.decodes.is_empty() {
            self.running.push(RunningAnswer::new(decode, unstarted.prompt_session));
            return true;
        }
        let forked = loop {
            match unstarted.prompt_session.fork() {
                Err(Error::NoRoom { .. }) if self.evict_one() => {}
                forked => break forked,
            }
        };
        let mut has_started = true;
        match forked {
            Ok(session) => {
                unstarted.has_begun = true;
                self.running.push(RunningAnswer::new(decode, session));
            }
            // Other answers will end and leave room.
            Err(Error::NoRoom { .. }) if is_read || !self.running.is_empty() => {
                unstarted.decodes.push(decode);
                has_started = false;
            }
            Err(error) => self.jobs.fail(decode.job, error, self.context.shared),
        }
        self.unstarted.insert(idx.min(self.unstarted.len()), unstarted);
        has_started
    }

    /// Ends cancelled answers. Returns whether there were any.
    pub(crate) fn drop_cancelled(&mut self) -> bool {
        let jobs = &self.jobs;
        let is_cancelled = |decode: &DecodeState<'_>| {
            jobs.of(decode.job).flags.is_answer_cancelled(decode.answer_idx)
        };
        let running = self.running.extract_if(.., |answer| is_cancelled(&answer.decode));
        let mut gone: Vec<_> = running.map(|it| (it.decode, Some(it.session))).collect();
        gone.extend(self.parked.extract(is_cancelled));
        for unstarted in &mut self.unstarted {
            let decodes = unstarted.decodes.extract_if(.., |decode| is_cancelled(decode));
            gone.extend(decodes.map(|decode| (decode, None)));
        }
        let mut prompt_sessions = Vec::new();
        for unstarted in self.unstarted.extract_if(.., |it| it.decodes.is_empty()) {
            prompt_sessions.push((unstarted.job, unstarted.prompt_session));
        }
        for (job, prompt_session) in prompt_sessions {
            self.keep(job, prompt_session);
        }
        let has_any = !gone.is_empty();
        for (decode, session) in gone {
            if let Some(session) = session {
                self.keep_answer(&decode, session);
            }
            self.end_answer(decode, Finish::Cancelled);
        }
        has_any
    }

    /// Runs one step of ready answers, with at most `n_rows_max` rows. Returns whether anything
    /// changed.
    pub(crate) fn step(&mut self, n_rows_max: usize) -> bool {
        let has_dropped = self.drop_cancelled();
        let jobs = &self.jobs;
        let ready = self.running.extract_if(.., |answer| answer.is_ready(jobs));
        // Answers that are left over come first in the next step: those that took part move to the
        // end.
        let mut stepping: Vec<RunningAnswer<'e>> = ready.take(n_rows_max).collect();
        if stepping.is_empty() {
            return has_dropped;
        }
        share_rows(&mut stepping, n_rows_max);
        let outcomes = feed(&mut stepping, &mut self.output);
        self.context.shared.stats().n_steps += 1;
        match outcomes {
            Ok(outcomes) => {
                let output = std::mem::take(&mut self.output);
                for (feed_idx, (answer, outcome)) in stepping.into_iter().zip(outcomes).enumerate()
                {
                    let logits = outcome.map(|()| output.last_of(feed_idx));
                    self.take_logits(answer, logits);
                }
                self.output = output;
            }
            Err(error) => {
                for answer in stepping {
                    self.jobs.fail(answer.decode.job, error.clone(), self.context.shared);
                }
                self.is_stopped |= matches!(error, Error::Stopped(_));
            }
        }
        true
    }

    fn take_logits(&mut self, mut answer: RunningAnswer<'e>, logits: Result<Option<Logits<'_>>>) {
        if logits.is_ok() {
            answer.decode.tokens.drain(..answer.n_rows);
        }
        let chosen = match logits {
            Ok(Some(logits)) => self.choose(&mut answer.decode, &answer.session, logits),
            // Some of its tokens wait for the next step.
            Ok(None) => Ok(None),
            Err(Error::NoRoom { .. }) if self.evict_one() => Ok(None),
            Err(error @ Error::NoRoom { .. }) => {
                answer.shortage = Some(error);
                Ok(None)
            }
            Err(error) => Err(error),
        };
        self.take_up(answer, chosen);
    }

    /// Continues an answer or ends it.
    fn take_up(&mut self, answer: RunningAnswer<'e>, chosen: Result<Option<Finish>>) {
        match chosen {
            Ok(None) => self.running.push(answer),
            Ok(Some(finish)) => {
                self.keep_answer(&answer.decode, answer.session);
                self.end_answer(answer.decode, finish);
            }
            Err(error) => self.jobs.fail(answer.decode.job, error, self.context.shared),
        }
    }

    /// Whether an answer waits for memory.
    pub(crate) fn has_shortage(&self) -> bool {
        self.running.iter().any(|answer| answer.shortage.is_some())
    }

    /// Whether any answer can continue.
    pub(crate) fn is_any_ready(&self) -> bool {
        self.running.iter().any(|answer| answer.is_ready(&self.jobs))
    }

    /// Lets the answers that wait for memory try again.
    pub(crate) fn try_again(&mut self) {
        self.running.iter_mut().for_each(|answer| answer.shortage = None);
    }

    /// Fails the last of the answers that wait for memory, to leave its memory to the others.
    /// Called when nothing else can free memory.
    pub(crate) fn fail_one_short(&mut self) {
        let is_short = |answer: &RunningAnswer<'_>| answer.shortage.is_some();
        if let Some(idx) = self.running.iter().rposition(is_short) {
            let answer = self.running.remove(idx);
            let error = answer.shortage.expect("it is short");
            self.jobs.fail(answer.decode.job, error, self.context.shared);
            drop(answer.session);
            self.try_again();
        }
    }

    /// Ends all answers with an error.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        let running = std::mem::take(&mut self.running).into_iter().map(|answer| answer.decode);
        let unstarted = std::mem::take(&mut self.unstarted).into_iter().flat_map(|it| it.decodes);
        let parked = self.parked.extract(|_| true).into_iter().map(|(decode, _)| decode);
        for decode in running.chain(unstarted).chain(parked) {
            self.jobs.fail(decode.job, error.clone(), self.context.shared);
        }
    }

    fn end_answer(&mut self, decode: DecodeState<'e>, finish: Finish) {
        let DecodeState { job, answer_idx, mut generation, n_tokens, .. } = decode;
        let stopped = generation.stopped().map(str::to_owned);
        let rest = generation.rest();
        let ended = EndedAnswer { answer_idx, finish, stopped, rest, n_tokens };
        let at = (self.context.clock.now(), self.context.drive_bytes());
        self.jobs.end(job, ended, at, self.context.shared);
    }

    /// Publishes the number of running jobs and the memory of sessions. `is_alone`: no prompt was
    /// read since the last call.
    pub(crate) fn publish(&mut self, n_running: usize, is_alone: bool) {
        let Context { engine, shared, .. } = self.context;
        let (stream, tiers) = (engine.stream_stats(), engine.tier_stats());
        let (room, rows) = (engine.session_room(), engine.row_stats());
        let mut stats = shared.stats();
        stats.n_running = n_running;
        stats.n_parked = self.parked.len();
        stats.n_waiting = shared.n_waiting.load(Ordering::Relaxed);
        (stats.n_kept, stats.kept_bytes) =
            (self.session_cache.n_sessions(), self.session_cache.bytes());
        let dropped = self.session_cache.take_n_dropped();
        stats.n_dropped.iter_mut().zip(dropped).for_each(|(sum, n_more)| *sum += n_more);
        let wait = stream.as_ref().map_or(Duration::ZERO, |it| it.read_wait);
        let published = std::mem::replace(&mut self.published, (wait, stats.n_answer_tokens));
        let n_more = usize::try_from(stats.n_answer_tokens - published.1).unwrap_or(usize::MAX);
        if is_alone && n_more > 0 {
            self.session_cache.rates.add_answers(wait.saturating_sub(published.0), n_more);
            self.session_cache.rates.set_answer(stats.answer_tokens.mean());
        }
        (stats.stream, stats.tiers, stats.room, stats.rows) = (stream, tiers, room, rows);
    }
}

impl<'e> Context<'e> {
    /// Creates the generation that chooses the tokens of an answer.
    pub(crate) fn generation(&self, job: &Job, answer_idx: usize) -> Result<Generation<'e>> {
        let mut sampling = job.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(answer_idx as u64);
        let n_tokens_max = job.n_tokens_max.unwrap_or(usize::MAX);
        let generation = self.text.generation(sampling, n_tokens_max)?;
        let generation = generation.with_stops(job.stops.clone());
        Ok(match &job.masks {
            Some(masks) => generation.with_mask(masks.mask()),
            None => generation,
        })
    }

    /// Returns the bytes that were read from drives since the engine was opened.
    pub(crate) fn drive_bytes(&self) -> u64 {
        self.engine.stream_stats().map_or(0, |stats| stats.demand_bytes + stats.guess_bytes)
    }
}

impl<'e> RunningAnswer<'e> {
    fn new(decode: DecodeState<'e>, session: Session) -> Self {
        let n_best = decode.generation.n_best_needed();
        Self { decode, session, n_best, n_rows: 0, checkpoints: Vec::new(), shortage: None }
    }

    fn is_ready(&self, jobs: &RunningJobs) -> bool {
        self.shortage.is_none() && jobs.of(self.decode.job).is_ready()
    }

    fn feed(&mut self) -> Feed<'_> {
        let begin = self.session.tokens().len();
        self.checkpoints.clear();
        let ends = begin + 1..=begin + self.n_rows;
        self.checkpoints.extend(ends.filter(|end| end.is_multiple_of(CHECKPOINT_EVERY)));
        let is_last = self.n_rows == self.decode.tokens.len();
        let wanted = if is_last { Wanted::Last } else { Wanted::None };
        let feed = Feed::answer_run(&mut self.session, &self.decode.tokens[..self.n_rows]);
        feed.wanting(wanted).best(self.n_best).checkpoints(&self.checkpoints)
    }
}

/// Gives each answer one row, and the remaining rows to answers with more tokens.
fn share_rows(answers: &mut [RunningAnswer<'_>], n_rows_max: usize) {
    let mut n_left = n_rows_max.saturating_sub(answers.len());
    for answer in answers {
        let n_more = n_left.min(answer.decode.tokens.len() - 1);
        answer.n_rows = 1 + n_more;
        n_left -= n_more;
    }
}

/// Returns a token and its event.
fn token_event(answer_idx: usize, chosen: &Chosen<'_>) -> (TokenId, Event) {
    let token = scored(&chosen.choice);
    (token.token, Event::Token { answer_idx, token, text: chosen.text.to_owned() })
}

fn scored(choice: &Choice<'_>) -> Scored {
    Scored { token: choice.token, logprob: choice.logprob, top: choice.top.to_vec() }
}

/// Runs one step; returns the outcome for each answer.
fn feed(answers: &mut [RunningAnswer<'_>], output: &mut StepOutput) -> Result<Vec<Result<()>>> {
    let mut feeds: Vec<Feed<'_>> = answers.iter_mut().map(RunningAnswer::feed).collect();
    step(&mut feeds, output)?;
    Ok(feeds.iter_mut().map(Feed::outcome).collect())
}
