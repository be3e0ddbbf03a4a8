//! One step of prompts, layer by layer, and other work between its layers.
//!
//! **Invariant:** a cancelled prompt leaves the step between two layers, unless it is alone and
//! more than half of the work is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moeflux::Result;
use moeflux::step::{Feed, StepOutput, StepUnderWay};

use crate::answers::Context;
use crate::reading::{Pace, Reading};
use crate::scores::Scores;

/// Upper bound on the time that prompts or answers may be ahead of each other.
const AHEAD_MAX: Duration = Duration::from_millis(500);

/// How far prompts are ahead of answers in engine time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Balance {
    prompts_ns: i128,
}

impl Balance {
    pub(crate) fn add_prompts(&mut self, spent: Duration) {
        self.add(spent.as_nanos().cast_signed());
    }

    pub(crate) fn add_answers(&mut self, spent: Duration) {
        self.add(-spent.as_nanos().cast_signed());
    }

    fn add(&mut self, spent_ns: i128) {
        let ahead_max_ns = AHEAD_MAX.as_nanos().cast_signed();
        self.prompts_ns = (self.prompts_ns + spent_ns).clamp(-ahead_max_ns, ahead_max_ns);
    }

    pub(crate) fn is_turn_of_answers(self) -> bool {
        self.prompts_ns > 0
    }
}

/// A step of prompts, and the work that runs between its layers.
pub(crate) struct Chunk<'c, 'e> {
    pub(crate) context: Context<'e>,
    pub(crate) output: &'c mut StepOutput,
    /// No other prompt waits to be read.
    pub(crate) is_alone: bool,
    /// Receives the duration of a layer and does other work. Returns whether still no other prompt
    /// waits.
    pub(crate) between_layers: &'c mut dyn FnMut(Duration) -> bool,
}

/// The results of a step of prompts: for each prompt its outcome, and its scores where requested.
pub(crate) struct ChunkEnd {
    pub(crate) outcomes: Vec<Result<()>>,
    pub(crate) scores: Vec<Option<Scores>>,
    /// Engine time that the step took.
    pub(crate) spent: Duration,
}

/// The parts of a prompt that stay visible while its session is in a step.
struct Seen {
    pace: Pace,
    n_rows: usize,
    /// Takes the prompt out of the step.
    is_out: AtomicBool,
}

impl Chunk<'_, '_> {
    /// Runs a step with the next rows of the prompts; scores some of them.
    pub(crate) fn run(
        self,
        chosen: &mut [(Reading, usize)],
        mut scores: Vec<Option<Scores>>,
    ) -> Result<ChunkEnd> {
        let mut seen = Vec::new();
        for (reading, n_rows) in &*chosen {
            let is_out = AtomicBool::new(false);
            seen.push(Seen { pace: reading.pace(), n_rows: *n_rows, is_out });
        }
        let mut feeds: Vec<Feed<'_>> = Vec::new();
        for ((reading, n_rows), seen) in chosen.iter_mut().zip(&seen) {
            feeds.push(reading.feed(*n_rows).cancelled_by(Some(&seen.is_out)));
        }
        let mut step = StepUnderWay::begin(&mut feeds)?;
        let mut spent = Duration::ZERO;
        let (mut has_more, mut is_alone) = (true, self.is_alone);
        while has_more {
            let before = self.context.clock.now();
            has_more = step.advance()?;
            let of_layer = self.context.clock.now().saturating_sub(before);
            spent += of_layer;
            let progress = step.progress();
            self.look_at(&seen, (progress.n_layers_done, progress.n_layers), is_alone);
            is_alone = (self.between_layers)(of_layer);
        }
        take_logits(&mut step, self.output, &mut scores)?;
        step.commit()?;
        let outcomes = feeds.iter_mut().map(Feed::outcome).collect();
        Ok(ChunkEnd { outcomes, scores, spent })
    }

    /// Reports the progress of the prompts and takes cancelled ones out of the step.
    fn look_at(&self, seen: &[Seen], (n_layers_done, n_layers): (usize, usize), is_alone: bool) {
        let now = self.context.clock.now();
        let is_nearly_done = is_alone && 2 * n_layers_done > n_layers;
        let is_over = self.context.shared.is_cancelled.load(Ordering::Relaxed);
        for Seen { pace, n_rows, is_out } in seen {
            pace.tell(n_rows * n_layers_done / n_layers, now);
            if is_over || pace.is_cancelled() && !is_nearly_done {
                is_out.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Scores the requested logits. Those of a whole prompt are large: `output` keeps only the last.
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
