//! Ranks that exchange messages through MPI.
//!
//! **Invariant:** every wait checks the time, yields the core if it takes long, and names the rank
//! that it waited for.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use moeflux::provider::io::{Clock, RealClock};
use moeflux::provider::ranks::{RankTopology, Ranks};
use moeflux::{Error, Result};

use crate::beside::Known;
use crate::launcher::Launcher;
use crate::library::{Mpi, Transfer};

const TAG_VALUES: c_int = 1;
const TAG_COMMANDS: c_int = 2;
const TAG_HOSTS: c_int = 3;
const TAG_SIGNS: c_int = 4;

/// Ranks that wait for the same rank time out within this time of each other.
const SIGN_TIME: Duration = Duration::from_secs(1);

/// How long a wait spins; most end by then.
const SPIN: Duration = Duration::from_micros(50);

/// How long a wait then yields between two checks; afterwards it sleeps.
const YIELD: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(50);

/// A rank that receives nothing for this long is idle, and sleeps longer.
const IDLE: Duration = Duration::from_millis(200);
const IDLE_NAP: Duration = Duration::from_millis(1);

/// This process as one rank of an MPI job.
#[derive(Debug)]
pub struct MpiRanks {
    mpi: Mpi,
    topology: RankTopology,
    clock: RealClock,
    timeout: Duration,
    timeout_factor: u32,
    /// Orders that have not been sent completely.
    commands: Vec<Transfer>,
    is_over: bool,
}

impl MpiRanks {
    /// Opens the MPI library and exchanges host names with the other ranks. The library is the one
    /// named by the user, or else the launcher's, which is first searched for next to the launcher.
    ///
    /// # Errors
    ///
    /// [`Error::Machine`] if there is no such library, or if it does not see the ranks that the
    /// launcher started; [`Error::Rank`] if a rank does not answer.
    pub fn start(launcher: &Launcher, known: Known<'_>, timeout: Duration) -> Result<Self> {
        let mpi = Mpi::open(known.library, launcher.kind, &known.folders())?;
        let (rank, n_ranks) = mpi.rank_and_size()?;
        if n_ranks != launcher.n_ranks {
            let n_started = launcher.n_ranks;
            let why = format!("only {n_ranks} of {n_started} started processes are visible");
            return Err(mpi.wrong_library_error(&why));
        }
        let topology = RankTopology { rank, hosts: vec![String::from("?"); n_ranks] };
        let (clock, timeout_factor) = (RealClock::new(), 1);
        let commands = Vec::new();
        let mut ranks =
            Self { mpi, topology, clock, timeout, timeout_factor, commands, is_over: false };
        ranks.exchange_hosts()?;
        Ok(ranks)
    }

    /// Returns the version text of the library.
    #[must_use]
    pub fn version(&self) -> String {
        self.mpi.version()
    }

    fn exchange_hosts(&mut self) -> Result<()> {
        let host = self.mpi.host();
        let mut hosts = vec![Vec::new(); self.topology.n_ranks()];
        self.swap(host.as_bytes(), &mut hosts, TAG_HOSTS)?;
        hosts[self.topology.rank] = host.into_bytes();
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        self.topology.hosts = hosts.iter().map(text).collect();
        Ok(())
    }

    fn swap(&self, own: &[u8], from: &mut [Vec<u8>], tag: c_int) -> Result<()> {
        let others = (0..from.len()).filter(|rank| *rank != self.topology.rank);
        let others: Vec<usize> = others.collect();
        let own = Arc::new(own.to_vec());
        let sends = others.iter().map(|to| self.mpi.send(Arc::clone(&own), (*to, tag)));
        let mut sends: Vec<Transfer> = sends.collect::<Result<_>>()?;
        let mut receiving: Vec<Option<Transfer>> = from.iter().map(|_| None).collect();
        let mut missing = others.clone();
        let mut began = self.clock.now();
        let mut looked = began;
        let deadline = self.timeout * self.timeout_factor;
        loop {
            // If this process was suspended itself, it cannot conclude that others did not answer.
            let now = self.clock.now();
            if now.saturating_sub(looked) > deadline / 2 {
                began = now;
            }
            looked = now;
            let mut left = Vec::with_capacity(missing.len());
            for rank in missing {
                if !self.poll_receive(&mut receiving[rank], &mut from[rank], (rank, tag))? {
                    left.push(rank);
                }
            }
            missing = left;
            let mut unsent = Vec::new();
            for (send, to) in sends.iter_mut().zip(&others) {
                if !self.mpi.is_done(send)? {
                    unsent.push(*to);
                }
            }
            if missing.is_empty() && unsent.is_empty() {
                return Ok(());
            }
            let waited = self.clock.now().saturating_sub(began);
            if waited > deadline {
                let awaited = if missing.is_empty() { &unsent } else { &missing };
                let rank = self.unresponsive_rank(awaited)?;
                let problem = format!("did not respond within {} s", deadline.as_secs_f64());
                return Err(self.error(rank, problem));
            }
            self.pause(waited);
        }
    }

    /// Determines which of the awaited ranks is inactive: the others are waiting too, and send a
    /// sign now.
    fn unresponsive_rank(&self, awaited: &[usize]) -> Result<usize> {
        let sign = Arc::new(vec![0]);
        let others = (0..self.topology.n_ranks()).filter(|rank| *rank != self.topology.rank);
        let signs = others.map(|to| self.mpi.send(Arc::clone(&sign), (to, TAG_SIGNS)));
        let mut signs: Vec<Transfer> = signs.collect::<Result<_>>()?;
        let mut silent = awaited.to_vec();
        let began = self.clock.now();
        let mut waited = Duration::ZERO;
        while silent.len() > 1 && waited < SIGN_TIME {
            for sign in &mut signs {
                self.mpi.is_done(sign)?;
            }
            let mut left = Vec::with_capacity(silent.len());
            for rank in silent {
                if self.mpi.probe((rank, TAG_SIGNS))?.is_none() {
                    left.push(rank);
                }
            }
            silent = left;
            self.pause(waited);
            waited = self.clock.now().saturating_sub(began);
        }
        Ok(silent.first().or(awaited.first()).copied().unwrap_or(0))
    }

    /// Continues receiving a message from a rank. Returns whether it is complete.
    fn poll_receive(
        &self,
        receiving: &mut Option<Transfer>,
        target: &mut Vec<u8>,
        source: (usize, c_int),
    ) -> Result<bool> {
        if receiving.is_none() {
            let Some(n_bytes) = self.mpi.probe(source)? else { return Ok(false) };
            *receiving = Some(self.mpi.receive(std::mem::take(target), n_bytes, source)?);
        }
        let Some(transfer) = receiving else { return Ok(false) };
        if !self.mpi.is_done(transfer)? {
            return Ok(false);
        }
        *target = receiving.take().map(Transfer::into_received).unwrap_or_default();
        Ok(true)
    }

    fn pause(&self, waited: Duration) {
        match waited {
            it if it < SPIN => std::hint::spin_loop(),
            it if it < YIELD => std::thread::yield_now(),
            it if it < IDLE => std::thread::park_timeout(NAP),
            _ => std::thread::park_timeout(IDLE_NAP),
        }
    }

    fn error(&self, rank: usize, problem: String) -> Error {
        Error::Rank { rank, host: self.topology.hosts[rank].clone(), problem }
    }

    fn drop_sent_commands(&mut self) -> Result<()> {
        let mut commands = std::mem::take(&mut self.commands);
        for mut command in commands.drain(..) {
            if !self.mpi.is_done(&mut command)? {
                self.commands.push(command);
            }
        }
        Ok(())
    }
}

impl Ranks for MpiRanks {
    fn topology(&self) -> &RankTopology {
        &self.topology
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn exchange(&mut self, own: &[u8], from: &mut [Vec<u8>]) -> Result<()> {
        self.swap(own, from, TAG_VALUES)
    }

    fn broadcast(&mut self, command: &[u8]) -> Result<()> {
        self.drop_sent_commands()?;
        let command = Arc::new(command.to_vec());
        for rank in 1..self.topology.n_ranks() {
            let sent = self.mpi.send(Arc::clone(&command), (rank, TAG_COMMANDS))?;
            self.commands.push(sent);
        }
        self.drop_sent_commands()
    }

    /// Sends an empty command, which is a keep-alive.
    fn keep_alive(&mut self) -> Result<()> {
        self.broadcast(&[])
    }

    fn receive(&mut self, command: &mut Vec<u8>) -> Result<()> {
        let mut receiving = None;
        let mut began = self.clock.now();
        let deadline = self.timeout * self.timeout_factor;
        loop {
            let has_come = self.poll_receive(&mut receiving, command, (0, TAG_COMMANDS))?;
            if has_come && !command.is_empty() {
                return Ok(());
            }
            let now = self.clock.now();
            if has_come {
                began = now;
            }
            let waited = now.saturating_sub(began);
            if waited > deadline {
                let problem = format!("did not respond within {} s", deadline.as_secs_f64());
                return Err(self.error(0, problem));
            }
            self.pause(waited);
        }
    }

    fn set_timeout_factor(&mut self, factor: u32) {
        self.timeout_factor = factor;
    }

    /// Some MPI implementations end the process here, others return.
    fn abort(&mut self, _why: &str) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.mpi.abort();
        }
    }
}

impl Drop for MpiRanks {
    /// Waits until all commands are sent, then finalises MPI together with the other ranks.
    fn drop(&mut self) {
        let began = self.clock.now();
        while !self.is_over && !self.commands.is_empty() {
            let waited = self.clock.now().saturating_sub(began);
            if self.drop_sent_commands().is_err() || waited > self.timeout {
                break;
            }
            self.pause(waited);
        }
        if !self.is_over {
            self.mpi.finalize();
        }
    }
}
