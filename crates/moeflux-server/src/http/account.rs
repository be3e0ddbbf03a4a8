//! The memory that requests share.
//!
//! An account has a part for each kind of use: bodies until they are parsed, intermediate data
//! while a prompt is made, and data that is kept until the response has been sent. A request takes
//! memory from the parts in this order, so that no two requests can wait for each other.
//! **Invariant:** the memory held of a part never exceeds the part; dropping [`Held`] releases it.
//! Sizes are upper estimates, which `tools/check/memory.sh` compares with a process.

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

/// Shares of an account in sixteenths: for bodies, for reading, for kept data, for replays, and for
/// the tables that grammars of answers build while they run.
const SIXTEENTHS: [usize; 5] = [4, 6, 4, 1, 1];
/// Size of a state of a grammar's lexer.
const LEXER_STATE_BYTES: usize = 2 << 10;
/// Lower bound on the states that a grammar may have: common schemas need a few hundred.
const N_LEXER_STATES_MIN: usize = 4_000;

/// The memory of all requests.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// Bodies, until they are parsed.
    pub(crate) bodies: Part,
    /// Data made from a body until its prompt is tokenised: values, messages, rendered texts.
    pub(crate) reading: Part,
    /// Prompts, tools and answers, until the last byte of a response has been sent.
    pub(crate) kept: Part,
    pub(crate) replay_bytes: usize,
    grammar_bytes: usize,
}

impl Account {
    /// Creates an account of `n_bytes`.
    pub(crate) fn new(n_bytes: usize) -> Self {
        let [bodies, reading, kept, replay_bytes, grammar_bytes] =
            SIXTEENTHS.map(|n_sixteenths| n_bytes / 16 * n_sixteenths);
        Self {
            bodies: Part::new("bodies of requests", bodies),
            reading: Part::new("reading requests", reading),
            kept: Part::new("prompts and answers", kept),
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

/// A part of the account.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Its use, for messages.
    name: &'static str,
    n_units: usize,
    units: Arc<Semaphore>,
}

impl Part {
    fn new(name: &'static str, n_bytes: usize) -> Self {
        let n_units = (n_bytes / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self { name, n_units, units: Arc::new(Semaphore::new(n_units)) }
    }

    /// Returns the size of the part.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_units * UNIT_BYTES
    }

    /// Takes memory for `n_bytes` at once: requests that took it in pieces could all wait for each
    /// other.
    ///
    /// # Errors
    /// [`FailureKind::TooLarge`] if the part is smaller; [`FailureKind::Unavailable`] if the memory
    /// does not become free within `wait`.
    pub(crate) async fn take(
        &self,
        what: &str,
        n_bytes: usize,
        wait: Duration,
    ) -> Result<Held, Problem> {
        let n_units = self.units_of(what, n_bytes)?;
        let taken = Arc::clone(&self.units).acquire_many_owned(n_units);
        match timeout(wait, taken).await {
            Ok(Ok(taken)) => Ok(Held { taken: Some(taken) }),
            _ => Err(self.full(what, n_bytes)),
        }
    }

    /// Adds memory for `n_bytes` to `held`.
    ///
    /// # Errors
    /// [`FailureKind::TooLarge`] if the part is smaller; [`FailureKind::Unavailable`] if the memory
    /// is not free now.
    pub(crate) fn add(&self, held: &mut Held, what: &str, n_bytes: usize) -> Result<(), Problem> {
        let n_units = self.units_of(what, n_bytes)?;
        let taken = Arc::clone(&self.units).try_acquire_many_owned(n_units);
        let taken = taken.map_err(|_| self.full(what, n_bytes))?;
        match &mut held.taken {
            Some(held) => held.merge(taken),
            none => *none = Some(taken),
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

/// Memory of a part, held until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    taken: Option<OwnedSemaphorePermit>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    async fn message(part: &Part, n_bytes: usize) -> Result<Held, String> {
        part.take("a test", n_bytes, NOW).await.map_err(|problem| problem.failure.message)
    }

    #[tokio::test]
    async fn what_is_dropped_is_there_again() {
        let account = Account::new(16 << 10);
        let part = &account.bodies;
        assert_eq!(part.n_bytes(), 4 << 10);
        let mut first = message(part, 1).await.unwrap();
        part.add(&mut first, "more", 2 << 10).unwrap();
        let error = message(part, (1 << 10) + 1).await.unwrap_err();
        let expected = "a test may need 1.03 kB (1,025 bytes), but only 1.02 kB (1,024 bytes) of \
                        the 4.10 kB (4,096 bytes) for bodies of requests are free: try again later";
        assert_eq!(error, expected);
        let last = message(part, 1 << 10).await.unwrap();
        assert!(part.add(&mut first, "more", 1).is_err());
        drop((first, last));
        assert!(message(part, 4 << 10).await.is_ok());
    }

    #[tokio::test]
    async fn what_never_fits_is_told_at_once() {
        let account = Account::new(16 << 10);
        for n_bytes in [(4 << 10) + 1, usize::MAX] {
            let problem = account.kept.take("a test", n_bytes, NOW).await.unwrap_err();
            assert_eq!(problem.failure.kind, FailureKind::TooLarge, "{problem:?}");
            assert_eq!(problem.retry_after, None);
        }
    }

    #[test]
    fn parts_are_all_of_the_account() {
        assert_eq!(SIXTEENTHS.iter().sum::<usize>(), 16);
        let account = Account::new(1 << 30);
        assert_eq!(account.n_lexer_states(4), 8_192);
        assert_eq!(Account::new(0).n_lexer_states(4), N_LEXER_STATES_MIN);
    }
}
