//! Ranks on one host whose messages are delayed as by a network.
//!
//! **Invariant:** a message is delivered when it would have arrived, by the clock that all
//! processes of the host share; a later receive does not wait again.

use std::time::Duration;

use moeflux::Result;
use moeflux::provider::ranks::{RankTopology, Ranks};

use crate::system::clock;
use crate::system::network::Delay;

/// Bytes in front of a message: the time at which it was sent.
const STAMP_BYTES: usize = 8;

/// Ranks behind a simulated slow network.
#[derive(Debug)]
pub(super) struct DelayedRanks {
    inner: Box<dyn Ranks>,
    delay: Delay,
    own: Vec<u8>,
}

impl DelayedRanks {
    pub(super) fn new(inner: Box<dyn Ranks>, delay: Delay) -> Self {
        Self { inner, delay, own: Vec::new() }
    }

    /// Stores the message with the time in front.
    fn stamp(&mut self, message: &[u8]) {
        self.own.clear();
        let nanos = u64::try_from(clock::since_1970().as_nanos()).unwrap_or(u64::MAX);
        self.own.extend_from_slice(&nanos.to_le_bytes());
        self.own.extend_from_slice(message);
    }

    /// Waits until a received message would have arrived, `n_bytes` after the first of its kind,
    /// and removes its time stamp.
    fn take(&self, message: &mut Vec<u8>, n_bytes: usize) {
        let stamp = message.drain(..STAMP_BYTES.min(message.len())).collect::<Vec<u8>>();
        let Ok(stamp) = <[u8; STAMP_BYTES]>::try_from(stamp) else { return };
        let on_wire = self.delay.picoseconds_per_byte.saturating_mul(n_bytes as u64);
        let late = self.delay.latency + Duration::from_nanos(on_wire / 1000);
        let due = Duration::from_nanos(u64::from_le_bytes(stamp)) + late;
        while clock::since_1970() < due {
            std::thread::yield_now();
        }
    }
}

impl Ranks for DelayedRanks {
    fn topology(&self) -> &RankTopology {
        self.inner.topology()
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }

    fn exchange(&mut self, own: &[u8], from: &mut [Vec<u8>]) -> Result<()> {
        self.stamp(own);
        self.inner.exchange(&self.own, from)?;
        let own_rank = self.topology().rank;
        let mut n_bytes = 0;
        for (rank, message) in from.iter_mut().enumerate() {
            if rank != own_rank {
                n_bytes += message.len();
                self.take(message, n_bytes);
            }
        }
        Ok(())
    }

    fn broadcast(&mut self, command: &[u8]) -> Result<()> {
        self.stamp(command);
        self.inner.broadcast(&self.own)
    }

    fn keep_alive(&mut self) -> Result<()> {
        self.inner.keep_alive()
    }

    fn receive(&mut self, command: &mut Vec<u8>) -> Result<()> {
        self.inner.receive(command)?;
        let n_bytes = command.len();
        self.take(command, n_bytes);
        Ok(())
    }

    fn set_timeout_factor(&mut self, factor: u32) {
        self.inner.set_timeout_factor(factor);
    }

    fn abort(&mut self, why: &str) {
        self.inner.abort(why);
    }
}

#[cfg(test)]
mod tests {
    use moeflux::provider::ranks::{LocalRanks, LocalSettings};

    use super::*;

    #[test]
    fn messages_come_as_they_were_sent_and_no_sooner_than_they_may() {
        let latency = Duration::from_millis(2);
        let delay = Delay { latency, picoseconds_per_byte: 1000 };
        let exchange = |ranks: LocalRanks| {
            let rank = ranks.topology().rank;
            let mut ranks = DelayedRanks::new(Box::new(ranks), delay);
            let began = clock::since_1970();
            let mut from = vec![Vec::new(); 2];
            let messages = [b"from rank 0", b"from rank 1"];
            ranks.exchange(messages[rank], &mut from).unwrap();
            assert_eq!(from[1 - rank], messages[1 - rank]);
            (began, clock::since_1970())
        };
        let job = LocalRanks::job(2, LocalSettings::default(), &[]);
        let times: Vec<(Duration, Duration)> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                job.into_iter().map(|ranks| scope.spawn(|| exchange(ranks))).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        let last_began = times.iter().map(|it| it.0).max().unwrap();
        assert!(times.iter().any(|(began, ended)| *ended - *began >= latency), "{times:?}");
        assert!(times.iter().any(|(_, ended)| *ended - last_began >= latency), "{times:?}");
    }
}
