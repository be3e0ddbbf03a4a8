//! Times answers and prompts in seconds, over one session.
//!
//! **Invariant:** the first round of each kind does not count.

use std::time::Duration;

use moeflux::provider::engine::EngineSpec;
use moeflux::step::{Feed, StepOutput, step};
use moeflux::{Engine, Result, Session, TokenId};

use super::model::CONTEXT;
use crate::model::needs::float;
use crate::random::RandomStream;
use crate::stats::median;
use crate::system::clock;
use crate::system::interrupt::Interrupt;

/// Tokens of each round of answers.
const N_ANSWER_TOKENS: usize = 24;

/// Rounds that count, after a first that does not; fewer if they take long.
const N_ROUNDS: usize = 5;

/// Upper bound on the time for rounds of one kind: a software driver takes seconds for each.
const ROUNDS_TIME: Duration = Duration::from_secs(2);

/// A trial: one session over an engine, whose steps are timed.
pub(super) struct TrialRun<'a> {
    session: Session,
    tokens: RandomStream,
    pub(super) n_drawn: u64,
    vocab: u64,
    output: StepOutput,
    interrupt: &'a Interrupt,
}

impl<'a> TrialRun<'a> {
    pub(super) fn new(engine: &Engine, interrupt: &'a Interrupt) -> Result<Self> {
        // Reads during a step would distort its time.
        crate::model::read_rest(engine, interrupt)?;
        Ok(Self {
            session: engine.session(CONTEXT)?,
            tokens: RandomStream::new(1, "trial"),
            n_drawn: 0,
            vocab: engine.spec().vocab as u64,
            output: StepOutput::default(),
            interrupt,
        })
    }

    fn draw(&mut self, n_tokens: usize) -> Vec<TokenId> {
        let first = self.n_drawn;
        self.n_drawn += n_tokens as u64;
        let token = |idx| TokenId(u32::try_from(self.tokens.word(idx) % self.vocab).unwrap_or(0));
        (first..self.n_drawn).map(token).collect()
    }

    /// Computes for `time` to warm up before anything is measured.
    pub(super) fn wake(&mut self, time: Duration) -> Result<()> {
        let began = clock::instant();
        while began.elapsed() < time {
            self.answer_s()?;
        }
        Ok(())
    }

    /// Returns the seconds per token of an answer.
    pub(super) fn answer_s(&mut self) -> Result<f64> {
        let seconds = self.rounds(N_ANSWER_TOKENS, |run, tokens| {
            for token in tokens {
                let feed = Feed::answer(&mut run.session, token);
                let feed = feed.best(Some(1)).cancelled_by(Some(run.interrupt.flag()));
                let mut feeds = [feed];
                step(&mut feeds, &mut run.output)?;
                feeds[0].outcome()?;
            }
            Ok(())
        })?;
        Ok(seconds / float(N_ANSWER_TOKENS as u64))
    }

    /// Returns the seconds for prompts of two lengths.
    pub(super) fn prompts_s(&mut self, lengths: [usize; 2]) -> Result<[f64; 2]> {
        Ok([self.prompt_s(lengths[0])?, self.prompt_s(lengths[1])?])
    }

    fn prompt_s(&mut self, n_tokens: usize) -> Result<f64> {
        self.rounds(n_tokens, |run, tokens| {
            let Self { session, output, interrupt, .. } = run;
            session.feed_to_choose(tokens, Some(1), &mut |_| interrupt.poll(), output)
        })
    }

    fn rounds(
        &mut self,
        n_tokens: usize,
        round: impl Fn(&mut Self, &[TokenId]) -> Result<()>,
    ) -> Result<f64> {
        let mut seconds = Vec::new();
        let began_all = clock::instant();
        for round_idx in 0..=N_ROUNDS {
            if !seconds.is_empty() && began_all.elapsed() > ROUNDS_TIME {
                break;
            }
            let tokens = self.draw(n_tokens);
            self.session.clear();
            let began = clock::instant();
            round(self, &tokens)?;
            if round_idx > 0 {
                seconds.push(began.elapsed().as_secs_f64());
            }
        }
        Ok(median(&seconds).unwrap_or(f64::INFINITY).max(1e-9))
    }
}
