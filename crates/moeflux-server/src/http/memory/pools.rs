//! The memory that requests share. The program keeps it out of the engine's budget.
//!
//! There is a pool for each kind of use: bodies until they are parsed, intermediate data while a
//! prompt is made, and data that is kept until the response has been sent. A request reserves
//! memory of the pools in this order, so that no two requests can wait for each other.
//! **Invariant:** the reserved memory of a pool never exceeds the pool; dropping a
//! [`PoolReservation`] releases it. Sizes are upper estimates, which `tools/check/memory.sh`
//! compares with a process.

use std::sync::Arc;
use std::time::Duration;

use moeflux::ByteCount;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::http::reply::Problem;
use moeflux_wire::{Failure, FailureKind};

/// The unit in which memory is counted.
const UNIT_BYTES: usize = 1 << 10;
/// Advised pause before a retry: requests are read within seconds.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Shares of the memory in sixteenths: for bodies, for reading, for kept data, for replays, and for
/// the tables that grammars of answers build while they run.
const SIXTEENTHS: [usize; 5] = [4, 6, 4, 1, 1];
/// Size of a state of a grammar's lexer.
const LEXER_STATE_BYTES: usize = 2 << 10;
/// Lower bound on the states that a grammar may have: common schemas need a few hundred.
const N_LEXER_STATES_MIN: usize = 4_000;

/// The memory that all requests may use, in pools.
#[derive(Clone, Debug)]
pub(crate) struct RequestMemory {
    /// Bodies, until they are parsed.
    pub(crate) bodies: MemoryPool,
    /// Data made from a body until its prompt is tokenised: values, messages, rendered texts.
    pub(crate) reading: MemoryPool,
    /// Prompts, tools and answers, until the last byte of a response has been sent.
    pub(crate) serving: MemoryPool,
    pub(crate) replay_bytes: usize,
    grammar_bytes: usize,
}

impl RequestMemory {
    /// Divides `n_bytes` into pools.
    pub(crate) fn new(n_bytes: usize) -> Self {
        let [bodies, reading, serving, replay_bytes, grammar_bytes] =
            SIXTEENTHS.map(|n_sixteenths| n_bytes / 16 * n_sixteenths);
        Self {
            bodies: MemoryPool::new("bodies of requests", bodies),
            reading: MemoryPool::new("reading requests", reading),
            serving: MemoryPool::new("prompts and answers", serving),
            replay_bytes,
            grammar_bytes,
        }
    }

    /// Returns the upper bound on the states of one grammar's lexer while `n_answers` are computed
    /// at a time.
    pub(crate) fn n_lexer_states(&self, n_answers: usize) -> usize {
        (self.grammar_bytes / n_answers.max(1) / LEXER_STATE_BYTES).max(N_LEXER_STATES_MIN)
    }
}

/// A part of the memory, for one kind of use.
#[derive(Clone, Debug)]
pub(crate) struct MemoryPool {
    /// Its use, for messages.
    name: &'static str,
    n_units: usize,
    units: Arc<Semaphore>,
}

impl MemoryPool {
    fn new(name: &'static str, n_bytes: usize) -> Self {
        let n_units = (n_bytes / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self { name, n_units, units: Arc::new(Semaphore::new(n_units)) }
    }

    /// Returns the size of the pool.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_units * UNIT_BYTES
    }

    /// Reserves memory for `n_bytes` at once: requests that took it in pieces could all wait for
    /// each other.
    ///
    /// # Errors
    /// [`FailureKind::TooLarge`] if the pool is smaller; [`FailureKind::Unavailable`] if the memory
    /// does not become free within `wait`.
    pub(crate) async fn reserve(
        &self,
        what: &str,
        n_bytes: usize,
        wait: Duration,
    ) -> Result<PoolReservation, Problem> {
        let n_units = self.units_of(what, n_bytes)?;
        let permits = Arc::clone(&self.units).acquire_many_owned(n_units);
        match timeout(wait, permits).await {
            Ok(Ok(permits)) => Ok(PoolReservation { permits: Some(permits) }),
            _ => Err(self.full(what, n_bytes)),
        }
    }

    /// Adds memory for `n_bytes` to `reservation`.
    ///
    /// # Errors
    /// [`FailureKind::TooLarge`] if the pool is smaller; [`FailureKind::Unavailable`] if the memory
    /// is not free now.
    pub(crate) fn extend(
        &self,
        reservation: &mut PoolReservation,
        what: &str,
        n_bytes: usize,
    ) -> Result<(), Problem> {
        let n_units = self.units_of(what, n_bytes)?;
        let permits = Arc::clone(&self.units).try_acquire_many_owned(n_units);
        let permits = permits.map_err(|_| self.full(what, n_bytes))?;
        match &mut reservation.permits {
            Some(reserved) => reserved.merge(permits),
            none => *none = Some(permits),
        }
        Ok(())
    }

    fn units_of(&self, what: &str, n_bytes: usize) -> Result<u32, Problem> {
        let n_units = n_bytes.div_ceil(UNIT_BYTES).max(1);
        match u32::try_from(n_units) {
            Ok(n_units_32) if n_units <= self.n_units => Ok(n_units_32),
            _ => {
                let (needed, all) = (ByteCount(n_bytes as u64), ByteCount(self.n_bytes() as u64));
                let problem = format!(
                    "{what} may need {needed}; the memory for {} is {all}: send less, or give the \
                     server more memory",
                    self.name
                );
                Err(Failure::new(FailureKind::TooLarge, problem).into())
            }
        }
    }

    fn full(&self, what: &str, n_bytes: usize) -> Problem {
        let n_free = self.units.available_permits() * UNIT_BYTES;
        let (needed, free) = (ByteCount(n_bytes as u64), ByteCount(n_free as u64));
        let all = ByteCount(self.n_bytes() as u64);
        let problem = format!(
            "{what} may need {needed}, but only {free} of the {all} for {} are free: try again \
             later",
            self.name
        );
        let failure = Failure::new(FailureKind::Unavailable, problem);
        Problem { failure, retry_after: Some(RETRY_AFTER) }
    }
}

/// Memory of a pool, reserved until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct PoolReservation {
    permits: Option<OwnedSemaphorePermit>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    async fn message(pool: &MemoryPool, n_bytes: usize) -> Result<PoolReservation, String> {
        pool.reserve("a test", n_bytes, NOW).await.map_err(|problem| problem.failure.message)
    }

    #[tokio::test]
    async fn dropped_reservations_are_available_again() {
        let memory = RequestMemory::new(16 << 10);
        let pool = &memory.bodies;
        assert_eq!(pool.n_bytes(), 4 << 10);
        let mut first = message(pool, 1).await.unwrap();
        pool.extend(&mut first, "more", 2 << 10).unwrap();
        let error = message(pool, (1 << 10) + 1).await.unwrap_err();
        let expected = "a test may need 1.03 kB (1,025 bytes), but only 1.02 kB (1,024 bytes) of \
                        the 4.10 kB (4,096 bytes) for bodies of requests are free: try again later";
        assert_eq!(error, expected);
        let last = message(pool, 1 << 10).await.unwrap();
        assert!(pool.extend(&mut first, "more", 1).is_err());
        drop((first, last));
        assert!(message(pool, 4 << 10).await.is_ok());
    }

    #[tokio::test]
    async fn requests_that_never_fit_are_refused_at_once() {
        let memory = RequestMemory::new(16 << 10);
        for n_bytes in [(4 << 10) + 1, usize::MAX] {
            let problem = memory.serving.reserve("a test", n_bytes, NOW).await.unwrap_err();
            assert_eq!(problem.failure.kind, FailureKind::TooLarge, "{problem:?}");
            assert_eq!(problem.retry_after, None);
        }
    }

    #[test]
    fn parts_are_all_of_the_account() {
        assert_eq!(SIXTEENTHS.iter().sum::<usize>(), 16);
        let memory = RequestMemory::new(1 << 30);
        assert_eq!(memory.n_lexer_states(4), 8_192);
        assert_eq!(RequestMemory::new(0).n_lexer_states(4), N_LEXER_STATES_MIN);
    }
}
