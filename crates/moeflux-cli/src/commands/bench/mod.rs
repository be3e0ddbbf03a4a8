//! `moeflux bench`: measures how fast a model processes prompts and generates answers, on random
//! tokens.
//!
//! **Invariant:** tokens come from a seed, never from the model, whose own output would become
//! cyclic and so favour caches. One run of each kind precedes the counted ones; every run begins
//! with the same session: empty, or `--context-tokens` long, and after all experts that fit in
//! memory have been read. Only the tokens' own time counts.

mod report;

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::Args;
use moeflux::provider::backend::TierStats;
use moeflux::provider::experts::stream::{PROBE_BYTES, StreamStats, drive_speed, probe_of};
use moeflux::provider::forward::StepProgress;
use moeflux::provider::model::Headers;
use moeflux::provider::ranks::LinkStats;
use moeflux::provider::spec::ModelSpec;
use moeflux::step::{Feed, StepOutput, Wanted, step};
use moeflux::{Engine, Error, Result, Session, TokenId};
use moeflux_io::{Caching, FREED_BYTES_KEPT, Probe, give_back_freed_memory};

use crate::failure::{CommandFailure, CommandResult};
use crate::model;
use crate::options::args::{IoName, ModelArgs};
use crate::options::ranges;
use crate::output::print;
use crate::output::progress::{Bar, tokens_done};
use crate::random::RandomStream;
use crate::stats::rate;
use crate::stats::tiers;
use crate::system::clock;
use crate::system::interrupt::Interrupt;
use report::{BenchReport, ModelFacts};

/// Number of logits that `generate` requests for greedy sampling: a GPU returns one.
const AS_GREEDY: usize = 1;

/// The arguments of `moeflux bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens per prompt; the last one returns its best logit. 0: no prompts
    #[arg(long, value_name = "P", value_parser = ranges::whole, default_value = "512")]
    #[arg(allow_negative_numbers = true)]
    prompt_tokens: usize,
    /// Tokens per answer; each is a separate step that returns its best logit. 0: no answers
    #[arg(long, value_name = "N", value_parser = ranges::whole, default_value = "64")]
    #[arg(allow_negative_numbers = true)]
    gen_tokens: usize,
    /// Tokens in the session before each run; these are not timed
    #[arg(long, value_name = "C", value_parser = ranges::whole, default_value = "0")]
    #[arg(allow_negative_numbers = true)]
    context_tokens: usize,
    /// Number of answers that are computed together, each in its own session; prompts are read one
    /// at a time
    #[arg(long, value_name = "N", value_parser = ranges::sessions, default_value = "1")]
    sessions: NonZeroUsize,
    /// Number of measured runs, after one warm-up run; speeds are their medians
    #[arg(long, value_name = "R", value_parser = ranges::repeat, default_value = "3")]
    repeat: NonZeroUsize,
    /// Seed for the random tokens
    #[arg(long, value_name = "SEED", value_parser = ranges::seed, default_value = "0")]
    #[arg(allow_negative_numbers = true)]
    seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Duration of each measurement of the drive alone, between runs.
const DRIVE_TIME: Duration = Duration::from_millis(250);

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> CommandResult {
    let interrupt = Interrupt::listen();
    let opened = model::open(&args.model)?;
    let context = context_needed(args, opened.spec())?;
    let facts = ModelFacts::new(opened.blueprint(), opened.checkpoint());
    let probe = probe_of(opened.checkpoint(), args.seed);
    let tokens = RandomTokens::new(args.seed, opened.vocab());
    let n_sessions = args.sessions.get();
    let n_kept = context.saturating_mul(n_sessions);
    // Otherwise memory freed by one run would stay with the process during the next.
    give_back_freed_memory();
    let reservation =
        model::MemoryReservation { beside_bytes: PROBE_BYTES + FREED_BYTES_KEPT, ..n_kept.into() };
    let engine = model::load(opened, &args.model, reservation, &interrupt)?;
    check_sessions(n_sessions, &engine)?;
    model::read_rest(&engine, &interrupt)?;
    let mut bench = BenchRun {
        sessions: (0..n_sessions).map(|_| engine.session(context)).collect::<Result<_>>()?,
        tokens,
        n_context_tokens: args.context_tokens,
        bar: Bar::tokens("measuring", n_tokens_in_all(args)),
        n_done: 0,
        engine: &engine,
        probe,
        caching: if args.model.io == IoName::PageCache {
            Caching::PageCache
        } else {
            Caching::Direct
        },
        drive_speeds: Vec::new(),
        interrupt: &interrupt,
        output: StepOutput::default(),
    };
    bench.fill_context()?;
    let prefill = bench.runs(args.repeat, args.prompt_tokens, BenchRun::prefill)?;
    let n_gen_tokens = args.gen_tokens.saturating_mul(n_sessions);
    let decode = bench.runs(args.repeat, n_gen_tokens, BenchRun::decode)?;
    if interrupt.is_set() && prefill.rates.is_empty() && decode.rates.is_empty() {
        return Err(CommandFailure::interrupted());
    }
    let drive_speeds = std::mem::take(&mut bench.drive_speeds);
    drop(bench);
    engine.end_trace()?;
    let report = BenchReport {
        args,
        facts: &facts,
        device: engine.device_names(),
        n_rows_max: engine.n_rows_of_prompt(args.prompt_tokens),
        budget: args.model.memory,
        prefill,
        decode,
        drive_speeds,
    };
    let text = if args.json { report.json().to_string() } else { report.table() };
    print::line(&text)?;
    if interrupt.is_set() { Err(CommandFailure::interrupted()) } else { Ok(()) }
}

/// Refuses more sessions than fit in a step.
fn check_sessions(n_sessions: usize, engine: &Engine) -> CommandResult {
    let n_rows_max = engine.n_rows_max();
    if n_sessions <= n_rows_max {
        return Ok(());
    }
    Err(CommandFailure::Usage(format!(
        "--sessions {n_sessions} exceeds the {n_rows_max} rows of a step (see --chunk)"
    )))
}

/// Returns the tokens that a session must hold.
fn context_needed(args: &BenchArgs, spec: &ModelSpec) -> CommandResult<usize> {
    let context_max = spec.context_max;
    let n_longest = args.prompt_tokens.max(args.gen_tokens);
    if n_longest == 0 {
        return Err(CommandFailure::Usage(
            "nothing to measure: --prompt-tokens and --gen-tokens are both 0".into(),
        ));
    }
    let needed = args.context_tokens.checked_add(n_longest);
    needed.filter(|needed| *needed <= context_max).ok_or_else(|| {
        CommandFailure::Usage(format!(
            "--context-tokens {} and {n_longest} tokens after them are more than this model \
             takes: {context_max}",
            args.context_tokens
        ))
    })
}

fn n_tokens_in_all(args: &BenchArgs) -> usize {
    // Each part fits the model, so only the number of runs could make the sum too large.
    let n_sessions = args.sessions.get();
    let per_run = args.gen_tokens.saturating_mul(n_sessions).saturating_add(args.prompt_tokens);
    let before = args.context_tokens.saturating_mul(n_sessions);
    per_run.saturating_mul(args.repeat.get() + 1).saturating_add(before)
}

/// An endless sequence of tokens that differs between runs.
struct RandomTokens {
    stream: RandomStream,
    n_drawn: u64,
    vocab: usize,
}

impl RandomTokens {
    fn new(seed: u64, vocab: usize) -> Self {
        Self { stream: RandomStream::new(seed, "bench"), n_drawn: 0, vocab }
    }

    fn draw(&mut self, n: usize) -> Vec<TokenId> {
        let vocab = self.vocab as u64;
        let token = |idx| {
            let id = u32::try_from(self.stream.word(idx) % vocab);
            TokenId(id.expect("a vocabulary's ids are 32-bit numbers"))
        };
        let tokens = (self.n_drawn..).map(token).take(n).collect();
        self.n_drawn += n as u64;
        tokens
    }
}

/// The benchmark while it runs.
struct BenchRun<'a> {
    /// For answers that are computed together; prompts use the first.
    sessions: Vec<Session>,
    tokens: RandomTokens,
    n_context_tokens: usize,
    bar: Bar,
    n_done: u64,
    engine: &'a Engine,
    probe: Probe,
    caching: Caching,
    /// Bytes per second of the drive alone, between runs.
    drive_speeds: Vec<f64>,
    interrupt: &'a Interrupt,
    output: StepOutput,
}

/// The counted runs of one kind.
#[derive(Debug, Default)]
struct Runs {
    /// Tokens per second of each run.
    rates: Vec<f64>,
    /// Streaming statistics over all runs.
    stream: Option<StreamStats>,
    /// Placement of experts over all runs, up to the last update of the counts.
    tiers: Option<TierStats>,
    /// Statistics of ranks over all runs.
    ranks: Option<LinkStats>,
    took: Duration,
    n_tokens: usize,
}

impl BenchRun<'_> {
    /// Fills the context that every run starts from; computed only once, because it may be long.
    fn fill_context(&mut self) -> Result<()> {
        if self.n_context_tokens == 0 {
            return Ok(());
        }
        for session_idx in 0..self.sessions.len() {
            let tokens = self.tokens.draw(self.n_context_tokens);
            self.feed(session_idx, &tokens, None)?;
            self.sessions[session_idx].checkpoint(self.n_context_tokens)?;
        }
        Ok(())
    }

    fn rewind(&mut self) -> Result<()> {
        for session in &mut self.sessions {
            match self.n_context_tokens {
                0 => session.clear(),
                position => session.restore(position)?,
            }
        }
        Ok(())
    }

    /// Measures the drive without other load: before and after runs, so that both cover the same
    /// period.
    fn measure_drive(&mut self) -> Result<()> {
        if self.engine.stream_stats().is_some() {
            let speed = drive_speed(&mut self.probe, self.caching, DRIVE_TIME)?;
            self.drive_speeds.push(speed);
        }
        Ok(())
    }

    /// Makes the counted runs; none if there are no tokens. After Ctrl-C, completed runs are kept.
    fn runs(
        &mut self,
        repeat: NonZeroUsize,
        n_tokens: usize,
        run: fn(&mut Self, &[TokenId]) -> Result<()>,
    ) -> Result<Runs> {
        let mut runs = Runs::default();
        if n_tokens == 0 || self.interrupt.is_set() {
            return Ok(runs);
        }
        let (mut before, mut tiers_before, mut ranks_before) = (None, None, None);
        for run_idx in 0..=repeat.get() {
            self.rewind()?;
            let tokens = self.tokens.draw(n_tokens);
            if run_idx > 0 {
                self.measure_drive()?;
                before = before.or_else(|| self.engine.stream_stats());
                tiers_before = tiers_before.or_else(|| self.engine.tier_stats());
                ranks_before = ranks_before.or_else(|| self.engine.rank_stats());
            }
            let start = clock::instant();
            match run(self, &tokens) {
                Err(Error::Cancelled) => break,
                done => done?,
            }
            let elapsed = start.elapsed();
            if run_idx > 0 {
                runs.rates.extend(rate(n_tokens, elapsed));
                runs.took += elapsed;
                runs.n_tokens += n_tokens;
            }
        }
        self.measure_drive()?;
        let after = self.engine.stream_stats();
        runs.stream = after.zip(before).map(|(after, before)| after.since(&before));
        let tiers = self.engine.tier_stats().zip(tiers_before);
        runs.tiers = tiers.map(|(after, before)| tiers::since(&after, &before));
        let ranks = self.engine.rank_stats().zip(ranks_before);
        runs.ranks = ranks.map(|(after, before)| after.since(&before));
        Ok(runs)
    }

    fn prefill(&mut self, tokens: &[TokenId]) -> Result<()> {
        self.feed(0, tokens, Some(AS_GREEDY))
    }

    /// Feeds a token of each session in every step.
    fn decode(&mut self, tokens: &[TokenId]) -> Result<()> {
        for tokens in tokens.chunks(self.sessions.len()) {
            let Self { sessions, output, interrupt, .. } = self;
            let feed = |(session, token)| {
                let feed = Feed::answer(session, token).best(Some(AS_GREEDY));
                feed.cancelled_by(Some(interrupt.flag()))
            };
            let mut feeds: Vec<Feed<'_>> = sessions.iter_mut().zip(tokens).map(feed).collect();
            step(&mut feeds, output)?;
            feeds.iter_mut().try_for_each(Feed::outcome)?;
            self.n_done += tokens.len() as u64;
            self.bar.set(self.n_done);
        }
        Ok(())
    }

    /// Feeds tokens. Requests the last token's `n_best` best logits, if any.
    fn feed(
        &mut self,
        session_idx: usize,
        tokens: &[TokenId],
        n_best: Option<usize>,
    ) -> Result<()> {
        let Self { sessions, bar, n_done, interrupt, output, .. } = self;
        let session = &mut sessions[session_idx];
        let watch = &mut |progress: StepProgress| {
            bar.set(*n_done + tokens_done(progress));
            interrupt.poll()
        };
        match n_best {
            None => session.feed(tokens, Wanted::None, watch, &mut |_, _| Ok(()))?,
            Some(_) => session.feed_to_choose(tokens, n_best, watch, output)?,
        }
        *n_done += tokens.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_follow_from_the_seed_and_no_two_draws_are_alike() {
        let mut tokens = RandomTokens::new(7, 1000);
        let (first, second) = (tokens.draw(50), tokens.draw(50));
        assert_ne!(first, second);
        assert!(first.iter().chain(&second).all(|token| token.0 < 1000));
        assert_eq!(RandomTokens::new(7, 1000).draw(100), [first.clone(), second].concat());
        assert_ne!(RandomTokens::new(8, 1000).draw(50), first);
        assert_eq!(RandomTokens::new(7, 1).draw(3), [TokenId(0); 3]);
    }
}
