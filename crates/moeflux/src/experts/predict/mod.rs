//! Looking ahead: how far down the next router's ranking to read, and whether at all.
//!
//! The caller applies the next layer's own router to the residual stream, before and behind this
//! layer's experts, and hands over the experts by rank. Each rank's worth is learned from what the
//! layer then demands; the whole is judged by the waits it avoided and the reads it wasted, and
//! stops itself where that is no gain.
//! **Invariant:** pure and deterministic: all times are measured elsewhere and come in as numbers;
//! nothing is allocated after the first steps. Knows ranks, never slots or files.
//!
//! The experts of the token before are right for a quarter to a third: known to be a loss. The next
//! router is right for 88 % of the experts of the model in the box (heldout.txt), and names 97 %
//! among half again as many.

use crate::ids::{ExpertIdx, LayerIdx};

/// Steps that are judged together: a token's luck is no reason to stop.
const WINDOW_STEPS: u32 = 32;

/// Steps until it is tried again after it was no gain; doubled each time it still is none.
const PAUSE_STEPS_MIN: u32 = 8 * WINDOW_STEPS;
const PAUSE_STEPS_MAX: u32 = 512 * WINDOW_STEPS;

/// One observation moves a rank's precision by this share: about as many are remembered.
const PRECISION_STEP: f32 = 1.0 / 64.0;

/// What nobody has seen yet counts as even chances, so that it is tried.
const PRECISION_BEFORE: f32 = 0.5;

/// Rarer than this a read is heat, even on a drive with nothing else to do.
const PRECISION_MIN: f32 = 0.125;

/// What looking ahead is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookAheadShape {
    /// Layers of the model, dense ones too.
    pub n_layers: usize,
    /// Experts of the largest layer.
    pub n_experts_max: usize,
    /// Ranks that a router names for each row: more than it chooses, at most all.
    pub n_ranks: usize,
}

/// What a step's guesses came to, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCost {
    /// Guessed experts that were in memory when they were asked for.
    pub n_ready: u64,
    /// Guessed experts that were on their way then.
    pub n_on_their_way: u64,
    /// Guessed experts that left unused.
    pub n_wasted: u64,
    /// Time of one expert at the rate at which the drive delivers them.
    pub record_ns: u64,
    /// Time that asking the next routers took.
    pub ask_ns: u64,
    /// Time for which reads on demand stood behind guesses.
    pub delay_ns: u64,
    /// Time for which computing waited for reads.
    pub wait_ns: u64,
    /// Time of the step.
    pub step_ns: u64,
}

/// When a guess is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// While the experts of the layer before are on their way.
    Early,
    /// When that layer is done.
    Late,
}

/// How good the named experts were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Experts that were asked for in layers with a guess.
    pub n_demanded: u64,
    /// Experts that were named beforehand.
    pub n_named: u64,
    /// Of these, asked for.
    pub n_right: u64,
}

impl Quality {
    /// Share of the demanded that were named.
    #[must_use]
    pub fn recall(&self) -> Option<f64> {
        share(self.n_right, self.n_demanded)
    }

    /// Share of the named that were demanded.
    #[must_use]
    pub fn precision(&self) -> Option<f64> {
        share(self.n_right, self.n_named)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts, for display")]
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The rest of a window.
    On {
        n_steps_left: u32,
    },
    Off {
        n_steps_left: u32,
    },
}

/// Decides what is read ahead.
#[derive(Debug)]
pub(crate) struct LookAhead {
    shape: LookAheadShape,
    mode: Mode,
    /// Of the next pause.
    pause_steps: u32,
    /// By [`Stage`].
    stages: [Ranking; 2],
    /// Share of a step's time spent waiting, in the last window: so much of a wasted read delays
    /// one that is needed.
    busy_share: f32,
    ranked_layer: Option<LayerIdx>,
    n_named: usize,
    /// Per expert: the last round that named it, and the last that asked for it.
    named_in: Vec<u64>,
    demanded_in: Vec<u64>,
    round: u64,
    window: Window,
    /// Of the window before.
    quality: Quality,
}

/// What a stage's guesses are worth.
#[derive(Debug)]
struct Ranking {
    /// `[n_layers, n_ranks]`: share of the absent experts at a rank that were then asked for. Those
    /// in memory are there because they are asked for often: with them in the sum a rank that is
    /// right 70 times of 100 hides that 3 of 5 of its reads are wasted.
    precision: Vec<f32>,
    /// What the next layer's router named, and whether it was absent: `[n_rows, n_ranks]`.
    named: Vec<(ExpertIdx, bool)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    quality: Quality,
    gain_ns: i128,
    wait_ns: u64,
    step_ns: u64,
}

impl LookAhead {
    /// Begins with a window of trying.
    ///
    /// # Panics
    ///
    /// If a router names nothing.
    #[must_use]
    pub(crate) fn new(shape: LookAheadShape) -> Self {
        let LookAheadShape { n_layers, n_experts_max, n_ranks } = shape;
        assert!(n_ranks > 0, "a router names experts");
        Self {
            shape,
            mode: Mode::On { n_steps_left: WINDOW_STEPS },
            pause_steps: PAUSE_STEPS_MIN,
            stages: [(); 2].map(|()| Ranking {
                precision: vec![PRECISION_BEFORE; n_layers * n_ranks],
                named: Vec::new(),
            }),
            busy_share: PRECISION_BEFORE,
            ranked_layer: None,
            n_named: 0,
            named_in: vec![0; n_experts_max],
            demanded_in: vec![0; n_experts_max],
            round: 0,
            window: Window::default(),
            quality: Quality::default(),
        }
    }

    /// Ranks that the next router should name for each row; 0: it need not be run.
    #[must_use]
    pub(crate) fn n_ranks(&self) -> usize {
        match self.mode {
            Mode::On { .. } => self.shape.n_ranks,
            Mode::Off { .. } => 0,
        }
    }

    /// From what `layer`'s router would choose, `[n_rows, n_ranks]` with the most likely first in
    /// each row, the experts worth a read, most likely first, each once; those in memory too, so
    /// that they stay.
    ///
    /// # Panics
    ///
    /// If these are not whole rows.
    pub(crate) fn choose(
        &mut self,
        (layer, stage): (LayerIdx, Stage),
        ranked: &[ExpertIdx],
        is_absent: &dyn Fn(ExpertIdx) -> bool,
        likely: &mut Vec<ExpertIdx>,
    ) {
        let n_ranks = self.shape.n_ranks;
        assert!(ranked.len().is_multiple_of(n_ranks), "whole rows");
        likely.clear();
        if self.ranked_layer.replace(layer) != Some(layer) {
            self.stages.iter_mut().for_each(|it| it.named.clear());
        }
        self.round += 1;
        let precision_min = self.precision_min();
        let Ranking { precision, named } = &mut self.stages[stage as usize];
        named.clear();
        named.extend(ranked.iter().map(|&expert| (expert, is_absent(expert))));
        for rank in 0..n_ranks {
            if precision[layer.0 * n_ranks + rank] < precision_min {
                continue;
            }
            for row in ranked.chunks_exact(n_ranks) {
                let named_in = &mut self.named_in[row[rank].0];
                if std::mem::replace(named_in, self.round) != self.round {
                    likely.push(row[rank]);
                }
            }
        }
        self.n_named = likely.len();
    }

    /// What a layer then asked for, ascending. Layers without a guess are passed over.
    pub(crate) fn demanded(&mut self, layer: LayerIdx, experts: &[ExpertIdx]) {
        if self.ranked_layer.take() != Some(layer) {
            return;
        }
        let quality = &mut self.window.quality;
        quality.n_named += self.n_named as u64;
        quality.n_demanded += experts.len() as u64;
        for expert in experts {
            self.demanded_in[expert.0] = self.round;
            quality.n_right += u64::from(self.named_in[expert.0] == self.round);
        }
        let of_layer = layer.0 * self.shape.n_ranks;
        for Ranking { precision, named } in &mut self.stages {
            for (place, (expert, is_absent)) in named.iter().enumerate() {
                if *is_absent {
                    let was_right = self.demanded_in[expert.0] == self.round;
                    let precision = &mut precision[of_layer + place % self.shape.n_ranks];
                    *precision += (f32::from(u8::from(was_right)) - *precision) * PRECISION_STEP;
                }
            }
        }
    }

    /// A step is over. At the end of a window it goes on if it was a gain.
    pub(crate) fn end_step(&mut self, cost: &StepCost) {
        self.ranked_layer = None;
        self.mode = match self.mode {
            Mode::Off { n_steps_left: 0 | 1 } => Mode::On { n_steps_left: WINDOW_STEPS },
            Mode::Off { n_steps_left } => Mode::Off { n_steps_left: n_steps_left - 1 },
            Mode::On { n_steps_left } => {
                self.window.add(cost);
                if n_steps_left > 1 {
                    Mode::On { n_steps_left: n_steps_left - 1 }
                } else {
                    self.judge()
                }
            }
        };
    }

    /// Whether the next router is asked now.
    #[must_use]
    pub(crate) fn is_on(&self) -> bool {
        self.n_ranks() > 0
    }

    /// Recall and precision in the last whole window.
    #[must_use]
    pub(crate) fn quality(&self) -> Quality {
        self.quality
    }

    fn judge(&mut self) -> Mode {
        let window = std::mem::take(&mut self.window);
        self.quality = window.quality;
        self.busy_share = window.busy_share();
        if window.gain_ns > 0 {
            self.pause_steps = PAUSE_STEPS_MIN;
            return Mode::On { n_steps_left: WINDOW_STEPS };
        }
        let n_steps_left = self.pause_steps;
        self.pause_steps = (2 * self.pause_steps).min(PAUSE_STEPS_MAX);
        Mode::Off { n_steps_left }
    }

    /// Below this a read costs more than it may save: right it saves a record's time, wrong it
    /// costs as much for the share of the time in which others wait for the drive.
    fn precision_min(&self) -> f32 {
        (self.busy_share / (1.0 + self.busy_share)).max(PRECISION_MIN)
    }
}

impl Window {
    fn add(&mut self, cost: &StepCost) {
        let of = |n_records: u64| i128::from(cost.record_ns).saturating_mul(n_records.into());
        // Half of a read was done, as a mean, when the demand came.
        let avoided_ns = of(cost.n_ready).saturating_add(of(cost.n_on_their_way) / 2);
        let wait_ns = i128::from(cost.wait_ns.min(cost.step_ns));
        let step_ns = i128::from(cost.step_ns.max(1));
        let wasted_ns = of(cost.n_wasted).saturating_mul(wait_ns) / step_ns;
        let paid_ns = i128::from(cost.ask_ns) + i128::from(cost.delay_ns);
        let gain_ns = avoided_ns.saturating_sub(wasted_ns).saturating_sub(paid_ns);
        self.gain_ns = self.gain_ns.saturating_add(gain_ns);
        self.wait_ns = self.wait_ns.saturating_add(cost.wait_ns);
        self.step_ns = self.step_ns.saturating_add(cost.step_ns);
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "a share of two times, to a few digits"
    )]
    fn busy_share(&self) -> f32 {
        (self.wait_ns as f64 / self.step_ns.max(1) as f64).min(1.0) as f32
    }
}

#[cfg(test)]
mod tests;
