//! The task that a client has started, with its progress and its end.
//!
//! **Invariant:** one task runs at a time, and none is left running if its thread panics.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use moeflux_server::http::{
    ManageRefusal, ManageResult, RefusalReason, TaskKind, TaskState, TaskStatus,
};

use crate::system::clock;

/// The time over which a rate is measured.
const RATE_TIME: Duration = Duration::from_secs(5);
/// Time between two points of a rate.
const RATE_STEP: Duration = Duration::from_millis(200);

/// The tasks of a server, of which the last is kept.
#[derive(Debug, Default)]
pub(super) struct Tasks(Mutex<TasksState>);

#[derive(Debug, Default)]
struct TasksState {
    last: Option<TaskRecord>,
    thread: Option<JoinHandle<()>>,
    n_begun: u64,
}

/// Ends the wait of a task.
type CancelHook = Box<dyn Fn() + Send>;

/// A task that runs or has ended.
struct TaskRecord {
    status: TaskStatus,
    began: Instant,
    is_cancelled: bool,
    on_cancel: Option<CancelHook>,
    /// Bytes that were done at some times, the latest last.
    points: VecDeque<(Instant, u64)>,
}

impl fmt::Debug for TaskRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskRecord").field("status", &self.status).finish_non_exhaustive()
    }
}

/// The running task, for its own thread. Dropping it ends the task as failed.
#[derive(Debug)]
pub(super) struct RunningTask {
    tasks: Arc<Tasks>,
    id: u64,
}

/// How a task has ended.
#[derive(Debug)]
pub(super) enum TaskEnd {
    Done(String),
    Failed(String),
    Cancelled(String),
}

impl Tasks {
    /// Starts a task on its own thread.
    pub(super) fn begin(
        self: &Arc<Self>,
        kind: TaskKind,
        (id, name): (&str, &str),
        work: impl FnOnce(&Arc<RunningTask>) -> TaskEnd + Send + 'static,
    ) -> ManageResult<TaskStatus> {
        let mut state = self.state();
        if let Some(running) = state.last.as_ref().filter(|it| it.is_running()) {
            let message =
                format!("{} is being worked on: wait, or cancel that", running.status.name);
            return Err(ManageRefusal { reason: RefusalReason::Busy, message });
        }
        state.n_begun += 1;
        let task_id = state.n_begun;
        let running = Arc::new(RunningTask { tasks: Arc::clone(self), id: task_id });
        let builder = std::thread::Builder::new().name("moeflux-models".to_owned());
        let spawned = builder.spawn(move || {
            let end = work(&running);
            running.end(end);
        });
        let thread = spawned.map_err(|error| ManageRefusal {
            reason: RefusalReason::Invalid,
            message: format!("cannot start a thread for this: {error}"),
        })?;
        let status = TaskStatus {
            id: task_id,
            kind,
            model: id.to_owned(),
            name: name.to_owned(),
            state: TaskState::Running,
            phase: "beginning",
            bytes: None,
            bytes_per_s: None,
            time: Duration::ZERO,
            n_answers: None,
            message: None,
        };
        state.last = Some(TaskRecord {
            status: status.clone(),
            began: clock::instant(),
            is_cancelled: false,
            on_cancel: None,
            points: VecDeque::new(),
        });
        state.thread = Some(thread);
        Ok(status)
    }

    /// Returns the last task.
    pub(super) fn last(&self) -> Option<TaskStatus> {
        self.state().last.as_ref().map(TaskRecord::current)
    }

    /// Tells the running task to end.
    pub(super) fn cancel(&self) -> ManageResult<TaskStatus> {
        let mut state = self.state();
        let Some(running) = state.last.as_mut().filter(|it| it.is_running()) else {
            let message = "nothing is being done that could be cancelled".to_owned();
            return Err(ManageRefusal { reason: RefusalReason::Idle, message });
        };
        running.is_cancelled = true;
        if let Some(on_cancel) = &running.on_cancel {
            on_cancel();
        }
        Ok(running.current())
    }

    /// Ends the running task, if there is one, and waits for it.
    pub(super) fn end(&self) {
        drop(self.cancel());
        let thread = self.state().thread.take();
        if let Some(thread) = thread {
            // A panic was reported when it happened.
            drop(thread.join());
        }
    }

    fn state(&self) -> MutexGuard<'_, TasksState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskRecord {
    fn is_running(&self) -> bool {
        self.status.state == TaskState::Running
    }

    fn current(&self) -> TaskStatus {
        let mut status = self.status.clone();
        if self.is_running() {
            status.time = self.began.elapsed();
        }
        status
    }

    fn set_bytes(&mut self, done_bytes: u64, total_bytes: u64) {
        self.status.bytes = Some((done_bytes, total_bytes));
        let now = clock::instant();
        if self.points.back().is_some_and(|(at, _)| now.duration_since(*at) < RATE_STEP) {
            return;
        }
        self.points.push_back((now, done_bytes));
        while self.points.len() > 2 && now.duration_since(self.points[0].0) > RATE_TIME {
            self.points.pop_front();
        }
        let (at, before_bytes) = self.points[0];
        let seconds = now.duration_since(at).as_secs_f64();
        let n_bytes = done_bytes.saturating_sub(before_bytes);
        self.status.bytes_per_s =
            (seconds > 0.0).then(|| crate::model::needs::float(n_bytes) / seconds);
    }
}

impl RunningTask {
    /// Begins a part of the task.
    pub(super) fn set_phase(&self, phase: &'static str) {
        self.change(|record| {
            record.status.phase = phase;
            (record.status.bytes, record.status.bytes_per_s) = (None, None);
            record.status.n_answers = None;
            record.points.clear();
        });
    }

    /// Reports bytes of the part.
    pub(super) fn set_bytes(&self, done_bytes: u64, total_bytes: u64) {
        self.change(|record| record.set_bytes(done_bytes, total_bytes));
    }

    /// Reports answers that the task waits for.
    pub(super) fn set_answers(&self, n_answers: usize) {
        self.change(|record| record.status.n_answers = Some(n_answers));
    }

    /// Calls a hook when the task is cancelled; at once if it is already.
    pub(super) fn on_cancel(&self, hook: impl Fn() + Send + 'static) {
        self.change(|record| {
            if record.is_cancelled {
                hook();
            }
            record.on_cancel = Some(Box::new(hook));
        });
    }

    fn change(&self, change: impl FnOnce(&mut TaskRecord)) {
        let mut state = self.tasks.state();
        if let Some(record) = state.last.as_mut().filter(|it| it.status.id == self.id) {
            change(record);
        }
    }

    fn end(&self, end: TaskEnd) {
        let (state, message) = match end {
            TaskEnd::Done(message) => (TaskState::Done, message),
            TaskEnd::Failed(message) => (TaskState::Failed, message),
            TaskEnd::Cancelled(message) => (TaskState::Cancelled, message),
        };
        self.change(|record| {
            record.status.time = record.began.elapsed();
            record.status.n_answers = None;
            (record.status.state, record.status.message) = (state, Some(message));
            record.on_cancel = None;
        });
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end(TaskEnd::Failed("internal error: see the server's log".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Waits until the last task has ended.
    fn ended(tasks: &Tasks) -> TaskStatus {
        loop {
            let last = tasks.last().unwrap();
            if last.state != TaskState::Running {
                return last;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    #[test]
    fn one_task_runs_at_a_time_and_can_be_cancelled() {
        let tasks = Arc::new(Tasks::default());
        assert_eq!(tasks.cancel().unwrap_err().reason, RefusalReason::Idle);
        let (stop, stopped) = channel();
        let begun = tasks.begin(TaskKind::Pull, ("a/b", "B"), move |task| {
            task.set_phase("downloading");
            task.set_bytes(1, 3);
            task.on_cancel(move || stop.send(()).unwrap());
            stopped.recv().unwrap();
            TaskEnd::Cancelled("kept".to_owned())
        });
        assert_eq!(begun.unwrap().id, 1);
        let other = tasks.begin(TaskKind::Load, ("c", "C"), |_| unreachable!());
        assert_eq!(other.unwrap_err().reason, RefusalReason::Busy);
        tasks.cancel().unwrap();
        let last = ended(&tasks);
        assert_eq!((last.state, last.bytes), (TaskState::Cancelled, Some((1, 3))));
        assert_eq!((last.phase, last.message.as_deref()), ("downloading", Some("kept")));
        tasks.begin(TaskKind::Load, ("c", "C"), |_| TaskEnd::Done("c".to_owned())).unwrap();
        assert_eq!((ended(&tasks).id, ended(&tasks).state), (2, TaskState::Done));
        tasks.end();
    }

    #[test]
    fn a_panic_ends_a_task() {
        let tasks = Arc::new(Tasks::default());
        tasks.begin(TaskKind::Load, ("c", "C"), |_| panic!("as the test wants it")).unwrap();
        assert_eq!(ended(&tasks).state, TaskState::Failed);
        tasks.end();
    }

    #[test]
    fn rates_are_of_the_last_seconds() {
        let now = clock::instant();
        let mut record = TaskRecord {
            status: TaskStatus {
                id: 1,
                kind: TaskKind::Pull,
                model: String::new(),
                name: String::new(),
                state: TaskState::Running,
                phase: "downloading",
                bytes: None,
                bytes_per_s: None,
                time: Duration::ZERO,
                n_answers: None,
                message: None,
            },
            began: now,
            is_cancelled: false,
            on_cancel: None,
            points: VecDeque::new(),
        };
        record.set_bytes(5, 9);
        assert_eq!(record.status.bytes_per_s, None);
        let ago = |seconds: u64| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        record.points = [(ago(60), 0), (ago(20), 100), (ago(2), 1_000)].into();
        record.set_bytes(3_000, 9_000);
        let rate = record.status.bytes_per_s.unwrap();
        assert!((900.0..=1_000.0).contains(&rate), "{rate}");
    }
}
