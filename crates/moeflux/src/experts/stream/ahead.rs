//! Reads experts before they are requested: for single tokens, those that the next layer's router
//! would choose now; for a prompt, all of the next layer.
//!
//! The next router runs twice: while a layer's experts are on their way, so that the drive has work
//! when the last of them has arrived, and again after the layer, when it is more accurate.
//! **Invariant:** guesses begin after every demand has begun, and take slots that a demand would
//! not miss; those that turn out wrong are cancelled as soon as that is known.

use std::time::Duration;

use moeflux_io::{LoadPriority, N_JOBS_USUAL, SlotState, Wait};

use crate::error::Result;
use crate::experts::predict::{GuessStage, LookAhead};
use crate::experts::stream::stats::StepMeter;
use crate::experts::stream::{ArrivalOrder, ExpertStream, PrefetchState, job_of};
use crate::experts::table::GuessedExpert;
use crate::ids::{ExpertIdx, LayerIdx};

/// Choices per expert at which a layer's rows together need nearly all experts: with 3, one expert
/// in 20 is left out.
const N_CHOICES_PER_EXPERT: usize = 3;

/// Guesses in flight take at most one slot in this many; the other slots are for demands.
const GUESS_SHARE: usize = 8;

impl PrefetchState {
    pub(super) fn new(is_allowed: bool, look_ahead: Option<LookAhead>) -> Self {
        Self {
            is_allowed,
            look_ahead: look_ahead.filter(|_| is_allowed),
            likely: Vec::with_capacity(N_JOBS_USUAL),
            guesses: Vec::with_capacity(N_JOBS_USUAL),
            begun: Vec::with_capacity(N_JOBS_USUAL),
            ranked: Vec::new(),
            weighed: Vec::new(),
            begun_layer: LayerIdx(0),
            guessed_at: None,
            gap: Duration::ZERO,
            step: StepMeter::default(),
        }
    }
}

impl ExpertStream {
    /// Returns whether the next layer's router should be run now.
    pub(in crate::experts) fn needs_guess(&mut self, is_small: bool) -> bool {
        let is_on = self.prefetch.look_ahead.as_ref().is_some_and(LookAhead::is_on);
        self.prefetch.step.asked_at = self.clock.now();
        is_on && is_small
    }

    /// Begins to read the experts that `layer` is likely to request: those of each row, with their
    /// weights.
    pub(in crate::experts) fn guess(
        &mut self,
        (layer, stage): (LayerIdx, GuessStage),
        (experts, weights): (&[ExpertIdx], &[f32]),
    ) -> Result<()> {
        let Self { prefetch, table, device_cache, .. } = self;
        let PrefetchState { look_ahead: Some(look_ahead), likely, ranked, weighed, .. } = prefetch
        else {
            return Ok(());
        };
        ranked.clear();
        let n_ranks = look_ahead.n_ranks().max(1);
        for (experts, weights) in experts.chunks(n_ranks).zip(weights.chunks(n_ranks)) {
            weighed.clear();
            weighed.extend(experts.iter().copied().zip(weights.iter().copied()));
            weighed.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            ranked.extend(weighed.iter().map(|(expert, _)| *expert));
        }
        look_ahead.choose(
            (layer, stage),
            ranked,
            &|expert| table.slot_of(layer, expert).is_none() && !device_cache.has(layer, expert),
            likely,
        );
        likely.retain(|expert| !device_cache.has(layer, *expert));
        self.cancel_unlikely(layer);
        let n_max = self.n_guesses();
        let Self { prefetch: PrefetchState { likely, guesses, .. }, table, .. } = self;
        table.guess(layer, likely, n_max, guesses);
        self.begin_guesses(layer);
        let now = self.clock.now();
        self.prefetch.step.ask += now.saturating_sub(self.prefetch.step.asked_at);
        if stage == GuessStage::Late {
            self.prefetch.guessed_at = Some(now);
        }
        self.poll(Wait::Poll)
    }

    /// Prefetches the next layer in file order, once all of this layer is under way and if the
    /// prompt's rows will need nearly all of its experts.
    pub(super) fn read_ahead(&mut self) {
        let layer = self.request.layer;
        if !self.prefetch.is_allowed || self.request.order != ArrivalOrder::Ascending {
            return;
        }
        let n_choices: usize = self.request.n_uses.iter().map(|&it| it as usize).sum();
        let Some(next) = self.next_layer(layer) else { return };
        let n_experts = self.bank(next).bank.n_experts;
        if n_choices < N_CHOICES_PER_EXPERT * n_experts {
            return;
        }
        let n_guessing = self.prefetch.begun.iter().filter(|it| self.is_filling(it)).count();
        let n_max = self.n_prompt_reads().min(self.table.n_slots() / GUESS_SHARE);
        let n_max = n_max.saturating_sub(self.n_reading() + n_guessing);
        if n_max == 0 {
            return;
        }
        let PrefetchState { likely, guesses, .. } = &mut self.prefetch;
        likely.clear();
        let device_cache = &self.device_cache;
        likely.extend((0..n_experts).map(ExpertIdx).filter(|it| !device_cache.has(next, *it)));
        self.table.guess(next, likely, n_max, guesses);
        self.begin_guesses(next);
    }

    fn is_filling(&self, guess: &GuessedExpert) -> bool {
        self.memory.state(guess.slot) == SlotState::Filling
    }

    fn begin_guesses(&mut self, layer: LayerIdx) {
        self.prefetch.begun_layer = layer;
        for guess_idx in 0..self.prefetch.guesses.len() {
            let guess = self.prefetch.guesses[guess_idx];
            self.begin_fill(layer, guess.expert, guess.slot, LoadPriority::Prefetch);
            self.prefetch.begun.push(guess);
        }
        self.prefetch.guesses.clear();
    }

    /// Cancels wrong guesses, now that the layer's choice is known.
    pub(super) fn end_guessing(&mut self) {
        let layer = self.request.layer;
        if let Some(guessed_at) = self.prefetch.guessed_at.take() {
            let gap = self.clock.now().saturating_sub(guessed_at);
            self.prefetch.gap = (7 * self.prefetch.gap + gap) / 8;
        }
        if let Some(look_ahead) = &mut self.prefetch.look_ahead {
            let likely = &mut self.prefetch.likely;
            likely.clear();
            likely.extend(self.request.demands.iter().map(|it| it.expert));
            look_ahead.demanded(layer, likely);
        }
        while let Some(guess) = self.prefetch.begun.pop() {
            let guessed = (self.prefetch.begun_layer, guess.expert);
            if self.table.expert_in(guess.slot) != Some(guessed) {
                continue;
            }
            let is_right = guessed.0 == layer && self.request.n_uses[guess.expert.0] > 0;
            let is_ready = self.memory.state(guess.slot) == SlotState::Ready;
            let (job, step) = (job_of(guess.slot), &mut self.prefetch.step);
            match (is_right, is_ready, self.loader.is_reading(job)) {
                (true, true, _) => step.n_ready += 1,
                (false, true, _) => step.n_wasted += 1,
                (true, false, true) => step.n_on_their_way += 1,
                (false, false, true) => step.n_in_the_way += 1,
                // Its read has not begun: nothing was gained or lost.
                (_, false, false) => {}
            }
            if !is_right && !is_ready {
                let _ = self.loader.cancel(job);
            }
        }
    }

    /// Returns the number of experts that the drive delivers until the next choice is known.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a small number of experts, from an estimate"
    )]
    fn n_guesses(&self) -> usize {
        let n_bytes = self.prefetch.gap.as_secs_f64() * self.loader.speed();
        let n_experts = (n_bytes / self.memory.slot_bytes() as f64).ceil() as usize;
        n_experts.clamp(1, (self.table.n_slots() / GUESS_SHARE).max(1))
    }

    /// Cancels the layer's guesses that are no longer likely, as far as they are not yet read.
    fn cancel_unlikely(&mut self, layer: LayerIdx) {
        let Self { prefetch, memory, loader, table, .. } = self;
        let PrefetchState { begun, begun_layer, likely, .. } = prefetch;
        if *begun_layer != layer {
            return;
        }
        for guess in begun.iter().filter(|it| !likely.contains(&it.expert)) {
            let is_there = table.expert_in(guess.slot) == Some((layer, guess.expert));
            if is_there && memory.state(guess.slot) == SlotState::Filling {
                let _ = loader.cancel(job_of(guess.slot));
            }
        }
    }

    fn next_layer(&self, layer: LayerIdx) -> Option<LayerIdx> {
        let behind = self.bank_of_layer.iter().enumerate().skip(layer.0 + 1);
        behind.into_iter().find_map(|(layer, bank)| bank.map(|_| LayerIdx(layer)))
    }
}
