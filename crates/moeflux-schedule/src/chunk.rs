//! One step of prompts, layer by layer, and answers between its layers.
//!
//! **Invariant:** a prompt that nobody wants any more leaves the step between two layers, unless
//! it is alone and more than half of the work is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moeflux::provider::session::N_ROWS_BESIDE;
use moeflux::{Feed, Result, StepOutput, StepUnderWay};

use crate::answers::{Answers, Context};
use crate::reading::{Pace, Reading};
use crate::scores::Scores;

/// Time that prompts or answers may be ahead of the others.
const AHEAD_MAX: Duration = Duration::from_millis(500);

/// How far prompts are ahead of answers in the engine's time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Balance {
    prompts_ns: i128,
}

impl Balance {
    fn add_prompts(&mut self, spent: Duration) {
        self.add(spent.as_nanos().cast_signed());
    }

    fn add_answers(&mut self, spent: Duration) {
        self.add(-spent.as_nanos().cast_signed());
    }

    fn add(&mut self, spent_ns: i128) {
        let ahead_max_ns = AHEAD_MAX.as_nanos().cast_signed();
        self.prompts_ns = (self.prompts_ns + spent_ns).clamp(-ahead_max_ns, ahead_max_ns);
    }

    fn is_turn_of_answers(self) -> bool {
        self.prompts_ns > 0
    }
}

/// A step of prompts, and what may run between its layers.
pub(crate) struct Chunk<'c, 'e> {
    pub(crate) context: Context<'e>,
    /// Nobody else waits for a prompt to be read.
    pub(crate) is_alone: bool,
    pub(crate) balance: &'c mut Balance,
    pub(crate) answers: &'c mut Answers<'e>,
    pub(crate) output: &'c mut StepOutput,
}

/// What a step of prompts gave: of each what became of it, and its scores where they are wanted.
pub(crate) struct ChunkEnd {
    pub(crate) outcomes: Vec<Result<()>>,
    pub(crate) scores: Vec<Option<Scores>>,
    /// Time that the engine worked for them.
    pub(crate) spent: Duration,
}

/// A prompt in a step, as far as it can be looked at meanwhile.
struct Seen {
    pace: Pace,
    n_rows: usize,
    /// Takes it out of the step.
    is_out: AtomicBool,
}

impl Chunk<'_, '_> {
    /// Runs a step with the next rows of prompts.
    pub(crate) fn run(mut self, chosen: &mut [(&mut Reading, usize)]) -> Result<ChunkEnd> {
        let mut scores: Vec<Option<Scores>> = Vec::new();
        let mut seen = Vec::new();
        for (reading, n_rows) in &*chosen {
            scores.push(self.scores(reading));
            let is_out = AtomicBool::new(false);
            seen.push(Seen { pace: reading.pace(), n_rows: *n_rows, is_out });
        }
        let mut feeds: Vec<Feed<'_>> = Vec::new();
        for ((reading, n_rows), seen) in chosen.iter_mut().zip(&seen) {
            feeds.push(reading.feed(*n_rows).cancelled_by(Some(&seen.is_out)));
        }
        let mut step = StepUnderWay::begin(&mut feeds)?;
        let mut spent = Duration::ZERO;
        let mut has_more = true;
        while has_more {
            let before = self.context.clock.now();
            has_more = step.advance()?;
            let of_layer = self.context.clock.now().saturating_sub(before);
            spent += of_layer;
            let progress = step.progress();
            self.look_at(&seen, (progress.n_layers_done, progress.n_layers));
            self.balance.add_prompts(of_layer);
            self.answer();
        }
        take_logits(&mut step, self.output, &mut scores)?;
        step.commit()?;
        let outcomes = feeds.iter_mut().map(Feed::outcome).collect();
        Ok(ChunkEnd { outcomes, scores, spent })
    }

    fn scores(&self, reading: &Reading) -> Option<Scores> {
        let job = &self.answers.jobs.of(reading.job).job;
        let n_top = job.sampling.n_logprobs.unwrap_or(0);
        let scores = || Scores::new(Arc::clone(&reading.prompt), n_top, reading.n_done() == 0);
        reading.is_scored().then(scores)
    }

    /// Tells how far the prompts are, and takes those out that nobody wants.
    fn look_at(&self, seen: &[Seen], (n_layers_done, n_layers): (usize, usize)) {
        let now = self.context.clock.now();
        let is_nearly_done = self.is_alone && 2 * n_layers_done > n_layers;
        let is_over = self.context.shared.is_cancelled.load(Ordering::Relaxed);
        for Seen { pace, n_rows, is_out } in seen {
            pace.tell(n_rows * n_layers_done / n_layers, now);
            if is_over || pace.is_cancelled() && !is_nearly_done {
                is_out.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Lets answers have as much time as prompts had.
    fn answer(&mut self) {
        let n_rows_max = N_ROWS_BESIDE.min(self.context.engine.n_rows_max());
        while self.balance.is_turn_of_answers() {
            let before = self.context.clock.now();
            if !self.answers.step(n_rows_max) {
                return;
            }
            self.balance.add_answers(self.context.clock.now().saturating_sub(before));
        }
    }
}

/// Takes the wanted logits. Those of a whole prompt are many: only the last ones stay in `output`.
fn take_logits(
    step: &mut StepUnderWay<'_, '_>,
    output: &mut StepOutput,
    scores: &mut [Option<Scores>],
) -> Result<()> {
    output.clear();
    let is_scored = scores.iter().any(Option::is_some);
    let mut n_taken = 0;
    while step.next_logits(output)? {
        if !is_scored {
            continue;
        }
        for (of, logits) in output.iter().skip(n_taken) {
            if let Some(scores) = &mut scores[of.feed_idx] {
                scores.take(of.position.0, logits)?;
            }
        }
        n_taken = output.iter().count();
    }
    Ok(())
}
