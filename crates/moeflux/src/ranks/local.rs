//! Ranks on threads of one process, with a simulated clock: a network with delays and faults.
//!
//! **Invariant:** time advances only while all ranks wait, to the moment at which the first of them
//! receives its message or times out. So tests do not take as long as the time they simulate, and
//! none hangs.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ranks::{Place, Ranks};

/// Properties of a simulated network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSettings {
    /// Time from sending a message to its arrival.
    pub delay: Duration,
    /// Additional time per byte.
    pub nanos_per_byte: u64,
    /// Timeout of a rank that waits for others.
    pub deadline: Duration,
}

impl Default for LocalSettings {
    fn default() -> Self {
        let delay = Duration::from_micros(50);
        Self { delay, nanos_per_byte: 1, deadline: Duration::from_secs(30) }
    }
}

/// A fault of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies.
    Death,
    /// The rank stalls for this long.
    Stall(Duration),
    /// Its message is lost.
    Loss,
    /// The bit with this index, counted from the end of its message, is flipped.
    Flip(u32),
}

#[derive(Debug)]
struct Message {
    arrives_at: Duration,
    bytes: Vec<u8>,
}

/// Messages in transit from one rank to another: values of exchanges, and orders.
#[derive(Debug, Default)]
struct Way {
    values: VecDeque<Message>,
    orders: VecDeque<Message>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// It is computing.
    No,
    /// For the values of all others, until this time.
    ForAll { until: Duration },
    /// For an order.
    ForOrder,
    /// The rank is gone, without notice to the others.
    Gone,
}

#[derive(Debug)]
struct State {
    now: Duration,
    /// `[from][to]`.
    ways: Vec<Vec<Way>>,
    waiting: Vec<Waiting>,
    /// Per rank, the exchange at which a fault occurs.
    faults: Vec<Option<(u64, Fault)>>,
    n_exchanges: Vec<u64>,
}

#[derive(Debug)]
struct Hub {
    state: Mutex<State>,
    changed: Condvar,
}

/// One of several ranks within a process.
#[derive(Debug)]
pub struct LocalRanks {
    hub: Arc<Hub>,
    place: Place,
    settings: LocalSettings,
    patience: u32,
}

impl LocalRanks {
    /// Creates all ranks of a job. Each fault is given as rank, index of its exchange, and kind.
    ///
    /// # Panics
    ///
    /// If `n_ranks` is 0.
    #[must_use]
    pub fn job(
        n_ranks: usize,
        settings: LocalSettings,
        faults: &[(usize, u64, Fault)],
    ) -> Vec<Self> {
        assert!(n_ranks > 0, "a job has a rank");
        let ways = || (0..n_ranks).map(|_| Way::default()).collect();
        let mut by_rank = vec![None; n_ranks];
        for &(rank, at, fault) in faults {
            by_rank[rank] = Some((at, fault));
        }
        let state = State {
            now: Duration::ZERO,
            ways: (0..n_ranks).map(|_| ways()).collect(),
            waiting: vec![Waiting::No; n_ranks],
            faults: by_rank,
            n_exchanges: vec![0; n_ranks],
        };
        let hub = Arc::new(Hub { state: Mutex::new(state), changed: Condvar::new() });
        let hosts: Vec<String> = (0..n_ranks).map(|it| format!("host-{it}")).collect();
        let rank = |rank| Self {
            hub: Arc::clone(&hub),
            place: Place { rank, hosts: hosts.clone() },
            settings,
            patience: 1,
        };
        (0..n_ranks).map(rank).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.hub.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, rank: usize, problem: String) -> Error {
        Error::Rank { rank, host: self.place.hosts[rank].clone(), problem }
    }

    /// Waits until this rank has received what it waits for, or has timed out.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        waiting: Waiting,
    ) -> MutexGuard<'a, State> {
        let rank = self.place.rank;
        state.waiting[rank] = waiting;
        while !state.is_ready(rank) {
            if state.go_on() {
                self.hub.changed.notify_all();
                continue;
            }
            state = self.hub.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting[rank] = Waiting::No;
        state
    }

    fn send(&self, state: &mut State, (to, at): (usize, Duration), bytes: &[u8], is_order: bool) {
        let n_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let way_time = Duration::from_nanos(self.settings.nanos_per_byte.saturating_mul(n_bytes));
        let message =
            Message { arrives_at: at + self.settings.delay + way_time, bytes: bytes.to_vec() };
        let way = &mut state.ways[self.place.rank][to];
        if is_order { way.orders.push_back(message) } else { way.values.push_back(message) }
    }
}

impl State {
    fn has_come(message: Option<&Message>, now: Duration) -> bool {
        message.is_some_and(|it| it.arrives_at <= now)
    }

    /// Returns the first rank whose values this rank has not received.
    fn missing(&self, rank: usize) -> Option<usize> {
        (0..self.ways.len())
            .filter(|from| *from != rank)
            .find(|from| !Self::has_come(self.ways[*from][rank].values.front(), self.now))
    }

    fn is_ready(&self, rank: usize) -> bool {
        match self.waiting[rank] {
            Waiting::No => true,
            Waiting::Gone => false,
            Waiting::ForAll { until } => self.missing(rank).is_none() || self.now >= until,
            Waiting::ForOrder => {
                // Orders sent before its end still arrive.
                let next = self.ways[0][rank].orders.front();
                let is_gone = self.waiting[0] == Waiting::Gone && next.is_none();
                is_gone || Self::has_come(next, self.now)
            }
        }
    }

    /// Returns the time at which a waiting rank can proceed, as far as is known.
    fn next_of(&self, rank: usize) -> Option<Duration> {
        match self.waiting[rank] {
            Waiting::No | Waiting::Gone => None,
            Waiting::ForAll { until } => {
                let others = (0..self.ways.len()).filter(|from| *from != rank);
                let arrivals = others.map(|from| {
                    self.ways[from][rank].values.front().map_or(until, |it| it.arrives_at)
                });
                arrivals.max().map(|at| at.min(until))
            }
            Waiting::ForOrder => self.ways[0][rank].orders.front().map(|it| it.arrives_at),
        }
    }

    /// Advances the clock if all ranks wait. Returns whether it did.
    fn go_on(&mut self) -> bool {
        let ranks = 0..self.waiting.len();
        if ranks.clone().any(|rank| self.is_ready(rank)) {
            return false;
        }
        let Some(next) = ranks.filter_map(|rank| self.next_of(rank)).min() else { return false };
        if next <= self.now {
            return false;
        }
        self.now = next;
        true
    }
}

impl Ranks for LocalRanks {
    fn place(&self) -> &Place {
        &self.place
    }

    fn now(&self) -> Duration {
        self.lock().now
    }

    fn exchange(&mut self, own: &[u8], from: &mut [Vec<u8>]) -> Result<()> {
        let rank = self.place.rank;
        let mut state = self.lock();
        let number = state.n_exchanges[rank];
        state.n_exchanges[rank] += 1;
        let fault = state.faults[rank].filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        let (mut bytes, mut sent_at) = (own.to_vec(), state.now);
        match fault {
            Some(Fault::Death) => {
                state.waiting[rank] = Waiting::Gone;
                self.hub.changed.notify_all();
                return Err(self.error(rank, "has exited".to_owned()));
            }
            Some(Fault::Stall(time)) => sent_at += time,
            Some(Fault::Flip(bit)) => {
                let bit = bit as usize % (bytes.len() * 8);
                let at = bytes.len() - 1 - bit / 8;
                bytes[at] ^= 1 << (bit % 8);
            }
            Some(Fault::Loss) | None => {}
        }
        for to in (0..self.place.n_ranks()).filter(|to| *to != rank) {
            if fault != Some(Fault::Loss) {
                self.send(&mut state, (to, sent_at), &bytes, false);
            }
        }
        self.hub.changed.notify_all();
        let until = state.now.max(sent_at) + self.settings.deadline * self.patience;
        let mut state = self.wait(state, Waiting::ForAll { until });
        if let Some(missing) = state.missing(rank) {
            let seconds = (self.settings.deadline * self.patience).as_secs_f64();
            return Err(self.error(missing, format!("did not respond within {seconds} s")));
        }
        let now = state.now;
        for (other, target) in from.iter_mut().enumerate().filter(|(other, _)| *other != rank) {
            let message = state.ways[other][rank].values.pop_front();
            *target = message.filter(|it| it.arrives_at <= now).expect("it has come").bytes;
        }
        Ok(())
    }

    fn tell(&mut self, order: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let now = state.now;
        for to in 1..self.place.n_ranks() {
            self.send(&mut state, (to, now), order, true);
        }
        self.hub.changed.notify_all();
        Ok(())
    }

    fn hear(&mut self, order: &mut Vec<u8>) -> Result<()> {
        let rank = self.place.rank;
        let state = self.lock();
        let mut state = self.wait(state, Waiting::ForOrder);
        let now = state.now;
        let orders = &mut state.ways[0][rank].orders;
        match orders.pop_front_if(|it| it.arrives_at <= now) {
            Some(message) => {
                order.extend(message.bytes);
                Ok(())
            }
            None => Err(self.error(0, "has exited".to_owned())),
        }
    }

    fn set_patience(&mut self, factor: u32) {
        self.patience = factor;
    }

    fn abort(&mut self, _why: &str) {
        let rank = self.place.rank;
        self.lock().waiting[rank] = Waiting::Gone;
        self.hub.changed.notify_all();
    }
}

impl Drop for LocalRanks {
    /// Marks the rank as gone, so that others do not wait for it.
    fn drop(&mut self) {
        let rank = self.place.rank;
        self.lock().waiting[rank] = Waiting::Gone;
        self.hub.changed.notify_all();
    }
}
