//! Handle of the thread that loads experts into memory.
//!
//! **Invariant:** the thread is joined when this is dropped; a failure on it is kept until an
//! affected expert is requested.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle, panicking};
use std::time::Duration;

use moeflux_io::{Clock, Filling, Loader, Settings, SlotIdx, Wait};

use crate::error::{Error, Result};
use crate::experts::resident::ResidentBank;
use crate::experts::resident::follower::{Follower, News, Wish};
use crate::experts::stream::{Drives, READ_BYTES, StreamBank};
use crate::format::{Checkpoint, Sums};
use crate::ids::ExpertIdx;
use crate::weights::ExpertBank;

/// Experts that no step waits for are submitted as long as fewer bytes are in flight.
const BEHIND_BYTES: usize = 4 << 20;

/// The thread and what it has reported.
#[derive(Debug)]
pub(super) struct Following {
    /// `None` once the thread is to end.
    wishes: Option<Sender<Wish>>,
    news: Receiver<News>,
    thread: Option<JoinHandle<()>>,
    /// Experts that could not be read.
    failed: Vec<Failure>,
    /// Why no expert can be loaded any more.
    broken: Option<Broken>,
    clock: Arc<dyn Clock>,
    began_at: Duration,
}

/// An expert that could not be read.
#[derive(Debug)]
struct Failure {
    bank_idx: usize,
    expert: ExpertIdx,
    problem: String,
}

#[derive(Debug)]
enum Broken {
    Drive(String),
    Stopped(String),
}

/// Summary of the reports received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// Experts that have arrived.
    pub(super) n_ready: usize,
    /// Their stored bytes.
    pub(super) n_bytes: u64,
    /// Whether all experts are loaded and their files are unchanged.
    pub(super) is_whole: bool,
}

impl Following {
    /// Begins to read the experts of `banks` into these fillings, by bank and expert.
    ///
    /// # Errors
    ///
    /// [`Error::Machine`] if the system cannot create a thread.
    pub(super) fn begin(
        banks: &[ExpertBank],
        (checkpoint, sums): (&Checkpoint, Option<&Arc<Sums>>),
        drives: Drives,
        fillings: Vec<Vec<Option<Filling>>>,
    ) -> Result<Self> {
        assert_eq!(drives.block_bytes(), 1, "records lie anywhere");
        let (wishes, to_hear) = channel();
        let (to_tell, news) = channel();
        let settings = Settings { read_bytes: READ_BYTES, guess_bytes_max: BEHIND_BYTES };
        // Caching the mirror too would take twice the page cache.
        let Drives { primary, clock, .. } = drives;
        let follower = Follower {
            banks: banks.iter().map(|it| StreamBank::new(it.clone(), sums.cloned())).collect(),
            files: checkpoint.files.clone(),
            sums: sums.cloned(),
            loader: Loader::new(primary, None, settings, Arc::clone(&clock)),
            waiting: fillings,
            first_waiting: vec![0; banks.len()],
            ahead: 0,
            n_left: banks.iter().map(|bank| bank.n_experts).sum(),
            n_rereads: HashMap::new(),
            wishes: to_hear,
            news: to_tell,
        };
        let began_at = clock.now();
        let thread = Builder::new().name("moeflux-follow".to_owned());
        let thread = thread.spawn(move || follower.run()).map_err(|error| {
            Error::Machine(format!("cannot start the thread that loads experts: {error}"))
        })?;
        let (wishes, thread, failed, broken) = (Some(wishes), Some(thread), Vec::new(), None);
        Ok(Self { wishes, news, thread, failed, broken, clock, began_at })
    }

    /// Returns the time since loading began.
    pub(super) fn time(&self) -> Duration {
        self.clock.now().saturating_sub(self.began_at)
    }

    /// Gives these experts priority. Those that could not be read are read again.
    pub(super) fn wish(
        &mut self,
        (bank_idx, bank): (usize, &mut ResidentBank),
        experts: &[ExpertIdx],
    ) {
        let failed = &mut self.failed;
        let missing = experts.iter().filter(|expert| !bank.has(**expert)).copied();
        let missing: Vec<ExpertIdx> = missing.collect();
        if missing.is_empty() {
            return;
        }
        let with_filling = missing.into_iter().map(|expert| {
            let is_it = |it: &Failure| it.bank_idx == bank_idx && it.expert == expert;
            let failure = failed.iter().position(is_it).map(|at| failed.swap_remove(at));
            (expert, failure.map(|_| bank.memory.begin_fill(SlotIdx(expert.0))))
        });
        let wish = Wish { bank_idx, experts: with_filling.collect() };
        // If the thread has ended, it has reported why, or `hear` notices that it did not.
        if let Some(wishes) = &self.wishes {
            wishes.send(wish).ok();
        }
    }

    /// Reads all failed experts again.
    pub(super) fn wish_failed(&mut self, banks: &mut [ResidentBank]) {
        let failed: Vec<_> = self.failed.iter().map(|it| (it.bank_idx, it.expert)).collect();
        for (bank_idx, expert) in failed {
            self.wish((bank_idx, &mut banks[bank_idx]), &[expert]);
        }
    }

    /// Checks that none of these experts, or none at all if `of` is `None`, has failed since it was
    /// last wished for.
    ///
    /// # Errors
    ///
    /// [`Error::Expert`] for the first failure.
    pub(super) fn check(
        &self,
        banks: &[ResidentBank],
        of: Option<(usize, &[ExpertIdx])>,
    ) -> Result<()> {
        let concerns = |it: &&Failure| {
            of.is_none_or(|(bank_idx, experts)| {
                it.bank_idx == bank_idx && experts.contains(&it.expert)
            })
        };
        let Some(failure) = self.failed.iter().find(concerns) else { return Ok(()) };
        let (layer, expert) = (banks[failure.bank_idx].layer.0, failure.expert.0);
        Err(Error::Expert { layer, expert, problem: failure.problem.clone() })
    }

    /// Moves experts that have arrived into `banks`, after waiting as `wait` says.
    ///
    /// # Errors
    ///
    /// [`Error::Drive`] or [`Error::Stopped`] once nothing can be read any more.
    pub(super) fn hear(&mut self, wait: Wait, banks: &mut [ResidentBank]) -> Result<Heard> {
        let mut heard = Heard::default();
        let mut next = match wait {
            Wait::Poll => self.poll(),
            Wait::Any => self.news.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Wait::AtMost(limit) => self.news.recv_timeout(limit),
        };
        while self.broken.is_none() {
            match next {
                Ok(news) => self.take(news, banks, &mut heard),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) if heard.is_whole => break,
                Err(RecvTimeoutError::Disconnected) => {
                    let problem = "the thread that loads experts has ended: open the model again";
                    self.broken = Some(Broken::Stopped(problem.to_owned()));
                }
            }
            next = self.poll();
        }
        match &self.broken {
            None => Ok(heard),
            Some(Broken::Drive(problem)) => Err(Error::Drive(problem.clone())),
            Some(Broken::Stopped(problem)) => Err(Error::Stopped(problem.clone())),
        }
    }

    fn poll(&self) -> std::result::Result<News, RecvTimeoutError> {
        self.news.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }

    fn take(&mut self, news: News, banks: &mut [ResidentBank], heard: &mut Heard) {
        match news {
            News::Ready { bank_idx, filling } => {
                let bank = &mut banks[bank_idx];
                bank.memory.finish(filling);
                heard.n_ready += 1;
                heard.n_bytes += bank.layout.stored_bytes();
            }
            News::Failed { bank_idx, filling, problem } => {
                let SlotIdx(expert_idx) = filling.slot();
                banks[bank_idx].memory.abandon(filling);
                self.failed.push(Failure { bank_idx, expert: ExpertIdx(expert_idx), problem });
            }
            News::Whole(Ok(())) => heard.is_whole = true,
            News::Whole(Err(error)) => self.broken = Some(Broken::Stopped(error.to_string())),
            News::Broken(problem) => self.broken = Some(Broken::Drive(problem)),
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.wishes = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            debug_assert!(ended.is_ok() || panicking(), "a thread that only reads");
        }
    }
}
