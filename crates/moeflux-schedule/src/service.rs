//! The thread that owns the engine, and its handles.
//!
//! **Invariant:** only [`Service::wait_until_open`] and stopping or dropping the service wait for
//! the thread. The thread sleeps while there is no work.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use moeflux::clock::Clock;
use moeflux::{Engine, Error, ModelText, Result, STACK_BYTES};

use crate::answers::Context;
use crate::job::{Job, Progress, Refusal, Sink};
use crate::options::Options;
use crate::saved::{SavedConversations, SavedSessions};
use crate::scheduler::{SavableId, Scheduler, SchedulerLimits};
use crate::shared::{ExpertsReply, ExpertsReport, JobFlags, SharedState, State};
use crate::stats::Stats;
use crate::tracked::{SinkGuard, SubmittedJob};

/// Opens the engine: at the start, and again after it was unloaded.
pub type Open = dyn FnMut() -> Result<Engine> + Send;

/// Lower bound on the time after which refused clients are told to retry.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// An engine that answers jobs on its own thread. Dropping it ends all jobs.
pub struct Service {
    commands: Sender<ServiceCommand>,
    shared: Arc<SharedState>,
    text: Arc<ModelText>,
    clock: Arc<dyn Clock>,
    options: Options,
    opened: Mutex<Option<Receiver<Result<()>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An accepted job. Dropping the ticket cancels the job.
#[derive(Debug)]
#[must_use = "a job whose ticket is dropped is given up"]
pub struct Ticket {
    flags: Arc<JobFlags>,
    commands: Sender<ServiceCommand>,
}

/// A message to the service's thread.
enum ServiceCommand {
    Submit(Box<SubmittedJob>),
    /// Loads the model without a job.
    Load,
    /// Wakes the thread, because state that it reads has changed.
    Look,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Service");
        shown.field("state", &self.state()).field("options", &self.options).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServiceCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Submit(_) => "Submit",
            Self::Load => "Load",
            Self::Look => "Look",
        })
    }
}

impl Service {
    /// Starts to open the engine; jobs may be submitted at once. `text` must belong to the model.
    ///
    /// # Errors
    ///
    /// [`Error::Machine`] if the thread cannot be created.
    pub fn start(open: Box<Open>, text: Arc<ModelText>, options: Options) -> Result<Self> {
        let clock = Arc::clone(&options.clock);
        let (commands, received) = channel();
        let (report_opened, opened) = channel();
        let shared = Arc::new(SharedState::new());
        let thread = ServiceThread {
            open,
            text: Arc::clone(&text),
            options: options.clone(),
            clock: Arc::clone(&clock),
            shared: Arc::clone(&shared),
            received,
            commands: commands.clone(),
            opened: Some(report_opened),
            fingerprint: None,
        };
        // The thread computes its part of every step, so it needs the engine's stack size.
        let builder = std::thread::Builder::new().name("moeflux-schedule".into());
        let spawned = builder.stack_size(STACK_BYTES).spawn(|| thread.run());
        let thread = spawned.map_err(|error| {
            Error::Machine(format!("cannot start the scheduler's thread: {error}"))
        })?;
        let (opened, thread) = (Mutex::new(Some(opened)), Mutex::new(Some(thread)));
        Ok(Self { commands, shared, text, clock, options, opened, thread })
    }

    /// Starts a service over a loaded engine. Once the model's files have changed, jobs fail.
    ///
    /// # Errors
    ///
    /// As [`Service::start`].
    pub fn of_engine(engine: Engine, text: Arc<ModelText>, options: Options) -> Result<Self> {
        let mut engine = Some(engine);
        let problem = "the engine was closed: load the model again";
        let open = move || engine.take().ok_or_else(|| Error::Stopped(problem.to_owned()));
        Self::start(Box::new(open), text, Options { unload_after: None, ..options })
    }

    /// Waits until the engine was opened for the first time.
    ///
    /// # Errors
    ///
    /// The error of opening it.
    pub fn wait_until_open(&self) -> Result<()> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        match opened.map(|it| it.recv()) {
            Some(Ok(opened)) => opened,
            _ => Ok(()),
        }
    }

    /// Submits a job. Does not block.
    ///
    /// # Errors
    ///
    /// The reason for which the job is refused.
    pub fn submit(&self, job: Job, sink: Box<dyn Sink>) -> std::result::Result<Ticket, Refusal> {
        let taken = self.take(&job);
        if let Err(refusal) = taken {
            self.shared.stats().n_refused += 1;
            return Err(refusal);
        }
        let flags = Arc::new(JobFlags::new(job.n_answers, job.prompt.len()));
        let ticket = Ticket { flags: Arc::clone(&flags), commands: self.commands.clone() };
        let at = self.clock.now();
        let sink = SinkGuard(sink);
        let submitted = SubmittedJob::new(job, sink, flags, at);
        self.shared.n_waiting.fetch_add(1, Ordering::Relaxed);
        match self.commands.send(ServiceCommand::Submit(Box::new(submitted))) {
            Ok(()) => Ok(ticket),
            // The thread has panicked.
            Err(_) => {
                self.shared.n_waiting.fetch_sub(1, Ordering::Relaxed);
                self.shared.n_open.fetch_sub(1, Ordering::Relaxed);
                Err(Refusal::Closed)
            }
        }
    }

    /// Counts a job if it can be accepted.
    fn take(&self, job: &Job) -> std::result::Result<(), Refusal> {
        if self.shared.is_closed.load(Ordering::Relaxed) {
            return Err(Refusal::Closed);
        }
        job.check(&self.text, self.options.context)?;
        let n_open_max = self.options.n_sessions + self.options.n_queue;
        let more = |n_open: usize| (n_open < n_open_max).then_some(n_open + 1);
        let n_open = &self.shared.n_open;
        if n_open.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).is_err() {
            return Err(self.queue_full());
        }
        // It is counted first: after a pause, a caller that finds no open job knows that none will
        // come.
        if self.shared.is_paused.load(Ordering::SeqCst) {
            n_open.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Paused);
        }
        Ok(())
    }

    /// Estimates when there is room again, from the mean duration of jobs so far.
    fn queue_full(&self) -> Refusal {
        let n_waiting = self.shared.n_waiting.load(Ordering::Relaxed);
        let stats = self.shared.stats();
        let n_ended = u32::try_from(stats.whole.count()).unwrap_or(u32::MAX).max(1);
        let seconds = stats.whole.sum() / f64::from(n_ended);
        let each = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let n_sessions = u32::try_from(self.options.n_sessions).unwrap_or(u32::MAX).max(1);
        let retry_after = (each / n_sessions).max(RETRY_AFTER_MIN);
        Refusal::QueueFull { n_waiting, retry_after }
    }

    /// Wakes the scheduler after a sink became ready again.
    pub fn wake(&self) {
        drop(self.commands.send(ServiceCommand::Look));
    }

    /// Returns the state of the engine.
    #[must_use]
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.stats().clone();
        stats.n_waiting = self.shared.n_waiting.load(Ordering::Relaxed);
        stats.saved = self.options.saved.as_ref().map(|saved| saved.store.counts());
        stats
    }

    /// Returns the counters so far, for a caller that reads them again and again: those of reads
    /// and of a GPU's memory then change during a long step, too. Does not wake the thread.
    #[must_use]
    pub fn watch_stats(&self) -> Stats {
        self.shared.set_watched();
        self.stats()
    }

    /// Asks for the uses of experts and the times of the last step of an answer, which the thread
    /// reads between two steps or layers. The report has no layers where experts are not counted,
    /// and none while no model is in memory; no model is loaded for it. If too many callers wait,
    /// the reply of the oldest is dropped.
    pub fn ask_experts(&self, reply: ExpertsReply) {
        if self.state() != State::Ready {
            reply(Arc::default());
            return;
        }
        self.shared.ask_experts(reply);
        self.wake();
    }

    /// Returns the number of prompts and answers that are computed at a time.
    #[must_use]
    pub fn n_sessions(&self) -> usize {
        self.options.n_sessions
    }

    /// Returns the conversations on a drive, if there are any.
    #[must_use]
    pub fn saved(&self) -> Option<&SavedConversations> {
        self.options.saved.as_ref()
    }

    /// Returns the upper bound on the tokens of a prompt together with an answer.
    #[must_use]
    pub fn context(&self) -> usize {
        self.options.context
    }

    /// Refuses all further jobs.
    pub fn close(&self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
    }

    /// Refuses jobs until [`Service::resume`]. Jobs that were accepted are not affected.
    pub fn pause(&self) {
        self.shared.is_paused.store(true, Ordering::SeqCst);
    }

    /// Accepts jobs again after [`Service::pause`].
    pub fn resume(&self) {
        self.shared.is_paused.store(false, Ordering::SeqCst);
    }

    /// Frees the memory of the engine and of sessions as soon as no job waits or runs. The next
    /// job, or [`Service::load`], loads the model again. Returns at once.
    pub fn unload(&self) {
        self.shared.is_unload_wanted.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Loads the model if it is not in memory, as the next job would. Returns at once.
    pub fn load(&self) {
        drop(self.commands.send(ServiceCommand::Load));
    }

    /// Returns the number of jobs that wait or run.
    #[must_use]
    pub fn n_open(&self) -> usize {
        self.shared.n_open.load(Ordering::SeqCst)
    }

    /// Whether no job waits or runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.n_open() == 0
    }

    /// Ends all jobs, frees the memory of the engine and of sessions, and refuses further jobs.
    /// Waits for the current step.
    pub fn stop(&self) {
        self.close();
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        self.cancel_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread was reported when it happened.
            drop(thread.join());
            self.shared.set_state(State::Closed);
        }
    }

    /// Ends all jobs with [`Error::Cancelled`].
    pub fn cancel_all(&self) {
        self.shared.is_cancelled.store(true, Ordering::Relaxed);
        self.wake();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Ticket {
    /// Returns the progress of reading the prompt.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.flags.progress()
    }

    /// Cancels one of the answers.
    pub fn cancel_one(&self, answer_idx: usize) {
        self.flags.cancel_one(answer_idx);
        drop(self.commands.send(ServiceCommand::Look));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.flags.cancel();
        drop(self.commands.send(ServiceCommand::Look));
    }
}

/// The state of the service's thread.
struct ServiceThread {
    open: Box<Open>,
    text: Arc<ModelText>,
    options: Options,
    clock: Arc<dyn Clock>,
    shared: Arc<SharedState>,
    received: Receiver<ServiceCommand>,
    /// Wakes the thread itself.
    commands: Sender<ServiceCommand>,
    /// Reports the first opening of the engine to [`Service::wait_until_open`].
    opened: Option<Sender<Result<()>>>,
    /// The fingerprint of the model that was opened first.
    fingerprint: Option<u64>,
}

/// Marks the service as broken if the thread panics, so that no caller waits for it.
struct PanicGuard(Arc<SharedState>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set_state(State::Broken);
            self.0.is_closed.store(true, Ordering::Relaxed);
        }
    }
}

/// Why an engine was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseReason {
    Idle,
    /// The model's files changed after it was opened.
    Outdated,
    Failed,
    Stopped,
}

impl ServiceThread {
    fn run(mut self) {
        let _guard = PanicGuard(Arc::clone(&self.shared));
        let mut first = Vec::new();
        loop {
            self.shared.set_state(State::Loading);
            match (self.open)().and_then(|engine| self.checked(engine)) {
                Ok(engine) => {
                    self.shared.stats().count_load(engine.memory());
                    self.shared.set_state(State::Ready);
                    self.report_opened(Ok(()));
                    let closed;
                    (closed, first) = self.serve(&engine, first);
                    tracing::info!(?closed, "the engine is closed");
                    drop(engine);
                    self.shared.stats().count_unload();
                    if closed == CloseReason::Stopped {
                        return;
                    }
                    self.shared.set_state(State::Unloaded);
                    self.shared.answer_experts(ExpertsReport::default);
                }
                Err(error) => {
                    // The first time, the error goes to the caller that opened the service.
                    if self.opened.is_none() {
                        tracing::error!(%error, "the model cannot be opened");
                    }
                    self.shared.set_state(State::Broken);
                    self.shared.answer_experts(ExpertsReport::default);
                    self.refuse(std::mem::take(&mut first), &error);
                    // There is nothing to free. The command to look may be among the dropped ones,
                    // and the next load must not end at once.
                    self.shared.is_unload_wanted.store(false, Ordering::Relaxed);
                    self.report_opened(Err(error));
                }
            }
            if !first.is_empty() {
                continue;
            }
            match self.next_jobs() {
                Some(jobs) => first = jobs,
                None => return,
            }
        }
    }

    /// Refuses a model that differs from the one opened first: prompts are tokens of its tokenizer,
    /// and kept sessions are its own.
    fn checked(&mut self, engine: Engine) -> Result<Engine> {
        engine.check_text(&self.text)?;
        let found = engine.fingerprint();
        if *self.fingerprint.get_or_insert(found) == found {
            return Ok(engine);
        }
        let problem = "contains a different model from the one opened at the start: restart the \
                       program to use the new model";
        Err(Error::malformed(engine.dir(), problem))
    }

    fn report_opened(&mut self, opened: Result<()>) {
        if let Some(waiting) = self.opened.take() {
            // No caller has to wait for it.
            drop(waiting.send(opened));
        }
    }

    /// Refuses the jobs that arrived while opening the engine failed.
    fn refuse(&self, first: Vec<SubmittedJob>, error: &Error) {
        let mut jobs = first;
        while let Ok(command) = self.received.try_recv() {
            if let ServiceCommand::Submit(submitted) = command {
                jobs.push(*submitted);
            }
        }
        jobs.into_iter().for_each(|it| it.drop_waiting(Some(error.clone()), &self.shared));
    }

    /// Waits for the job that reopens the engine, or for [`Service::load`]. Returns `None` at the
    /// end of the service.
    fn next_jobs(&self) -> Option<Vec<SubmittedJob>> {
        while !self.shared.is_stopped.load(Ordering::Relaxed) {
            match self.received.recv() {
                Ok(ServiceCommand::Submit(submitted)) if submitted.flags.are_all_cancelled() => {
                    submitted.drop_waiting(None, &self.shared);
                }
                Ok(ServiceCommand::Submit(submitted)) => return Some(vec![*submitted]),
                Ok(ServiceCommand::Load) => return Some(Vec::new()),
                Ok(ServiceCommand::Look) => {
                    // There is nothing to free.
                    self.shared.is_unload_wanted.store(false, Ordering::Relaxed);
                    self.shared.answer_experts(ExpertsReport::default);
                }
                Err(_) => return None,
            }
        }
        None
    }

    /// Runs jobs until the engine is closed. Returns the reason, and the jobs that are left for the
    /// next engine.
    fn serve(&self, engine: &Engine, first: Vec<SubmittedJob>) -> (CloseReason, Vec<SubmittedJob>) {
        let (text, shared, clock) = (&*self.text, &*self.shared, &*self.clock);
        let context = Context { engine, text, shared, clock };
        let Options { n_sessions, context: n_context, kept, .. } = self.options;
        let saved = self.saved_sessions(engine);
        let limits = SchedulerLimits { n_sessions: n_sessions.max(1), context: n_context, kept };
        let mut scheduler = Scheduler::new(context, limits, saved);
        first.into_iter().for_each(|submitted| scheduler.push(submitted));
        let (mut has_worked, mut idle_since) = (true, None);
        loop {
            let since = scheduler.is_idle().then(|| *idle_since.get_or_insert_with(|| clock.now()));
            let next = if has_worked { self.poll() } else { self.wait(since) };
            if let Some(closed) = self.receive(&mut scheduler, next) {
                scheduler.stop_all(&Error::Cancelled);
                scheduler.close();
                return (closed, Vec::new());
            }
            if !scheduler.is_idle() {
                idle_since = None;
            } else if !scheduler.is_saving()
                && shared.is_unload_wanted.swap(false, Ordering::Relaxed)
            {
                scheduler.close();
                return (CloseReason::Idle, Vec::new());
            }
            if shared.is_cancelled.swap(false, Ordering::Relaxed) {
                scheduler.fail_all(&Error::Cancelled);
            }
            shared.answer_experts(|| ExpertsReport::of(engine));
            has_worked = scheduler.turn(&mut || self.next_submitted());
            if scheduler.is_stopped() {
                scheduler.close();
                return (CloseReason::Failed, Vec::new());
            }
            if let Some(waiting) = scheduler.take_waiting() {
                scheduler.close();
                return (CloseReason::Outdated, waiting);
            }
        }
    }

    /// Opens the conversations on a drive. Without a thread for them, there are none.
    fn saved_sessions<'e>(&self, engine: &'e Engine) -> Option<SavedSessions<'e, SavableId>> {
        let commands = self.commands.clone();
        let wake = Box::new(move || drop(commands.send(ServiceCommand::Look)));
        let opened = SavedSessions::new(engine, self.options.saved.clone()?, wake);
        opened.inspect_err(|error| tracing::warn!(%error, "conversations are not saved")).ok()
    }

    /// Takes all pending commands, of which `next` is the first.
    fn receive(
        &self,
        scheduler: &mut Scheduler<'_>,
        mut next: std::result::Result<ServiceCommand, Option<CloseReason>>,
    ) -> Option<CloseReason> {
        loop {
            if self.shared.is_stopped.load(Ordering::Relaxed) {
                return Some(CloseReason::Stopped);
            }
            match next {
                Ok(ServiceCommand::Submit(submitted)) => scheduler.push(*submitted),
                Ok(ServiceCommand::Load | ServiceCommand::Look) => {}
                Err(closed) => return closed,
            }
            next = self.poll();
        }
    }

    /// Returns a job that arrived during a step.
    fn next_submitted(&self) -> Option<SubmittedJob> {
        loop {
            match self.received.try_recv() {
                Ok(ServiceCommand::Submit(submitted)) => return Some(*submitted),
                Ok(ServiceCommand::Load | ServiceCommand::Look) => {}
                Err(_) => return None,
            }
        }
    }

    /// Returns a pending command.
    fn poll(&self) -> std::result::Result<ServiceCommand, Option<CloseReason>> {
        self.received.try_recv().map_err(|error| match error {
            TryRecvError::Empty => None,
            TryRecvError::Disconnected => Some(CloseReason::Stopped),
        })
    }

    /// Waits for the next command. Commands that are no jobs do not prolong the time without a job.
    fn wait(
        &self,
        idle_since: Option<Duration>,
    ) -> std::result::Result<ServiceCommand, Option<CloseReason>> {
        match self.options.unload_after.zip(idle_since) {
            Some((time, since)) => self
                .received
                .recv_timeout(since.saturating_add(time).saturating_sub(self.clock.now()))
                .map_err(|error| match error {
                    RecvTimeoutError::Timeout => Some(CloseReason::Idle),
                    RecvTimeoutError::Disconnected => Some(CloseReason::Stopped),
                }),
            None => self.received.recv().map_err(|_| Some(CloseReason::Stopped)),
        }
    }
}
