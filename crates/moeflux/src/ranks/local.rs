//! Ranks on threads of one process, with a simulated clock: a network with delays and faults.
//!
//! **Invariant:** time advances only while all ranks wait, to the moment at which the first of them
//! receives its message or times out. So tests do not take as long as the time they simulate, and
//! none hangs.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ranks::{RankTopology, Ranks};

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
pub enum RankFault {
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
struct InFlightMessage {
    arrives_at: Duration,
    bytes: Vec<u8>,
}

/// Messages in transit from one rank to another: values of exchanges, and commands.
#[derive(Debug, Default)]
struct MessageQueues {
    values: VecDeque<InFlightMessage>,
    commands: VecDeque<InFlightMessage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankWait {
    /// It is computing.
    No,
    /// For the values of all others, until this time.
    ForAll { until: Duration },
    /// For a command.
    ForCommand,
    /// The rank is gone, without notice to the others.
    Gone,
}

#[derive(Debug)]
struct NetworkState {
    now: Duration,
    /// `[from][to]`.
    queues: Vec<Vec<MessageQueues>>,
    waiting: Vec<RankWait>,
    /// Per rank, the exchange at which a fault occurs.
    faults: Vec<Option<(u64, RankFault)>>,
    n_exchanges: Vec<u64>,
}

#[derive(Debug)]
struct SimulatedNetwork {
    state: Mutex<NetworkState>,
    changed: Condvar,
}

/// One of several ranks within a process.
#[derive(Debug)]
pub struct LocalRanks {
    network: Arc<SimulatedNetwork>,
    topology: RankTopology,
    settings: LocalSettings,
    timeout_factor: u32,
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
        faults: &[(usize, u64, RankFault)],
    ) -> Vec<Self> {
        assert!(n_ranks > 0, "a job has a rank");
        let queues = || (0..n_ranks).map(|_| MessageQueues::default()).collect();
        let mut by_rank = vec![None; n_ranks];
        for &(rank, at, fault) in faults {
            by_rank[rank] = Some((at, fault));
        }
        let state = NetworkState {
            now: Duration::ZERO,
            queues: (0..n_ranks).map(|_| queues()).collect(),
            waiting: vec![RankWait::No; n_ranks],
            faults: by_rank,
            n_exchanges: vec![0; n_ranks],
        };
        let network =
            Arc::new(SimulatedNetwork { state: Mutex::new(state), changed: Condvar::new() });
        let hosts: Vec<String> = (0..n_ranks).map(|it| format!("host-{it}")).collect();
        let rank = |rank| Self {
            network: Arc::clone(&network),
            topology: RankTopology { rank, hosts: hosts.clone() },
            settings,
            timeout_factor: 1,
        };
        (0..n_ranks).map(rank).collect()
    }

    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.network.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, rank: usize, problem: String) -> Error {
        Error::Rank { rank, host: self.topology.hosts[rank].clone(), problem }
    }

    /// Waits until this rank has received the expected message, or has timed out.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, NetworkState>,
        waiting: RankWait,
    ) -> MutexGuard<'a, NetworkState> {
        let rank = self.topology.rank;
        state.waiting[rank] = waiting;
        while !state.is_ready(rank) {
            if state.advance_clock() {
                self.network.changed.notify_all();
                continue;
            }
            state = self.network.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting[rank] = RankWait::No;
        state
    }

    fn send(
        &self,
        state: &mut NetworkState,
        (to, at): (usize, Duration),
        bytes: &[u8],
        is_command: bool,
    ) {
        let n_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let transfer_time =
            Duration::from_nanos(self.settings.nanos_per_byte.saturating_mul(n_bytes));
        let message = InFlightMessage {
            arrives_at: at + self.settings.delay + transfer_time,
            bytes: bytes.to_vec(),
        };
        let queue = &mut state.queues[self.topology.rank][to];
        if is_command { queue.commands.push_back(message) } else { queue.values.push_back(message) }
    }
}

impl NetworkState {
    fn has_come(message: Option<&InFlightMessage>, now: Duration) -> bool {
        message.is_some_and(|it| it.arrives_at <= now)
    }

    /// Returns the first rank whose values this rank has not received.
    fn missing(&self, rank: usize) -> Option<usize> {
        (0..self.queues.len())
            .filter(|from| *from != rank)
            .find(|from| !Self::has_come(self.queues[*from][rank].values.front(), self.now))
    }

    fn is_ready(&self, rank: usize) -> bool {
        match self.waiting[rank] {
            RankWait::No => true,
            RankWait::Gone => false,
            RankWait::ForAll { until } => self.missing(rank).is_none() || self.now >= until,
            RankWait::ForCommand => {
                // Orders sent before its end still arrive.
                let next = self.queues[0][rank].commands.front();
                let is_gone = self.waiting[0] == RankWait::Gone && next.is_none();
                is_gone || Self::has_come(next, self.now)
            }
        }
    }

    /// Returns the time at which a waiting rank can proceed, as far as is known.
    fn next_of(&self, rank: usize) -> Option<Duration> {
        match self.waiting[rank] {
            RankWait::No | RankWait::Gone => None,
            RankWait::ForAll { until } => {
                let others = (0..self.queues.len()).filter(|from| *from != rank);
                let arrivals = others.map(|from| {
                    self.queues[from][rank].values.front().map_or(until, |it| it.arrives_at)
                });
                arrivals.max().map(|at| at.min(until))
            }
            RankWait::ForCommand => self.queues[0][rank].commands.front().map(|it| it.arrives_at),
        }
    }

    /// Advances the clock if all ranks wait. Returns whether it did.
    fn advance_clock(&mut self) -> bool {
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
    fn topology(&self) -> &RankTopology {
        &self.topology
    }

    fn now(&self) -> Duration {
        self.lock().now
    }

    fn exchange(&mut self, own: &[u8], from: &mut [Vec<u8>]) -> Result<()> {
        let rank = self.topology.rank;
        let mut state = self.lock();
        let number = state.n_exchanges[rank];
        state.n_exchanges[rank] += 1;
        let fault = state.faults[rank].filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        let (mut bytes, mut sent_at) = (own.to_vec(), state.now);
        match fault {
            Some(RankFault::Death) => {
                state.waiting[rank] = RankWait::Gone;
                self.network.changed.notify_all();
                return Err(self.error(rank, "has exited".to_owned()));
            }
            Some(RankFault::Stall(time)) => sent_at += time,
            Some(RankFault::Flip(bit)) => {
                let bit = bit as usize % (bytes.len() * 8);
                let at = bytes.len() - 1 - bit / 8;
                bytes[at] ^= 1 << (bit % 8);
            }
            Some(RankFault::Loss) | None => {}
        }
        for to in (0..self.topology.n_ranks()).filter(|to| *to != rank) {
            if fault != Some(RankFault::Loss) {
                self.send(&mut state, (to, sent_at), &bytes, false);
            }
        }
        self.network.changed.notify_all();
        let until = state.now.max(sent_at) + self.settings.deadline * self.timeout_factor;
        let mut state = self.wait(state, RankWait::ForAll { until });
        if let Some(missing) = state.missing(rank) {
            let seconds = (self.settings.deadline * self.timeout_factor).as_secs_f64();
            return Err(self.error(missing, format!("did not respond within {seconds} s")));
        }
        let now = state.now;
        for (other, target) in from.iter_mut().enumerate().filter(|(other, _)| *other != rank) {
            let message = state.queues[other][rank].values.pop_front();
            *target = message.filter(|it| it.arrives_at <= now).expect("it has come").bytes;
        }
        Ok(())
    }

    fn broadcast(&mut self, command: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let now = state.now;
        for to in 1..self.topology.n_ranks() {
            self.send(&mut state, (to, now), command, true);
        }
        self.network.changed.notify_all();
        Ok(())
    }

    fn receive(&mut self, command: &mut Vec<u8>) -> Result<()> {
        let rank = self.topology.rank;
        let state = self.lock();
        let mut state = self.wait(state, RankWait::ForCommand);
        let now = state.now;
        let commands = &mut state.queues[0][rank].commands;
        match commands.pop_front_if(|it| it.arrives_at <= now) {
            Some(message) => {
                command.extend(message.bytes);
                Ok(())
            }
            None => Err(self.error(0, "has exited".to_owned())),
        }
    }

    fn set_timeout_factor(&mut self, factor: u32) {
        self.timeout_factor = factor;
    }

    fn abort(&mut self, _why: &str) {
        let rank = self.topology.rank;
        self.lock().waiting[rank] = RankWait::Gone;
        self.network.changed.notify_all();
    }
}

impl Drop for LocalRanks {
    /// Marks the rank as gone, so that others do not wait for it.
    fn drop(&mut self) {
        let rank = self.topology.rank;
        self.lock().waiting[rank] = RankWait::Gone;
        self.network.changed.notify_all();
    }
}
