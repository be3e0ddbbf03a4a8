//! Which jobs run, and what the engine computes next.
//!
//! Prompts are read chunk by chunk, first the one that the engine has worked least for. Between the
//! layers of a chunk answers take steps, as much time as the prompts have had. An answer whose
//! client takes no tokens gives its place to others, and goes on when the client takes some again.
//! **Invariant:** no more sessions run than are allowed, and what a job's tokens are depends on no
//! other job.

mod sought;

use std::collections::VecDeque;
use std::time::Duration;

use moeflux::provider::spec::MixerSpec;
use moeflux::{Error, Logits, LongerSteps, Session, SessionRoom, StepOutput};

use crate::answers::{Answers, Context, copy_of};
use crate::chunk::{Balance, Chunk, ChunkEnd};
use crate::job::Job;
use crate::kept::{Kept, KeptLimits, n_shared};
use crate::parked::{ToRead, Unparked};
use crate::reading::{Reading, Terms};
use crate::scheduler::sought::Sought;
use crate::tracked::Submitted;

/// A job waits for a prompt that is being read if that saves it at least so many tokens.
const N_WAITED_FOR: usize = 64;

/// Where experts are in memory, short prompts share a step up to so many rows: longer ones gain
/// nothing from company, and would wait for each other.
const N_ROWS_SHARED: usize = 64;

/// Answers wait for a layer of a prompt's step: about so long, where experts are in memory.
const LAYER_TIME: Duration = Duration::from_millis(150);

/// Shorter steps of prompts would read all weights for a few rows.
const N_ROWS_BESIDE_ANSWERS: usize = 64;

/// Rows of answers in one step at most, while no prompt is read.
const N_ROWS_OF_ANSWERS: usize = 512;

/// What limits a scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) n_sessions: usize,
    pub(crate) context: usize,
    pub(crate) kept: KeptLimits,
}

/// Jobs over one engine.
pub(crate) struct Scheduler<'e> {
    context: Context<'e>,
    limits: Limits,
    is_streaming: bool,
    waiting: VecDeque<Submitted>,
    readings: Vec<Reading>,
    answers: Answers<'e>,
    balance: Balance,
    output: StepOutput,
    /// What a row of a prompt took in one layer, in the last step.
    row_time: Duration,
    /// Answers that had ended when those without memory last tried again.
    n_ended: u64,
    /// Answers that had ended, and those that were paused, when there was no memory for the next
    /// job: it waits for more.
    full_at: Option<(u64, usize)>,
    /// Why the files of the engine are not those that it was opened from, if they are not. No job
    /// begins then.
    outdated: Option<Error>,
    /// Whose turn it is where jobs and further answers of a job that runs wait for sessions.
    is_turn_of_jobs: bool,
}

impl<'e> Scheduler<'e> {
    pub(crate) fn new(context: Context<'e>, limits: Limits) -> Self {
        let engine = context.engine;
        Self {
            context,
            limits,
            is_streaming: engine.stream_stats().is_some(),
            waiting: VecDeque::new(),
            readings: Vec::new(),
            answers: Answers::new(context, Kept::new(limits.kept, engine)),
            balance: Balance::default(),
            output: StepOutput::default(),
            row_time: Duration::ZERO,
            n_ended: 0,
            full_at: None,
            outdated: None,
            is_turn_of_jobs: false,
        }
    }

    /// A job comes.
    pub(crate) fn push(&mut self, submitted: Submitted) {
        self.waiting.push_back(submitted);
    }

    /// Whether there is no job at all.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.answers.jobs.len() == 0
    }

    /// Does the next piece of work; whether there was one.
    pub(crate) fn turn(&mut self) -> bool {
        let has_dropped = self.drop_cancelled();
        self.note_ended();
        self.relieve();
        self.give_sessions();
        let is_alone = self.readings.is_empty();
        let has_worked = if is_alone {
            self.step_answers()
        } else {
            self.read_chunk();
            true
        };
        self.answers.give_to_experts();
        if self.answers.is_stopped {
            let problem = "the engine stopped in the middle of a step; it is opened again";
            self.fail_all(&Error::Stopped(problem.to_owned()));
        }
        self.answers.publish(self.answers.jobs.len(), is_alone);
        has_worked || has_dropped
    }

    fn step_answers(&mut self) -> bool {
        let n_rows = N_ROWS_OF_ANSWERS.min(self.context.engine.n_rows_max());
        self.answers.step(n_rows.max(1))
    }

    /// Whether the engine does not work any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.answers.is_stopped
    }

    /// The jobs that wait for an engine of the files as they are now, once none runs on this one.
    /// Answers whose clients take no tokens end.
    pub(crate) fn take_waiting(&mut self) -> Option<Vec<Submitted>> {
        let error = self.outdated.as_ref()?;
        if self.answers.n_running() > 0 || !self.readings.is_empty() {
            return None;
        }
        self.answers.fail_all(error);
        Some(self.waiting.drain(..).collect())
    }

    /// There is no engine from here on.
    pub(crate) fn close(self) {
        let mut stats = self.context.shared.stats();
        (stats.n_running, stats.n_kept, stats.n_parked, stats.stream) = (0, 0, 0, None);
        (stats.kept_bytes, stats.room) = (0, SessionRoom::default());
    }

    /// Ends everything with an error.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        for submitted in std::mem::take(&mut self.waiting) {
            submitted.drop_waiting(Some(copy_of(error)), self.context.shared);
        }
        for reading in std::mem::take(&mut self.readings) {
            self.fail_reading(&reading, copy_of(error));
        }
        self.answers.fail_all(error);
        self.answers.publish(0, false);
    }

    /// Forgets jobs that nobody wants any more; whether there were any. What was read of their
    /// prompts is kept: whoever asks again goes on from there.
    fn drop_cancelled(&mut self) -> bool {
        let shared = self.context.shared;
        let n_before = self.waiting.len();
        for submitted in std::mem::take(&mut self.waiting) {
            if submitted.flags.are_all_cancelled() {
                submitted.drop_waiting(None, shared);
            } else {
                self.waiting.push_back(submitted);
            }
        }
        let cancelled = self.readings.extract_if(.., |it| it.is_cancelled());
        let cancelled: Vec<Reading> = cancelled.collect();
        let has_any = self.waiting.len() < n_before || !cancelled.is_empty();
        if self.waiting.len() < n_before {
            // The next one that waits may be smaller.
            self.full_at = None;
        }
        for reading in cancelled {
            self.answers.keep(reading.job, reading.session);
            // An answer that was to go on ends with the others below.
            if reading.resumes.is_none() {
                self.answers.jobs.cancel_whole(reading.job, shared);
            }
        }
        self.answers.drop_cancelled() || has_any
    }

    /// What ended left memory: who waits for some tries again.
    fn note_ended(&mut self) {
        let n_ended = self.answers.jobs.n_ended();
        if n_ended != self.n_ended {
            self.n_ended = n_ended;
            self.answers.try_again();
        }
    }

    /// Makes room for answers that cannot go on without: sessions that do not run give way, then
    /// the newest prompt. Other answers end some time; where none of them can go on, one fails.
    fn relieve(&mut self) {
        if !self.answers.has_shortage() {
            return;
        }
        if self.answers.give_up_one() {
            self.answers.try_again();
        } else if self.put_back_newest() {
            self.answers.try_again();
            // Before the prompt asks for the same memory again.
            self.step_answers();
        } else if !self.answers.is_any_ready() {
            self.answers.fail_one_short();
        }
    }

    /// The newest prompt waits again; whether there was one.
    fn put_back_newest(&mut self) -> bool {
        let Some(reading) = self.readings.pop() else { return false };
        self.put_back(&reading);
        true
    }

    /// What was being read waits again.
    fn put_back(&mut self, reading: &Reading) {
        match reading.resumes {
            None => {
                let back = self.answers.jobs.take_back(reading.job, self.context.shared);
                self.waiting.push_front(back);
            }
            Some(answer_idx) => self.answers.put_back((reading.job, answer_idx)),
        }
    }

    /// What was being read cannot be.
    fn fail_reading(&mut self, reading: &Reading, error: Error) {
        match reading.resumes {
            None => self.answers.jobs.fail_whole(reading.job, error, self.context.shared),
            Some(answer_idx) => self.answers.fail_parked((reading.job, answer_idx), error),
        }
    }

    /// Gives answers to prompts that were read, and jobs, sessions as far as there are any. Jobs
    /// and further answers of a job take turns, so that many answers do not keep others out.
    fn give_sessions(&mut self) {
        while self.has_place() {
            let is_read = !self.readings.is_empty();
            if self.resume_one() || self.answers.start_first(is_read) {
                continue;
            }
            let is_job = self.is_turn_of_jobs && self.admit_one();
            let is_further = !is_job && self.answers.start_further(is_read);
            if !(is_job || is_further || self.admit_one()) {
                return;
            }
            self.is_turn_of_jobs = is_further;
        }
    }

    /// Whether there is a place, or one can be taken from an answer whose client takes no tokens.
    fn has_place(&mut self) -> bool {
        let n_taken = self.readings.len() + self.answers.n_running();
        n_taken < self.limits.n_sessions
            || (self.answers.wants_place() || !self.waiting.is_empty()) && self.answers.park_one()
    }

    /// A parked answer goes on; whether one does.
    fn resume_one(&mut self) -> bool {
        if self.is_full() {
            return false;
        }
        match self.answers.unpark() {
            None => false,
            Some(Unparked::Whole(whole)) => {
                let (line, session) = *whole;
                self.answers.place(line, session);
                true
            }
            Some(Unparked::ToRead(to_read)) => self.read_again(to_read),
        }
    }

    /// Reads the tokens of a parked answer; whether there was memory.
    fn read_again(&mut self, ToRead { of, tokens, n_best }: ToRead) -> bool {
        let Job { owner, parts_at, .. } = &self.answers.jobs.of(of.0).job;
        let (owner, parts_at) = (*owner, parts_at.clone());
        let sought = Sought { owner, tokens: &tokens, parts_at: &parts_at, is_scored: false };
        match self.session_for(sought) {
            Ok(session) => {
                let n_left = tokens.len() - session.tokens().len();
                let terms = self.terms(n_best, n_left);
                let tracked = self.answers.jobs.of(of.0);
                self.readings.push(Reading::again(of, tracked, (tokens, session), terms));
                true
            }
            Err(Error::NoRoom { .. }) if self.is_working_beside_parked() => {
                self.answers.put_back(of);
                self.full_at = Some(self.now());
                false
            }
            Err(error) => {
                self.answers.fail_parked(of, error);
                true
            }
        }
    }

    /// Whether what runs will give memory back some time.
    fn is_working_beside_parked(&self) -> bool {
        self.answers.n_running() > 0 || !self.readings.is_empty()
    }

    /// Whether there was no memory for the next one, and none came back since.
    fn is_full(&self) -> bool {
        self.full_at == Some(self.now()) && self.is_working()
    }

    /// What changes when memory may have come back.
    fn now(&self) -> (u64, usize) {
        (self.answers.jobs.n_ended(), self.answers.n_paused())
    }

    /// Whether there is a job that has memory.
    fn is_working(&self) -> bool {
        self.answers.jobs.len() > 0
    }

    /// Begins the next job; whether there was one, and memory for it.
    fn admit_one(&mut self) -> bool {
        if self.is_full() {
            return false;
        }
        let next = self.waiting.iter().position(|it| !self.is_held(&it.job));
        let Some(idx) = next.filter(|_| !self.is_outdated()) else { return false };
        let submitted = self.waiting.remove(idx).expect("its place was just found");
        match self.session_for(Sought::prompt_of(&submitted.job)) {
            Ok(session) => self.begin(submitted, session),
            // Others end some time, and then there is room.
            Err(Error::NoRoom { .. }) if self.is_working() => {
                self.waiting.push_front(submitted);
                self.full_at = Some(self.now());
                return false;
            }
            Err(error) => submitted.drop_waiting(Some(error), self.context.shared),
        }
        true
    }

    /// Whether the model's files have changed, which is found out before a job begins: experts that
    /// it reads would be those of another model.
    fn is_outdated(&mut self) -> bool {
        if self.outdated.is_none() {
            self.outdated = self.context.engine.check_files().err();
        }
        self.outdated.is_some()
    }

    /// Whether a job waits for a prompt that begins like its own: then it need not read as much.
    fn is_held(&self, job: &Job) -> bool {
        if job.scores_prompt {
            return false;
        }
        let sought = Sought::prompt_of(job);
        let n_tokens_now = self.find(sought).map_or(0, |(_, found)| found.n_tokens);
        let mut layers = self.context.engine.spec().layers.iter();
        let is_recurrent = layers.any(|layer| matches!(layer.mixer, MixerSpec::GatedDelta(_)));
        let readings = self.readings.iter();
        let mut own = readings.filter(|it| self.answers.jobs.owner(it.job) == job.owner);
        own.any(|reading| {
            let n_shared = n_shared(&reading.prompt, &job.prompt).min(job.prompt.len() - 1);
            let n_tokens_then = reading.n_forkable(n_shared, is_recurrent);
            n_tokens_then >= n_tokens_now + N_WAITED_FOR && reading.n_done() < n_tokens_then
        })
    }

    fn begin(&mut self, submitted: Submitted, session: Session) {
        let now = self.context.clock.now();
        let Job { owner, prompt, scores_prompt, .. } = &submitted.job;
        let n_cached = session.tokens().len();
        let kept = &mut self.answers.kept;
        let missed = if *scores_prompt { None } else { kept.missed(*owner, prompt, n_cached) };
        let terms = self.terms(self.n_best(&submitted.job), prompt.len() - n_cached);
        let at = (now, self.context.drive_bytes());
        let shared = self.context.shared;
        let id = self.answers.jobs.begin(submitted, (n_cached, missed), at, shared);
        self.readings.push(Reading::new(id, self.answers.jobs.of(id), session, terms));
    }

    /// How tokens are read of which so many are left.
    fn terms(&self, n_best: Option<usize>, n_left: usize) -> Terms {
        Terms {
            n_best,
            longer: self.longer_steps(n_left),
            begun_at: self.context.clock.now(),
            // As the least of those that are read: else newer prompts would always come first.
            service: self.readings.iter().map(|it| it.service).min().unwrap_or_default(),
        }
    }

    /// How many of the best logits are enough for the first tokens of a job's answers; `None`: all
    /// are wanted. Scores need those of other tokens, too.
    fn n_best(&self, job: &Job) -> Option<usize> {
        // What cannot be begun fails where its answers begin.
        let generation = self.context.generation(job, 0).ok();
        generation.filter(|_| !job.scores_prompt).and_then(|it| it.n_best_needed())
    }

    /// Where experts are streamed, a long prompt reads them less often in longer steps.
    fn longer_steps(&self, n_tokens: usize) -> Option<LongerSteps> {
        if !self.is_streaming || n_tokens <= self.context.engine.n_rows_max() {
            return None;
        }
        // Without them the prompt is read as well.
        self.context.engine.longer_steps(n_tokens).ok().flatten()
    }

    /// Rows of the next step of prompts.
    fn n_rows_max(&self) -> usize {
        let n_rows_max = self.context.engine.n_rows_now();
        let is_beside = self.answers.n_running() > 0;
        // Where experts are streamed, a layer takes as long as reading them.
        if !is_beside || self.is_streaming || self.row_time.is_zero() {
            return n_rows_max;
        }
        let n_rows = LAYER_TIME.as_nanos() / self.row_time.as_nanos();
        let n_rows = usize::try_from(n_rows).unwrap_or(usize::MAX);
        n_rows.max(N_ROWS_BESIDE_ANSWERS).min(n_rows_max)
    }

    /// Rows of each prompt in the next step.
    fn plan(&self) -> Vec<usize> {
        let n_rows_max = self.n_rows_max();
        let n_rows_shared = if self.is_streaming { n_rows_max } else { N_ROWS_SHARED };
        let mut order: Vec<usize> = (0..self.readings.len()).collect();
        order.sort_by_key(|idx| self.readings[*idx].service);
        let mut n_rows = vec![0; self.readings.len()];
        let mut n_sum = 0;
        for idx in order {
            let reading = &self.readings[idx];
            let n_room = if n_sum == 0 { n_rows_max } else { n_rows_shared.min(n_rows_max) };
            let n_free = n_room.saturating_sub(n_sum);
            let fits = n_sum == 0 || reading.n_left() <= n_free || self.is_streaming && n_free > 0;
            if fits {
                n_rows[idx] = reading.n_rows(n_free);
                n_sum += n_rows[idx];
            }
        }
        n_rows
    }

    /// One step of prompts, and answers between its layers.
    fn read_chunk(&mut self) {
        let n_rows = self.plan();
        let is_alone = self.waiting.is_empty() && self.readings.len() == 1;
        let Self { readings, answers, balance, output, context, .. } = self;
        let mut chosen: Vec<(&mut Reading, usize)> = Vec::new();
        chosen.extend(readings.iter_mut().zip(n_rows.iter().copied()).filter(|(_, n)| *n > 0));
        let chunk = Chunk { context: *context, is_alone, balance, answers, output };
        let ended = chunk.run(&mut chosen);
        let chosen: Vec<usize> = (0..n_rows.len()).filter(|idx| n_rows[*idx] > 0).collect();
        match ended {
            Ok(ended) => self.take_up(&chosen, &n_rows, ended),
            Err(error) => {
                for idx in chosen.into_iter().rev() {
                    let reading = self.readings.remove(idx);
                    self.fail_reading(&reading, copy_of(&error));
                }
                self.answers.is_stopped |= matches!(error, Error::Stopped(_));
            }
        }
    }

    /// What became of the prompts of a step.
    fn take_up(&mut self, chosen: &[usize], n_rows: &[usize], ended: ChunkEnd) {
        let n_rows_in_all: usize = n_rows.iter().sum();
        let n_parts = n_rows_in_all * self.context.engine.spec().layers.len();
        self.row_time = ended.spent / u32::try_from(n_parts.max(1)).unwrap_or(u32::MAX);
        self.answers.kept.rates.add_prompt(ended.spent, n_rows_in_all);
        let mut is_short = false;
        let mut over = Vec::new();
        let outcomes = ended.outcomes.into_iter().zip(ended.scores);
        for (feed_idx, (idx, (outcome, scores))) in chosen.iter().zip(outcomes).enumerate() {
            let reading = &mut self.readings[*idx];
            let share = u32::try_from(n_rows_in_all / n_rows[*idx]).unwrap_or(u32::MAX);
            reading.service += ended.spent / share.max(1);
            if let (Ok(()), Some(scores)) = (&outcome, scores) {
                self.answers.jobs.scored(reading.job, scores.into_list());
            }
            match outcome {
                Ok(()) if reading.n_left() == 0 => over.push((*idx, feed_idx, Ok(()))),
                Ok(()) | Err(Error::Cancelled) => {}
                Err(Error::NoRoom { .. }) if reading.drop_marks() => {}
                Err(error @ Error::NoRoom { .. }) => {
                    is_short = true;
                    over.push((*idx, feed_idx, Err(error)));
                }
                Err(error) => over.push((*idx, feed_idx, Err(error))),
            }
        }
        if is_short && self.answers.give_up_one() {
            over.retain(|(.., outcome)| !matches!(outcome, Err(Error::NoRoom { .. })));
        }
        let output = std::mem::take(&mut self.output);
        let mut has_made_room = false;
        for (idx, feed_idx, outcome) in over.into_iter().rev() {
            if has_made_room && matches!(outcome, Err(Error::NoRoom { .. })) {
                // It tries again with what the other one gave up.
                continue;
            }
            let reading = self.readings.remove(idx);
            let is_alone = self.readings.is_empty() && self.answers.n_running() == 0;
            match outcome {
                Ok(()) => {
                    let logits: Option<Logits<'_>> = output.last_of(feed_idx);
                    let logits = logits.expect("the last row's logits are wanted");
                    let Reading { job, resumes, session, .. } = reading;
                    match resumes {
                        None => self.answers.begin(job, session, logits),
                        Some(answer_idx) => self.answers.go_on((job, answer_idx), session, logits),
                    }
                }
                Err(Error::NoRoom { .. }) if !is_alone => {
                    has_made_room = true;
                    self.put_back(&reading);
                }
                Err(error) => self.fail_reading(&reading, error),
            }
        }
        self.output = output;
    }
}
