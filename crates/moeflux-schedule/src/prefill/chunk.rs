//! One step of prompts, layer by layer, and other work between its layers.
//!
//! **Invariant:** a cancelled prompt leaves the step between two layers, unless it is alone and
//! more than half of the work is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moeflux::Result;
use moeflux::step::{Feed, StepOutput, StepUnderWay};

use crate::answers::Context;
use crate::prefill::scores::PromptScorer;
use crate::prefill::{Prefill, PrefillProgress};

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
pub(crate) struct PrefillChunk<'c, 'e> {
    pub(crate) context: Context<'e>,
    pub(crate) output: &'c mut StepOutput,
    /// No other prompt waits to be read.
    pub(crate) is_alone: bool,
    /// Receives the duration of a layer and does other work. Returns whether still no other prompt
    /// waits.
    pub(crate) between_layers: &'c mut dyn FnMut(Duration) -> bool,
}

/// The results of a step of prompts: for each prompt its outcome, and its scores where requested.
pub(crate) struct ChunkOutcome {
    pub(crate) outcomes: Vec<Result<()>>,
    pub(crate) scores: Vec<Option<PromptScorer>>,
    /// Engine time that the step took.
    pub(crate) spent: Duration,
}

/// A prompt of the step: what stays visible of it while its session is in the step.
struct ChunkMember {
    progress_handle: PrefillProgress,
    n_rows: usize,
    /// Takes the prompt out of the step.
    is_removed: AtomicBool,
}

impl PrefillChunk<'_, '_> {
    /// Runs a step with the next rows of the prompts; scores some of them.
    pub(crate) fn run(
        self,
        chosen: &mut [(Prefill, usize)],
        mut scores: Vec<Option<PromptScorer>>,
    ) -> Result<ChunkOutcome> {
        let mut members = Vec::new();
        for (prefill, n_rows) in &*chosen {
            let is_removed = AtomicBool::new(false);
            members.push(ChunkMember {
                progress_handle: prefill.progress_handle(),
                n_rows: *n_rows,
                is_removed,
            });
        }
        let mut feeds: Vec<Feed<'_>> = Vec::new();
        for ((prefill, n_rows), member) in chosen.iter_mut().zip(&members) {
            feeds.push(prefill.feed(*n_rows).cancelled_by(Some(&member.is_removed)));
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
            self.update_members(&members, (progress.n_layers_done, progress.n_layers), is_alone);
            is_alone = (self.between_layers)(of_layer);
        }
        take_logits(&mut step, self.output, &mut scores)?;
        step.commit()?;
        let outcomes = feeds.iter_mut().map(Feed::outcome).collect();
        Ok(ChunkOutcome { outcomes, scores, spent })
    }

    /// Reports the progress of the prompts and takes cancelled ones out of the step.
    fn update_members(
        &self,
        members: &[ChunkMember],
        (n_layers_done, n_layers): (usize, usize),
        is_alone: bool,
    ) {
        let now = self.context.clock.now();
        let is_nearly_done = is_alone && 2 * n_layers_done > n_layers;
        let is_over = self.context.shared.is_cancelled.load(Ordering::Relaxed);
        for ChunkMember { progress_handle, n_rows, is_removed } in members {
            progress_handle.report(n_rows * n_layers_done / n_layers, now);
            if is_over || progress_handle.is_cancelled() && !is_nearly_done {
                is_removed.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Scores the requested logits. Those of a whole prompt are large: `output` keeps only the last.
fn take_logits(
    step: &mut StepUnderWay<'_, '_>,
    output: &mut StepOutput,
    scores: &mut [Option<PromptScorer>],
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
