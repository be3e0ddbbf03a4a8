//! Lookahead: how many ranks of the next router to prefetch, and whether to prefetch at all.
//!
//! The caller applies the next layer's own router to the residual stream, before and after this
//! layer's experts, and passes on the experts by rank. The precision of each rank is learnt from
//! what the layer then demands. Lookahead as a whole is judged by the waits it avoided and the
//! reads it wasted, and disables itself where it is no gain. **Invariant:** pure and deterministic:
//! times are measured elsewhere and passed in as numbers; nothing is allocated after the first
//! steps. This module knows ranks, never slots or files.
//!
//! Guessing the experts of the previous token is right for a quarter to a third, which is a loss.
//! The next router is right for 88 % of the experts of the bundled model (heldout.txt), and 97 %
//! are among half again as many ranks.

use crate::ids::{ExpertIdx, LayerIdx};

/// Steps that are judged together, so that one token's chance does not decide.
const WINDOW_STEPS: u32 = 32;

/// Steps of the first pause after lookahead was no gain; doubled each time it still is none.
const PAUSE_STEPS_MIN: u32 = 8 * WINDOW_STEPS;
const PAUSE_STEPS_MAX: u32 = 512 * WINDOW_STEPS;

/// Weight of one observation in a rank's precision: about 64 observations are remembered.
const PRECISION_STEP: f32 = 1.0 / 64.0;

/// Initial precision of a rank: even chances, so that it is tried.
const PRECISION_BEFORE: f32 = 0.5;

/// Lower bound on precision: below it a read wastes power even on an idle drive.
const PRECISION_MIN: f32 = 0.125;

/// The sizes that lookahead is created for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookAheadShape {
    /// Layers of the model, including dense ones.
    pub n_layers: usize,
    /// Experts of the largest layer.
    pub n_experts_max: usize,
    /// Ranks that a router names for each row: more than it chooses, at most all.
    pub n_ranks: usize,
}

/// Measured results of a step's guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCost {
    /// Guessed experts that were in memory when they were requested.
    pub n_ready: u64,
    /// Guessed experts whose read was under way when they were requested.
    pub n_on_their_way: u64,
    /// Guessed experts that were read and then not requested.
    pub n_wasted: u64,
    /// Time to read one expert at the drive's present rate.
    pub record_ns: u64,
    /// Time spent running the next routers.
    pub ask_ns: u64,
    /// Time for which demanded reads waited behind guesses.
    pub delay_ns: u64,
    /// Time for which computing waited for reads.
    pub wait_ns: u64,
    /// Time of the step.
    pub step_ns: u64,
}

/// When a guess is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuessStage {
    /// While the experts of the previous layer are being read.
    Early,
    /// After the previous layer.
    Late,
}

/// Recall and precision of the named experts, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Experts requested in layers with a guess.
    pub n_demanded: u64,
    /// Experts named in advance.
    pub n_named: u64,
    /// Named experts that were then requested.
    pub n_right: u64,
}

impl Quality {
    /// Returns the share of requested experts that were named.
    #[must_use]
    pub fn recall(&self) -> Option<f64> {
        share(self.n_right, self.n_demanded)
    }

    /// Returns the share of named experts that were requested.
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
enum LookAheadMode {
    /// Within a window.
    On {
        n_steps_left: u32,
    },
    Off {
        n_steps_left: u32,
    },
}

/// Decides which experts to prefetch.
#[derive(Debug)]
pub(crate) struct LookAhead {
    shape: LookAheadShape,
    mode: LookAheadMode,
    /// Steps of the next pause.
    pause_steps: u32,
    /// By [`GuessStage`].
    stages: [StagePrecision; 2],
    /// Share of the steps' time spent waiting, in the last window. This share of a wasted read
    /// delays one that is needed.
    busy_share: f32,
    ranked_layer: Option<LayerIdx>,
    n_named: usize,
    /// Per expert: the last round that named it, and the last that requested it.
    named_in: Vec<u64>,
    demanded_in: Vec<u64>,
    round: u64,
    window: StepWindow,
    /// Quality of the previous window.
    quality: Quality,
}

/// Precision of a stage's guesses.
#[derive(Debug)]
struct StagePrecision {
    /// `[n_layers, n_ranks]`: share of the absent experts at a rank that were then requested.
    /// Experts in memory are excluded: they are there because they are requested often, so
    /// including them would let a rank that is right 70 times of 100 hide that 3 of 5 of its reads
    /// are wasted.
    precision: Vec<f32>,
    /// `[n_rows, n_ranks]`: the experts that the next layer's router named, and whether each was
    /// absent.
    named: Vec<(ExpertIdx, bool)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct StepWindow {
    quality: Quality,
    gain_ns: i128,
    wait_ns: u64,
    step_ns: u64,
}

impl LookAhead {
    /// Creates lookahead that is on for a first window.
    ///
    /// # Panics
    ///
    /// If a router names no experts.
    #[must_use]
    pub(crate) fn new(shape: LookAheadShape) -> Self {
        let LookAheadShape { n_layers, n_experts_max, n_ranks } = shape;
        assert!(n_ranks > 0, "a router names experts");
        Self {
            shape,
            mode: LookAheadMode::On { n_steps_left: WINDOW_STEPS },
            pause_steps: PAUSE_STEPS_MIN,
            stages: [(); 2].map(|()| StagePrecision {
                precision: vec![PRECISION_BEFORE; n_layers * n_ranks],
                named: Vec::new(),
            }),
            busy_share: PRECISION_BEFORE,
            ranked_layer: None,
            n_named: 0,
            named_in: vec![0; n_experts_max],
            demanded_in: vec![0; n_experts_max],
            round: 0,
            window: StepWindow::default(),
            quality: Quality::default(),
        }
    }

    /// Returns the ranks that the next router should name for each row; 0 if it need not be run.
    #[must_use]
    pub(crate) fn n_ranks(&self) -> usize {
        match self.mode {
            LookAheadMode::On { .. } => self.shape.n_ranks,
            LookAheadMode::Off { .. } => 0,
        }
    }

    /// Selects the experts worth a read from `ranked`, the choices of `layer`'s router. These are
    /// `[n_rows, n_ranks]`, most likely first in each row. `likely` receives each expert once, most
    /// likely first, including those in memory, so that they stay.
    ///
    /// # Panics
    ///
    /// If `ranked` does not consist of whole rows.
    pub(crate) fn choose(
        &mut self,
        (layer, stage): (LayerIdx, GuessStage),
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
        let StagePrecision { precision, named } = &mut self.stages[stage as usize];
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

    /// Records the experts that a layer then requested, ascending. Ignores layers without a guess.
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
        for StagePrecision { precision, named } in &mut self.stages {
            for (place, (expert, is_absent)) in named.iter().enumerate() {
                if *is_absent {
                    let was_right = self.demanded_in[expert.0] == self.round;
                    let precision = &mut precision[of_layer + place % self.shape.n_ranks];
                    *precision += (f32::from(u8::from(was_right)) - *precision) * PRECISION_STEP;
                }
            }
        }
    }

    /// Ends a step. At the end of a window, lookahead stays on if it was a gain.
    pub(crate) fn end_step(&mut self, cost: &StepCost) {
        self.ranked_layer = None;
        self.mode = match self.mode {
            LookAheadMode::Off { n_steps_left: 0 | 1 } => {
                LookAheadMode::On { n_steps_left: WINDOW_STEPS }
            }
            LookAheadMode::Off { n_steps_left } => {
                LookAheadMode::Off { n_steps_left: n_steps_left - 1 }
            }
            LookAheadMode::On { n_steps_left } => {
                self.window.add(cost);
                if n_steps_left > 1 {
                    LookAheadMode::On { n_steps_left: n_steps_left - 1 }
                } else {
                    self.judge()
                }
            }
        };
    }

    /// Returns whether the next router is to be run now.
    #[must_use]
    pub(crate) fn is_on(&self) -> bool {
        self.n_ranks() > 0
    }

    /// Returns recall and precision of the last whole window.
    #[must_use]
    pub(crate) fn quality(&self) -> Quality {
        self.quality
    }

    fn judge(&mut self) -> LookAheadMode {
        let window = std::mem::take(&mut self.window);
        self.quality = window.quality;
        self.busy_share = window.busy_share();
        if window.gain_ns > 0 {
            self.pause_steps = PAUSE_STEPS_MIN;
            return LookAheadMode::On { n_steps_left: WINDOW_STEPS };
        }
        let n_steps_left = self.pause_steps;
        self.pause_steps = (2 * self.pause_steps).min(PAUSE_STEPS_MAX);
        LookAheadMode::Off { n_steps_left }
    }

    /// Returns the precision below which a read costs more than it may save. A right read saves the
    /// time of a record; a wrong one costs as much, for the share of time in which others wait.
    fn precision_min(&self) -> f32 {
        (self.busy_share / (1.0 + self.busy_share)).max(PRECISION_MIN)
    }
}

impl StepWindow {
    fn add(&mut self, cost: &StepCost) {
        let of = |n_records: u64| i128::from(cost.record_ns).saturating_mul(n_records.into());
        // On average, half of the read was done when the demand came.
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
