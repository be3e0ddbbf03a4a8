//! The value of memory: the seconds that it is expected to save, per byte.
//!
//! **Invariant:** pure. Rates are measured on this engine and this machine.

use std::time::Duration;

/// Assumed length of an answer before the first one has ended.
const N_ANSWER_TOKENS_ASSUMED: f64 = 256.0;

/// After this many tokens, earlier measurements count half.
const N_TOKENS_REMEMBERED: f64 = 4096.0;

/// Seconds per token, as a decaying average.
#[derive(Clone, Copy, Debug, Default)]
struct TokenRate {
    seconds: f64,
    n_tokens: f64,
}

/// Measured speeds of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineRates {
    /// Time to read a prompt.
    prompt: TokenRate,
    /// Time spent waiting for drives during answers.
    wait: TokenRate,
    /// Mean tokens per answer.
    n_answer_tokens: Option<f64>,
}

/// Bytes per second that a drive is assumed to deliver: an ordinary SSD's.
const DRIVE_RATE_ASSUMED: f64 = 1e9;

/// What decides the value of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionValue {
    pub(crate) n_tokens: usize,
    pub(crate) n_bytes: u64,
    /// It can be read from a drive.
    pub(crate) is_saved: bool,
}

/// The expert slots that streaming could use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingSlots {
    /// Bytes per slot.
    pub(crate) slot_bytes: usize,
    /// Experts without a slot.
    pub(crate) n_missing: usize,
}

impl TokenRate {
    fn add(&mut self, time: Duration, n_tokens: usize) {
        let n_tokens = as_f64(n_tokens as u64);
        if self.n_tokens + n_tokens > N_TOKENS_REMEMBERED {
            self.seconds /= 2.0;
            self.n_tokens /= 2.0;
        }
        self.seconds += time.as_secs_f64();
        self.n_tokens += n_tokens;
    }

    fn per_token(self) -> f64 {
        if self.n_tokens > 0.0 { self.seconds / self.n_tokens } else { 0.0 }
    }
}

impl EngineRates {
    /// Records the time that reading prompt tokens took.
    pub(crate) fn add_prompt(&mut self, time: Duration, n_tokens: usize) {
        self.prompt.add(time, n_tokens);
    }

    /// Records the time that the engine waited for drives while it computed answer tokens.
    pub(crate) fn add_answers(&mut self, wait: Duration, n_tokens: usize) {
        self.wait.add(wait, n_tokens);
    }

    /// Sets the mean length of answers.
    pub(crate) fn set_answer(&mut self, n_tokens_mean: Option<f64>) {
        self.n_answer_tokens = n_tokens_mean;
    }

    /// Returns the time that reading this many tokens takes, in ms, rounded up.
    pub(crate) fn prompt_ms(&self, n_tokens: usize) -> u64 {
        let time = Duration::try_from_secs_f64(self.prompt.per_token() * as_f64(n_tokens as u64));
        u64::try_from(time.unwrap_or_default().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Returns the value of a session: the time to read its tokens again, or to load them. The more
    /// other sessions were used after it, the less likely its conversation is to continue.
    pub(crate) fn of_session(&self, session: &SessionValue, n_used_since: usize) -> f64 {
        let n_bytes = as_f64(session.n_bytes.max(1));
        let read = self.prompt.per_token() * as_f64(session.n_tokens as u64);
        let saved = if session.is_saved { read.min(n_bytes / DRIVE_RATE_ASSUMED) } else { read };
        saved / as_f64(1 + n_used_since as u64) / n_bytes
    }

    /// Returns the value of one more slot during an answer. Filling all missing slots would save
    /// the whole waiting time; each counts an equal part.
    pub(crate) fn of_slot(&self, slots: MissingSlots) -> f64 {
        let n_tokens = self.n_answer_tokens.unwrap_or(N_ANSWER_TOKENS_ASSUMED);
        let saved = self.wait.per_token() * n_tokens / as_f64(slots.n_missing.max(1) as u64);
        saved / as_f64(slots.slot_bytes.max(1) as u64)
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn as_f64(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates() -> EngineRates {
        let mut rates = EngineRates::default();
        rates.add_prompt(Duration::from_secs(20), 2_000);
        rates.add_answers(Duration::from_secs(6), 200);
        rates
    }

    #[test]
    fn a_conversation_is_worth_the_time_of_its_prompt() {
        let rates = rates();
        // 19,000 tokens at 10 ms, in 380 MB.
        let session = SessionValue { n_tokens: 19_000, n_bytes: 380_000_000, is_saved: false };
        let worth = rates.of_session(&session, 0);
        assert!((worth * 380e6 - 190.0).abs() < 1e-6, "{worth}");
        assert!((rates.of_session(&session, 3) * 4.0 - worth).abs() < 1e-12);
        let unknown = EngineRates::default().of_session(&session, 0);
        assert!(unknown.abs() < 1e-12, "nothing is known before a prompt was read");
        let saved = SessionValue { is_saved: true, ..session };
        assert!((rates.of_session(&saved, 0) * 380e6 - 0.38).abs() < 1e-9, "the time to load it");
    }

    #[test]
    fn a_slot_is_worth_the_waits_that_it_saves() {
        let mut rates = rates();
        let slots = MissingSlots { slot_bytes: 1 << 20, n_missing: 1_000 };
        // 30 ms for each of 256 tokens, divided among 1,000 slots.
        let seconds = rates.of_slot(slots) * f64::from(1 << 20);
        assert!((seconds - 0.00768).abs() < 1e-9, "{seconds}");
        rates.set_answer(Some(512.0));
        assert!((rates.of_slot(slots) * f64::from(1 << 20) - 2.0 * seconds).abs() < 1e-9);
        // A session is worth less than slots once many others were used after it.
        let value = SessionValue { n_tokens: 2_000, n_bytes: 64 << 20, is_saved: false };
        let session = |n_used_since| rates.of_session(&value, n_used_since);
        assert!(session(0) > rates.of_slot(slots) && session(40) < rates.of_slot(slots));
    }

    #[test]
    fn old_measurements_count_less() {
        let mut rates = EngineRates::default();
        rates.add_prompt(Duration::from_secs(100), 4_000);
        for _ in 0..20 {
            rates.add_prompt(Duration::from_secs(1), 1_000);
        }
        let per_token = rates.prompt.per_token();
        assert!(per_token < 0.0015, "{per_token}");
    }
}
