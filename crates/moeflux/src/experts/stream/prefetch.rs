//! Reads experts before they are requested: for single tokens, those that the next layer's router
//! would choose now; for a prompt, all of the next layer.
//!
//! The next router runs twice: while a layer's experts are on their way, so that the drive has work
//! when the last of them has arrived, and again after the layer, when it is more accurate.
//! **Invariant:** guesses begin after every demand has begun, and take slots that a demand would
//! not miss; those that turn out wrong are cancelled as soon as that is known.

use std::time::Duration;

use moeflux_io::{LoadPriority, N_JOBS_USUAL, Wait};

use crate::error::Result;
use crate::experts::predict::{GuessStage, LookAhead, Quality};
use crate::experts::stream::device_cache::DeviceCache;
use crate::experts::stream::files::ExpertFiles;
use crate::experts::stream::reads::ExpertReads;
use crate::experts::stream::request::CurrentRequest;
use crate::experts::stream::slots::ExpertSlots;
use crate::experts::stream::step_meter::StepMeter;
use crate::experts::stream::{ArrivalOrder, ExpertStream};
use crate::experts::table::{GuessedExpert, SlotTable};
use crate::ids::{ExpertIdx, LayerIdx};

/// Choices per expert at which a layer's rows together need nearly all experts: with 3, one expert
/// in 20 is left out.
const N_CHOICES_PER_EXPERT: usize = 3;

/// Guesses in flight take at most one slot in this many; the other slots are for demands.
const GUESS_SHARE: usize = 8;

/// Upper bound on reads under way if each layer has one expert only: the drive then always has one
/// to go on with when another has ended.
const N_JOBS_IN_TURN: usize = 2;

/// State of prefetching.
#[derive(Debug)]
pub(super) struct PrefetchState {
    /// Whether anything may be prefetched.
    is_allowed: bool,
    /// `None` if routers are not used for guessing.
    look_ahead: Option<LookAhead>,
    /// Experts that the next router named, most likely first in each row.
    ranked: Vec<ExpertIdx>,
    weighed: Vec<(ExpertIdx, f32)>,
    likely: Vec<ExpertIdx>,
    guesses: Vec<GuessedExpert>,
    /// Guesses that are being read, or were read since the last choice.
    begun: Vec<GuessedExpert>,
    begun_layer: LayerIdx,
    /// When the drive last had no work left but guesses.
    pub(super) guessed_at: Option<Duration>,
    /// Moving average of the time from then to the next choice.
    gap: Duration,
    pub(super) step: StepMeter,
    /// Time spent running the next layers' routers in earlier steps.
    ask_before: Duration,
}

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
            ask_before: Duration::ZERO,
        }
    }

    pub(super) fn begin_step(&mut self, step: StepMeter) {
        self.ask_before += self.step.ask;
        self.step = step;
    }

    /// Judges the guesses of a step that ends at `now`, when computing has waited for `read_wait`
    /// in all. An expert takes `record_ns` to read.
    pub(super) fn end_step(&mut self, now: Duration, read_wait: Duration, record_ns: u64) {
        let Some(look_ahead) = &mut self.look_ahead else { return };
        if let Some(cost) = self.step.cost(now, read_wait, record_ns) {
            look_ahead.end_step(&cost);
        }
    }

    /// Returns the time spent running the next layers' routers so far.
    pub(super) fn ask(&self) -> Duration {
        self.ask_before + self.step.ask
    }

    /// Returns the quality of guesses in the last window of lookahead.
    pub(super) fn quality(&self) -> Quality {
        self.look_ahead.as_ref().map(LookAhead::quality).unwrap_or_default()
    }

    fn is_on(&self) -> bool {
        self.look_ahead.as_ref().is_some_and(LookAhead::is_on)
    }

    /// Lists the experts worth a read among those that a router named for each row, with their
    /// weights. Returns `false` if routers are not used for guessing.
    fn choose(
        &mut self,
        (layer, stage): (LayerIdx, GuessStage),
        (experts, weights): (&[ExpertIdx], &[f32]),
        table: &SlotTable,
        device_cache: &DeviceCache,
    ) -> bool {
        let Self { look_ahead: Some(look_ahead), likely, ranked, weighed, .. } = self else {
            return false;
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
        true
    }

    /// Lists all experts of a layer that the device does not have, in file order.
    fn choose_all(&mut self, layer: LayerIdx, n_experts: usize, device_cache: &DeviceCache) {
        let all = (0..n_experts).map(ExpertIdx);
        self.likely.clear();
        self.likely.extend(all.filter(|expert| !device_cache.has(layer, *expert)));
    }

    /// Begins to read up to `n_max` of the listed experts.
    fn begin(
        &mut self,
        (layer, n_max): (LayerIdx, usize),
        (files, slots): (&ExpertFiles, &mut ExpertSlots),
        reads: &mut ExpertReads,
    ) {
        slots.table.guess(layer, &self.likely, n_max, &mut self.guesses);
        self.begun_layer = layer;
        for guess in self.guesses.drain(..) {
            let expert = (layer, guess.expert);
            reads.begin((files, slots), expert, guess.slot, LoadPriority::Prefetch);
            self.begun.push(guess);
        }
    }

    /// Returns the number of guesses that are being read.
    fn n_reading(&self, slots: &ExpertSlots) -> usize {
        self.begun.iter().filter(|it| slots.is_filling(it.slot)).count()
    }

    /// Returns the number of experts that the drive delivers until the next choice is known.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a small number of experts, from an estimate"
    )]
    fn n_guesses(&self, slots: &ExpertSlots, speed: f64) -> usize {
        let n_bytes = self.gap.as_secs_f64() * speed;
        let n_experts = (n_bytes / slots.slot_bytes() as f64).ceil() as usize;
        n_experts.clamp(1, (slots.table.n_slots() / GUESS_SHARE).max(1))
    }

    /// Cancels the layer's guesses that are no longer likely, as far as they are not yet read.
    fn cancel_unlikely(&self, layer: LayerIdx, slots: &ExpertSlots, reads: &mut ExpertReads) {
        if self.begun_layer != layer {
            return;
        }
        for guess in self.begun.iter().filter(|it| !self.likely.contains(&it.expert)) {
            let is_there = slots.table.expert_in(guess.slot) == Some((layer, guess.expert));
            if is_there && slots.is_filling(guess.slot) {
                reads.cancel(guess.slot);
            }
        }
    }

    /// Cancels wrong guesses, once the layer's choice is known, at `now`.
    pub(super) fn end_guessing(
        &mut self,
        request: &CurrentRequest,
        slots: &ExpertSlots,
        reads: &mut ExpertReads,
        now: Duration,
    ) {
        if let Some(guessed_at) = self.guessed_at.take() {
            self.gap = (7 * self.gap + now.saturating_sub(guessed_at)) / 8;
        }
        if let Some(look_ahead) = &mut self.look_ahead {
            self.likely.clear();
            self.likely.extend(request.demands.iter().map(|it| it.expert));
            look_ahead.demanded(request.layer, &self.likely);
        }
        while let Some(guess) = self.begun.pop() {
            let guessed = (self.begun_layer, guess.expert);
            if slots.table.expert_in(guess.slot) != Some(guessed) {
                continue;
            }
            let is_right = guessed.0 == request.layer && request.has_chosen(guess.expert);
            let is_ready = slots.is_ready(guess.slot);
            match (is_right, is_ready, reads.is_reading(guess.slot)) {
                (true, true, _) => self.step.n_ready += 1,
                (false, true, _) => self.step.n_wasted += 1,
                (true, false, true) => self.step.n_on_their_way += 1,
                (false, false, true) => self.step.n_in_the_way += 1,
                // Its read has not begun: nothing was gained or lost.
                (_, false, false) => {}
            }
            if !is_right && !is_ready {
                reads.cancel(guess.slot);
            }
        }
    }
}

impl ExpertStream {
    /// Returns whether the next layer's router should be run now.
    pub(in crate::experts) fn needs_guess(&mut self, is_small: bool) -> bool {
        self.prefetch.step.asked_at = self.clock.now();
        self.prefetch.is_on() && is_small
    }

    /// Begins to read the experts that `layer` is likely to request: those of each row, with their
    /// weights.
    pub(in crate::experts) fn guess(
        &mut self,
        (layer, stage): (LayerIdx, GuessStage),
        named: (&[ExpertIdx], &[f32]),
    ) -> Result<()> {
        let Self { prefetch, files, slots, reads, device_cache, .. } = self;
        if !prefetch.choose((layer, stage), named, &slots.table, device_cache) {
            return Ok(());
        }
        prefetch.cancel_unlikely(layer, slots, reads);
        let n_max = prefetch.n_guesses(slots, reads.loader.speed());
        prefetch.begin((layer, n_max), (files, slots), reads);
        let now = self.clock.now();
        prefetch.step.ask += now.saturating_sub(prefetch.step.asked_at);
        if stage == GuessStage::Late {
            prefetch.guessed_at = Some(now);
        }
        self.poll(Wait::Poll)
    }

    /// Prefetches the next layer in file order, once all of this layer is under way and if the
    /// prompt's rows will need nearly all of its experts.
    pub(super) fn read_ahead(&mut self) {
        if self.files.are_read_in_turn() {
            self.read_in_turn();
            return;
        }
        let Self { prefetch, files, slots, reads, request, device_cache, .. } = self;
        if !prefetch.is_allowed || request.order != ArrivalOrder::Ascending {
            return;
        }
        let Some(next) = files.next_layer(request.layer) else { return };
        let n_experts = files.bank(next).bank.n_experts;
        if request.n_choices() < N_CHOICES_PER_EXPERT * n_experts {
            return;
        }
        let n_max = slots.n_prompt_reads().min(slots.table.n_slots() / GUESS_SHARE);
        let n_max = n_max.saturating_sub(request.n_reading(slots) + prefetch.n_reading(slots));
        if n_max == 0 {
            return;
        }
        prefetch.choose_all(next, n_experts, device_cache);
        prefetch.begin((next, n_max), (files, slots), reads);
    }

    /// Reads the only experts of the layers that follow, those of the next token's first layers
    /// after those of the last, as long as there are slots that are needed later.
    fn read_in_turn(&mut self) {
        let Self { prefetch, files, slots, reads, request, .. } = self;
        if !prefetch.is_allowed {
            return;
        }
        let only = ExpertIdx(0);
        for layer in files.layers_after(request.layer) {
            if reads.loader.n_jobs() >= N_JOBS_IN_TURN {
                return;
            }
            if slots.table.slot_of(layer, only).is_some() {
                continue;
            }
            let Some(slot) = slots.table.read_ahead(layer, only) else { return };
            reads.begin((files, slots), (layer, only), slot, LoadPriority::Prefetch);
        }
    }
}
