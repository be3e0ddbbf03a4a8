//! One rank's end of the connection: exchanges with headers, forwarded errors, commands.
//!
//! **Invariant:** once ranks disagree about their stage or their results, nothing more is
//! exchanged: every later call returns the same error.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ids::LayerIdx;
use crate::ranks::command::{OwnedBatch, RankCommand};
use crate::ranks::hello::{Hello, difference};
use crate::ranks::message_header::{MessageHeader, PayloadKind, read_error, write_error};
use crate::ranks::stats::{LinkStats, PendingTimes};
use crate::ranks::{RankTopology, Ranks};
use crate::weights::Shares;

/// Membership of an engine in a group of ranks.
#[derive(Clone, Debug)]
pub struct RankGroup {
    link: SharedLink,
    /// Each rank's share of every expert.
    pub shares: Shares,
}

impl RankGroup {
    /// Creates the group from this rank's transport and the shares of all ranks.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if the numbers of shares and ranks differ.
    pub fn new(ranks: Box<dyn Ranks>, shares: Shares) -> Result<Self> {
        let (n_ranks, n_shares) = (ranks.topology().n_ranks(), shares.n_ranks());
        if n_ranks != n_shares {
            return Err(Error::Input(format!("{n_shares} shares for {n_ranks} ranks")));
        }
        Ok(Self { link: SharedLink(Arc::new(Mutex::new(RankLink::new(ranks)))), shares })
    }

    /// Returns the rank of this machine and the hosts of all.
    #[must_use]
    pub fn topology(&self) -> RankTopology {
        self.link.lock().topology().clone()
    }

    pub(crate) fn link(&self) -> &SharedLink {
        &self.link
    }

    /// Ends the job on all ranks, for this reason.
    pub fn abort(&self, why: &str) {
        self.link.lock().ranks.abort(why);
    }

    /// Returns whether the ranks can no longer go on together. The callback has reported this.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.link.lock().broken.is_some()
    }

    /// Tells all ranks why this one cannot even begin to open the model.
    ///
    /// # Errors
    ///
    /// Always: this error, or that of another rank.
    pub fn refuse(&self, error: Error) -> Result<()> {
        self.link.lock().handshake(Err(error)).map(drop)
    }

    /// Times `n_times` exchanges in which all ranks together send `n_bytes`. All ranks must call
    /// this with the same arguments.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`] if ranks do not answer or do not agree.
    pub fn time_exchanges(&self, n_bytes: usize, n_times: usize) -> Result<Vec<Duration>> {
        let mut link = self.link.lock();
        let own = vec![0; n_bytes / link.topology().n_ranks()];
        let mut exchange = || {
            let began = link.ranks.now();
            link.exchange(ExchangeStage::Start, 0, Ok(&own))?;
            Ok(link.ranks.now().saturating_sub(began))
        };
        // The first exchange waits for ranks that have not arrived yet.
        exchange()?;
        (0..n_times).map(|_| exchange()).collect()
    }

    /// Returns a handle with which rank 0 sends keep-alives while it has no commands.
    #[must_use]
    pub fn keep_alive(&self) -> KeepAlive {
        KeepAlive(Arc::downgrade(&self.link.0))
    }

    /// Sets a callback for when the ranks cannot go on together. It receives the error; then the
    /// job ends on all ranks.
    pub fn on_break(&self, say: Box<dyn Fn(&Error) + Send>) {
        self.link.lock().on_break = Some(OnBreak(say));
    }
}

/// A handle that sends the keep-alives of a link while the link exists.
#[derive(Clone, Debug)]
pub struct KeepAlive(Weak<Mutex<RankLink>>);

impl KeepAlive {
    /// Sends a keep-alive, unless the link is in use anyway. Returns whether the link still exists
    /// and works.
    pub fn send(&self) -> bool {
        let Some(link) = self.0.upgrade() else { return false };
        let Ok(mut link) = link.try_lock() else { return true };
        link.broken.is_none() && link.ranks.keep_alive().is_ok()
    }
}

/// A link shared by the device and the code that changes its states.
#[derive(Clone, Debug)]
pub(crate) struct SharedLink(Arc<Mutex<RankLink>>);

impl SharedLink {
    pub(crate) fn lock(&self) -> MutexGuard<'_, RankLink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The point of a step at which an exchange takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeStage {
    /// While the model is opened.
    Start,
    /// After a call that may fail on some ranks.
    Agreed,
    /// Inner values of a chunk of experts.
    Inner(LayerIdx),
    /// Columns of the sum.
    Sum(LayerIdx),
}

impl ExchangeStage {
    fn number(self) -> u32 {
        let of = |layer: LayerIdx| u32::try_from(layer.0).unwrap_or(u32::MAX / 4) * 4;
        match self {
            Self::Start => 0,
            Self::Agreed => 1,
            Self::Inner(layer) => of(layer) + 2,
            Self::Sum(layer) => of(layer) + 3,
        }
    }
}

impl fmt::Display for ExchangeStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("while the model is opened"),
            Self::Agreed => f.write_str("between two steps"),
            Self::Inner(layer) | Self::Sum(layer) => write!(f, "in layer {}", layer.0),
        }
    }
}

/// Encodes numbers for other ranks.
pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|it| it.to_le_bytes()).collect()
}

/// The callback for a broken link.
struct OnBreak(Box<dyn Fn(&Error) + Send>);

impl fmt::Debug for OnBreak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnBreak")
    }
}

/// One rank's end of the connection.
#[derive(Debug)]
pub(crate) struct RankLink {
    ranks: Box<dyn Ranks>,
    sequence: u64,
    own: Vec<u8>,
    from: Vec<Vec<u8>>,
    /// An error on this rank since the last exchange.
    deferred: Option<Error>,
    /// On rank 0: layers that were sent to the others and have not run yet.
    announced: Option<Range<usize>>,
    /// For each layer, whether ranks exchange values there.
    exchanging_layers: Vec<bool>,
    /// The rank and the problem that broke the link.
    broken: Option<(usize, String)>,
    on_break: Option<OnBreak>,
    /// Whether a model was opened: a job runs only one.
    is_used: bool,
    stats: LinkStats,
    waits: PendingTimes,
}

impl RankLink {
    fn new(ranks: Box<dyn Ranks>) -> Self {
        let n_ranks = ranks.topology().n_ranks();
        Self {
            ranks,
            sequence: 0,
            own: Vec::new(),
            from: vec![Vec::new(); n_ranks],
            deferred: None,
            announced: None,
            exchanging_layers: Vec::new(),
            broken: None,
            on_break: None,
            is_used: false,
            stats: LinkStats::of(n_ranks),
            waits: PendingTimes::default(),
        }
    }

    pub(crate) fn topology(&self) -> &RankTopology {
        self.ranks.topology()
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.topology().rank == 0
    }

    pub(crate) fn stats(&self) -> LinkStats {
        self.stats.clone()
    }

    /// Records the total time for which computing has waited for the drive.
    pub(crate) fn set_read_wait(&mut self, time: Duration) {
        self.waits.read = time;
    }

    /// Sets the layers in which ranks exchange values.
    pub(crate) fn set_exchanging_layers(&mut self, exchanging_layers: Vec<bool>) {
        self.exchanging_layers = exchanging_layers;
    }

    pub(crate) fn set_timeout_factor(&mut self, factor: u32) {
        self.ranks.set_timeout_factor(factor);
    }

    /// Keeps an error for the next exchange, where all ranks learn of it.
    pub(crate) fn defer(&mut self, error: Error) {
        self.deferred.get_or_insert(error);
    }

    /// Exchanges values, or an error, with all ranks; afterwards [`RankLink::values_of`] returns
    /// those of each. `hash` covers data that is equal on all ranks.
    ///
    /// # Errors
    ///
    /// The error of this or of another rank; [`Error::Cancelled`] if rank 0 ends the step here;
    /// [`Error::Rank`] if ranks disagree or do not answer, which breaks the link.
    pub(crate) fn exchange(
        &mut self,
        stage: ExchangeStage,
        hash: u64,
        own: Result<&[u8]>,
    ) -> Result<()> {
        let own = match self.deferred.take() {
            Some(error) => Err(error),
            None => own,
        };
        match &own {
            Ok(values) => self.swap_messages(stage, hash, (PayloadKind::Values, values))?,
            Err(error) => {
                let (kind, text) = write_error(error);
                self.swap_messages(stage, hash, (kind, &text))?;
            }
        }
        own?;
        self.first_error(stage)
    }

    /// Ends the step that the others are in, if any.
    fn stop_open_step(&mut self) -> Result<()> {
        let Some(announced) = self.announced.take() else { return Ok(()) };
        let Some(layer_idx) = announced.into_iter().find(|it| self.exchanging_layers[*it]) else {
            return Ok(());
        };
        // The others may be at a later stage, but the stage of a stop is not compared.
        self.swap_messages(ExchangeStage::Inner(LayerIdx(layer_idx)), 0, (PayloadKind::Stop, &[]))
    }

    fn swap_messages(
        &mut self,
        stage: ExchangeStage,
        hash: u64,
        (kind, payload): (PayloadKind, &[u8]),
    ) -> Result<()> {
        self.check()?;
        let (waited_us, read_wait_us) = self.waits.take();
        let header = MessageHeader {
            sequence: self.sequence,
            hash,
            stage: stage.number(),
            kind,
            len_bytes: payload.len() as u64,
            waited_us,
            read_wait_us,
        };
        self.own.clear();
        header.write(payload, &mut self.own);
        let began = self.ranks.now();
        let exchanged = self.ranks.exchange(&self.own, &mut self.from);
        let took = self.ranks.now().saturating_sub(began);
        self.stats.count(took, self.own.len());
        self.waits.exchange = took;
        self.sequence += 1;
        match exchanged {
            Ok(()) => self.compare(stage, header),
            Err(Error::Rank { rank, problem, .. }) => {
                Err(self.break_off(rank, format!("{problem}, {stage}")))
            }
            Err(other) => Err(self.break_off(self.topology().rank, other.to_string())),
        }
    }

    /// Checks that all headers are of the same exchange and stage, and that hashes are equal.
    fn compare(&mut self, stage: ExchangeStage, own: MessageHeader) -> Result<()> {
        let own_rank = self.topology().rank;
        let mut headers = Vec::with_capacity(self.from.len());
        for rank in 0..self.from.len() {
            let message = if rank == own_rank { &self.own } else { &self.from[rank] };
            // This rank's own message was not transmitted.
            let is_whole = rank == own_rank || MessageHeader::is_whole(message);
            let Some((header, _)) = MessageHeader::read(message).filter(|_| is_whole) else {
                let problem = format!("sent a corrupted message, {stage}");
                return Err(self.break_off(rank, problem));
            };
            headers.push(header);
        }
        self.stats.count_waits(headers.iter().map(|it| (it.waited_us, it.read_wait_us)));
        if let Some(rank) = outlier(&headers, |it| it.sequence) {
            let problem = format!(
                "is at exchange {}, the others at {}, {stage}: ranks are out of step",
                headers[rank].sequence, own.sequence
            );
            return Err(self.break_off(rank, problem));
        }
        if headers.iter().any(|it| it.kind == PayloadKind::Stop) {
            return Ok(());
        }
        if let Some(rank) = outlier(&headers, |it| it.stage) {
            let problem = format!("is at a different stage of the step, {stage}");
            return Err(self.break_off(rank, problem));
        }
        // A rank that failed to compute its values has no hash.
        let (ranks, with_values): (Vec<usize>, Vec<MessageHeader>) = headers
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, header)| header.kind == PayloadKind::Values)
            .unzip();
        if let Some(odd_idx) = outlier(&with_values, |it| it.hash) {
            let rank = ranks[odd_idx];
            let problem = format!(
                "computed different values from the other ranks, {stage}: its memory or its build \
                 differs"
            );
            return Err(self.break_off(rank, problem));
        }
        Ok(())
    }

    /// Returns the error of the first other rank that reports one, or `Cancelled` after a stop.
    fn first_error(&mut self, stage: ExchangeStage) -> Result<()> {
        let own_rank = self.topology().rank;
        for rank in (0..self.from.len()).filter(|rank| *rank != own_rank) {
            let Some((header, payload)) = MessageHeader::read(&self.from[rank]) else { continue };
            match header.kind {
                PayloadKind::Values => {}
                PayloadKind::Stop => return Err(Error::Cancelled),
                kind => {
                    let host = &self.topology().hosts[rank];
                    return Err(match read_error(kind, payload, (rank, host)) {
                        Ok(error) => error,
                        Err(_) => {
                            let problem = format!("sent an unreadable error, {stage}");
                            self.break_off(rank, problem)
                        }
                    });
                }
            }
        }
        Ok(())
    }

    fn values_of(&self, rank: usize) -> &[u8] {
        MessageHeader::read(&self.from[rank]).map_or(&[], |(_, payload)| payload)
    }

    /// Returns the `n_floats` numbers that another rank sent in the last exchange.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`] if it sent a different number.
    pub(crate) fn floats_of(&mut self, rank: usize, n_floats: usize) -> Result<Vec<f32>> {
        let values = self.values_of(rank).chunks_exact(size_of::<f32>());
        if values.len() != n_floats || !values.remainder().is_empty() {
            let n_bytes = self.values_of(rank).len();
            let problem = format!("sent {n_bytes} bytes instead of {n_floats} values");
            return Err(self.break_off(rank, problem));
        }
        Ok(values.map(|it| f32::from_le_bytes(it.try_into().expect("4 bytes"))).collect())
    }

    /// Breaks the link and returns the error. Where a callback is set, the first break calls it and
    /// ends the job on all ranks; without one, the error is all that the caller gets.
    pub(crate) fn break_off(&mut self, rank: usize, problem: String) -> Error {
        let is_first = self.broken.is_none();
        self.broken.get_or_insert((rank, problem.clone()));
        let host = self.topology().hosts.get(rank).cloned().unwrap_or_default();
        let error = Error::Rank { rank, host, problem };
        if let Some(OnBreak(say)) = self.on_break.as_ref().filter(|_| is_first) {
            say(&error);
            self.ranks.abort(&error.to_string());
        }
        error
    }

    /// Begins to open the model of a job.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if one was opened before.
    pub(crate) fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_used, true) {
            let problem = "a job runs one model: start a new job for another model";
            return Err(Error::Input(problem.to_owned()));
        }
        Ok(())
    }

    /// Fails if the link is broken.
    pub(crate) fn check(&self) -> Result<()> {
        let Some((rank, problem)) = &self.broken else { return Ok(()) };
        let host = self.topology().hosts.get(*rank).cloned().unwrap_or_default();
        Err(Error::Rank { rank: *rank, host, problem: problem.clone() })
    }

    /// Exchanges whether a call succeeded; it succeeds only if it did on all ranks.
    ///
    /// # Errors
    ///
    /// The error of any rank.
    pub(crate) fn agree<T>(&mut self, result: Result<T>) -> Result<T> {
        self.agree_at(ExchangeStage::Agreed, result)
    }

    fn agree_at<T>(&mut self, stage: ExchangeStage, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => self.exchange(stage, 0, Ok(&[])).map(|()| value),
            Err(error) => match self.exchange(stage, 0, Err(error)) {
                Err(error) => Err(error),
                Ok(()) => unreachable!("an error was given"),
            },
        }
    }

    /// Sends a command of rank 0 to the others, after ending the step that they are in.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`] if the link is or gets broken, or if a rank is gone.
    pub(crate) fn broadcast(&mut self, command: &RankCommand) -> Result<()> {
        self.stop_open_step()?;
        self.check()?;
        self.ranks.broadcast(&command.to_bytes())
    }

    /// Prepares a layer on rank 0: sends it and those before `end` to the others, unless that was
    /// done before.
    ///
    /// # Errors
    ///
    /// As [`RankLink::broadcast`].
    pub(crate) fn begin_layer(
        &mut self,
        (first, end): (LayerIdx, LayerIdx),
        batch: &dyn Fn() -> OwnedBatch,
    ) -> Result<()> {
        if self.announced.as_ref().is_none_or(|announced| announced.start != first.0) {
            self.broadcast(&RankCommand::Layers { first, end, batch: batch() })?;
            self.announced = Some(first.0..end.0);
        }
        Ok(())
    }

    /// Ends a layer on rank 0. `is_done` says whether it succeeded, which is the same on all ranks.
    pub(crate) fn end_layer(&mut self, layer: LayerIdx, is_done: bool) {
        let announced = self.announced.take().filter(|_| is_done);
        self.announced = announced.map(|it| layer.0 + 1..it.end).filter(|it| !it.is_empty());
    }

    /// Waits for the next command of rank 0.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`] if the link is or gets broken; [`Error::Machine`] if the command is
    /// unreadable.
    pub(crate) fn receive(&mut self, bytes: &mut Vec<u8>) -> Result<RankCommand> {
        self.check()?;
        bytes.clear();
        match self.ranks.receive(bytes) {
            Ok(()) => RankCommand::read(bytes),
            Err(Error::Rank { rank, problem, .. }) => Err(self.break_off(rank, problem)),
            Err(other) => Err(self.break_off(self.topology().rank, other.to_string())),
        }
    }

    /// Exchanges the properties of all ranks. Returns the minimum of each number.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`] for the first rank that differs from rank 0, with the name of the
    /// difference; otherwise the error of any rank.
    pub(crate) fn handshake(&mut self, own: Result<Hello>) -> Result<Vec<u64>> {
        let own = match own {
            Ok(hello) => hello.to_bytes(),
            Err(error) => return self.agree_at(ExchangeStage::Start, Err(error)),
        };
        self.exchange(ExchangeStage::Start, 0, Ok(&own))?;
        let own_rank = self.topology().rank;
        let hello_of = |rank: usize| -> Vec<u8> {
            if rank == own_rank { own.clone() } else { self.values_of(rank).to_vec() }
        };
        let hellos: Vec<Vec<u8>> = (0..self.from.len()).map(hello_of).collect();
        let first = Hello::read(&hellos[0]);
        let mut least = first.as_ref().map(|it| it.1.clone()).unwrap_or_default();
        for (rank, hello) in hellos.iter().enumerate() {
            let hello = Hello::read(hello);
            let problem = match (&first, &hello) {
                (Some(first), Some(hello)) => difference(&first.0, &hello.0),
                _ => Some("runs a different version of moeflux".to_owned()),
            };
            if let Some(problem) = problem {
                return Err(self.break_off(rank, problem));
            }
            let values = hello.into_iter().flat_map(|it| it.1);
            least.iter_mut().zip(values).for_each(|(least, it)| *least = (*least).min(it));
        }
        Ok(least)
    }
}

/// Returns the first rank whose value is not the most frequent one; `None` if all are equal. In a
/// tie, the value of the lowest rank counts as the most frequent.
fn outlier<T: PartialEq>(
    headers: &[MessageHeader],
    value: impl Fn(&MessageHeader) -> T,
) -> Option<usize> {
    let values: Vec<T> = headers.iter().map(value).collect();
    let n_like = |it: &T| values.iter().filter(|other| *other == it).count();
    // The first of the most frequent values.
    let most = values.iter().rev().max_by_key(|it| n_like(it))?;
    values.iter().position(|it| it != most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(hash: u64) -> MessageHeader {
        let (kind, len_bytes, waited_us) = (PayloadKind::Values, 0, 4);
        MessageHeader { sequence: 1, hash, stage: 2, kind, len_bytes, waited_us, read_wait_us: 5 }
    }

    #[test]
    fn the_rank_that_differs_from_most_is_named() {
        let odd = |hashes: &[u64]| {
            let headers: Vec<MessageHeader> = hashes.iter().map(|it| header(*it)).collect();
            outlier(&headers, |it| it.hash)
        };
        assert_eq!(odd(&[5, 5, 5]), None);
        assert_eq!(odd(&[5, 5, 6]), Some(2));
        assert_eq!(odd(&[6, 5, 5]), Some(0));
        assert_eq!(odd(&[5, 6]), Some(1), "of two, rank 0 is believed");
    }

    #[test]
    fn headers_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        let written = MessageHeader { len_bytes: 3, ..header(7) };
        written.write(&[1, 2, 3], &mut bytes);
        assert_eq!(MessageHeader::read(&bytes), Some((written, &[1, 2, 3][..])));
        assert!(MessageHeader::is_whole(&bytes));
        for n_bytes in 0..bytes.len() {
            assert_eq!(MessageHeader::read(&bytes[..n_bytes]), None, "cut to {n_bytes}");
            assert!(!MessageHeader::is_whole(&bytes[..n_bytes]), "cut to {n_bytes}");
        }
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!MessageHeader::is_whole(&damaged), "bit {bit}");
        }
    }
}
