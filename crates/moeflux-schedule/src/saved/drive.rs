//! The thread that reads and writes saved parts, so that steps never wait for a drive.
//!
//! **Invariant:** reads go first, because prompts wait for them. An object is written block by
//! block; at most one block waits, and an object that gets no further block leaves nothing.

use std::collections::VecDeque;
use std::io::{Read, Write as _};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use moeflux::clock::{Clock as _, RealClock};
use moeflux::{CopyBooking, Error, Result};
use moeflux_prefix::{
    FoundPrefix, NewObject, ObjectId, ObjectWriter, PrefixNamespace, Store, StoreRole, WriteRefusal,
};

use crate::saved::object::SavedPart;

/// A part that a session loads: of a number of positions, or the state of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    Positions(usize),
    RecurrentLayer,
}

/// A part that was read, or why it cannot be used.
pub(crate) type ReadPart = (PartKind, std::result::Result<Vec<u8>, String>);

/// An object to read, and the parts that it is read in, with their bytes.
pub(crate) struct ReadObject {
    pub(crate) id: ObjectId,
    pub(crate) parts: Vec<(PartKind, usize)>,
}

/// Objects to read, in order.
pub(crate) struct ReadTask {
    pub(crate) found: FoundPrefix,
    /// Those of the prefix that the session lacks.
    pub(crate) objects: Vec<ReadObject>,
    /// All tokens up to the end of the last object.
    pub(crate) tokens: Vec<u32>,
    pub(crate) reply: SyncSender<ReadPart>,
}

/// An object to write.
pub(crate) struct WriteTask {
    pub(crate) namespace: PrefixNamespace,
    pub(crate) part: SavedPart,
    /// All tokens up to its end.
    pub(crate) tokens: Vec<u32>,
    pub(crate) saved_ms: u64,
    pub(crate) payload_bytes: u64,
}

/// A block of an object.
pub(crate) struct WriteBlock {
    /// The object that begins with this block; an unfinished one ends. `None`: the last one
    /// continues.
    pub(crate) begins: Option<WriteTask>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_last: bool,
    /// `None` if its memory was booked ahead.
    pub(crate) _booking: Option<CopyBooking>,
}

/// What is to be done: a block, or the lock that allows it.
enum Write {
    Block(WriteBlock),
    Lock,
}

/// What became of the last write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WriteProgress {
    /// It is still to be done.
    Writing,
    /// There was none, or it was done.
    #[default]
    Written,
    /// It could not be done.
    Refused,
}

/// How far the thread is from its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ThreadEndState {
    #[default]
    Runs,
    /// It ends when the object that waits is written.
    IsClosed,
    /// It has ended, perhaps in a panic: nothing is read or written.
    IsOver,
}

#[derive(Default)]
struct TaskQueue {
    reads: VecDeque<ReadTask>,
    write: Option<Write>,
    progress: WriteProgress,
    has_warned: bool,
    end: ThreadEndState,
}

struct SharedQueue {
    tasks: Mutex<TaskQueue>,
    changed: Condvar,
    /// Notified when nothing is being written.
    written: Condvar,
    store: Store,
    /// Called when a part was read or an object written.
    wake: Box<dyn Fn() + Send + Sync>,
}

/// A handle of the thread. Dropping it waits until the block that is waiting was written.
pub(crate) struct DriveThread {
    shared: Arc<SharedQueue>,
    thread: Option<JoinHandle<()>>,
}

impl DriveThread {
    pub(crate) fn start(store: Store, wake: Box<dyn Fn() + Send + Sync>) -> Result<Self> {
        let (tasks, changed, written) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(SharedQueue { tasks, changed, written, store, wake });
        let of_thread = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("moeflux-saved".to_owned());
        let thread = builder.spawn(move || {
            let _over = ThreadEnd(&of_thread);
            of_thread.run();
        });
        let thread = thread.map_err(|error| {
            Error::Machine(format!("cannot start the thread of saved conversations: {error}"))
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) fn read(&self, task: ReadTask) {
        let mut tasks = self.shared.tasks();
        // Without the thread, the end of the channel is that of the load.
        if tasks.end != ThreadEndState::IsOver {
            tasks.reads.push_back(task);
        }
        drop(tasks);
        self.shared.changed.notify_one();
    }

    /// Waits until nothing is being written, at most `limit`. Returns what is left of it; `None`
    /// if something is.
    pub(crate) fn wait(&self, limit: Duration) -> Option<Duration> {
        let clock = RealClock::new();
        let is_writing = |tasks: &mut TaskQueue| tasks.progress == WriteProgress::Writing;
        let waited = self.shared.written.wait_timeout_while(self.shared.tasks(), limit, is_writing);
        let (tasks, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(tasks);
        (!waited.timed_out()).then(|| limit.saturating_sub(clock.now()))
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.shared.tasks().progress == WriteProgress::Writing
    }

    /// Returns what became of the last block; a refusal is returned once.
    pub(crate) fn take_progress(&self) -> WriteProgress {
        let mut tasks = self.shared.tasks();
        let progress = tasks.progress;
        if progress == WriteProgress::Refused {
            tasks.progress = WriteProgress::Written;
        }
        progress
    }

    /// Writes a block. None may be waiting.
    pub(crate) fn write(&self, block: WriteBlock) {
        self.begin(Write::Block(block));
    }

    /// Becomes the process that writes to the folder, if there is none. Does nothing while a write
    /// is waiting: of a session that was given up for another, or an earlier attempt.
    pub(crate) fn take_over(&self) {
        if !self.is_writing() {
            self.begin(Write::Lock);
        }
    }

    fn begin(&self, write: Write) {
        let mut tasks = self.shared.tasks();
        assert!(tasks.progress != WriteProgress::Writing, "one block is written at a time");
        if tasks.end == ThreadEndState::IsOver {
            tasks.progress = WriteProgress::Refused;
            return;
        }
        (tasks.write, tasks.progress) = (Some(write), WriteProgress::Writing);
        drop(tasks);
        self.shared.changed.notify_one();
    }
}

impl Drop for DriveThread {
    fn drop(&mut self) {
        let mut tasks = self.shared.tasks();
        if tasks.end == ThreadEndState::Runs {
            tasks.end = ThreadEndState::IsClosed;
        }
        tasks.reads.clear();
        drop(tasks);
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
    }
}

/// Ends what waits for the thread, also if it panics.
struct ThreadEnd<'q>(&'q SharedQueue);

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        let mut tasks = self.0.tasks();
        tasks.end = ThreadEndState::IsOver;
        tasks.reads.clear();
        tasks.write = None;
        if tasks.progress == WriteProgress::Writing {
            tasks.progress = WriteProgress::Refused;
        }
        drop(tasks);
        self.0.written.notify_all();
        (self.0.wake)();
    }
}

impl SharedQueue {
    fn tasks(&self) -> MutexGuard<'_, TaskQueue> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut writer = None;
        let mut tasks = self.tasks();
        loop {
            if let Some(read) = tasks.reads.pop_front() {
                drop(tasks);
                self.read(&read);
                // The end of the channel is that of the load.
                drop(read);
                (self.wake)();
                tasks = self.tasks();
            } else if let Some(write) = tasks.write.take() {
                drop(tasks);
                let written = match &write {
                    Write::Block(block) => self.write(block, &mut writer).map(|()| true),
                    Write::Lock => Ok(self.take_over()),
                };
                drop(write);
                tasks = self.tasks();
                tasks.progress = match &written {
                    Ok(true) => WriteProgress::Written,
                    Ok(false) | Err(_) => WriteProgress::Refused,
                };
                if let Err(problem) = written
                    && !std::mem::replace(&mut tasks.has_warned, true)
                {
                    tracing::warn!(problem, "a conversation was not saved; this is reported once");
                }
                self.written.notify_all();
                (self.wake)();
            } else if tasks.end == ThreadEndState::IsClosed {
                return;
            } else {
                tasks = self.changed.wait(tasks).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Reads until an object cannot be used, or until the receiver is gone.
    fn read(&self, task: &ReadTask) {
        self.store.mark_used(&task.found);
        for ReadObject { id, parts } in &task.objects {
            let mut reader = self.store.read(*id, &task.tokens).map_err(|miss| miss.to_string());
            for (kind, n_bytes) in parts {
                let read = match &mut reader {
                    Ok(reader) => read_part(reader, *n_bytes),
                    Err(problem) => Err(problem.clone()),
                };
                let is_miss = read.is_err();
                let is_gone = task.reply.send((*kind, read)).is_err();
                (self.wake)();
                if is_miss || is_gone {
                    return;
                }
            }
        }
    }

    /// Returns whether this process may write, now that another may have ended.
    fn take_over(&self) -> bool {
        self.store.try_take_over().is_ok_and(|role| role == StoreRole::Writer)
    }

    /// Writes a block. Returns why it could not be written. Blocks of an object that is there
    /// already are left out.
    fn write(
        &self,
        block: &WriteBlock,
        unfinished: &mut Option<ObjectWriter>,
    ) -> std::result::Result<(), String> {
        if let Some(task) = &block.begins {
            *unfinished = None;
            *unfinished = self.begin(task)?;
        }
        let Some(mut writer) = unfinished.take() else { return Ok(()) };
        writer.write_all(&block.bytes).map_err(|error| error.to_string())?;
        if block.is_last {
            return writer.commit().map(drop).map_err(|refusal| refusal.to_string());
        }
        *unfinished = Some(writer);
        Ok(())
    }

    /// Begins an object, unless it is there already.
    fn begin(&self, task: &WriteTask) -> std::result::Result<Option<ObjectWriter>, String> {
        let WriteTask { namespace, part, tokens, saved_ms, payload_bytes } = task;
        let begun = self.store.begin(&NewObject {
            namespace: *namespace,
            kind: part.kind,
            tokens,
            first: part.first,
            payload_bytes: *payload_bytes,
            saved_ms: *saved_ms,
        });
        match begun {
            Ok(writer) => Ok(Some(writer)),
            Err(WriteRefusal::AlreadyThere) => Ok(None),
            Err(refusal) => Err(refusal.to_string()),
        }
    }
}

fn read_part(reader: &mut impl Read, n_bytes: usize) -> std::result::Result<Vec<u8>, String> {
    let mut bytes = vec![0; n_bytes];
    reader.read_exact(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use moeflux_prefix::{PrefixFolder, StoreLimits, WallClock};
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[derive(Debug)]
    struct StoppedClock;

    impl WallClock for StoppedClock {
        fn since_1970(&self) -> Duration {
            Duration::ZERO
        }
    }

    #[test]
    fn the_lock_is_asked_for_once_at_a_time_and_a_refusal_is_told_once() {
        let dir = TempDir::new();
        let open = || {
            let folder = PrefixFolder::new(dir.path().to_owned(), Arc::new(StoppedClock));
            let limits = StoreLimits { n_bytes_max: u64::MAX, write_bytes_per_day: u64::MAX };
            Store::open(folder, limits).unwrap()
        };
        let (writer, reader) = (open(), open());
        let drive = DriveThread::start(reader.clone(), Box::new(|| {})).unwrap();
        for _ in 0..100 {
            drive.take_over();
        }
        drive.wait(Duration::from_secs(60)).unwrap();
        assert_eq!(drive.take_progress(), WriteProgress::Refused);
        assert_eq!(drive.take_progress(), WriteProgress::Written);
        drop(writer);
        drive.take_over();
        drive.wait(Duration::from_secs(60)).unwrap();
        assert_eq!(drive.take_progress(), WriteProgress::Written);
        assert_eq!(reader.role(), StoreRole::Writer);
    }
}
