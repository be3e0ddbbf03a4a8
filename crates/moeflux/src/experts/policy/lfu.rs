//! Evicts the expert with the lowest rate of use; the weight of a use decays over time.
//!
//! Counts are kept for all experts, including those not in memory: an expert that comes back has
//! its whole history, and one used only once by a prompt is the first to go. The clock counts rows,
//! so a chunk of a prompt counts as much as its tokens would one by one. Frequency with decay as in
//! LRFU (Lee et al., 2001), with the history of all keys, which are few.

use moeflux_io::SlotIdx;

use super::{KeyIdx, N_SLOTS_IN_TURN, PolicyShape};

/// Half-life, in mean uses of an expert: 24 tokens of the bundled model. Its text is best with 2 to
/// 4 and its chats with 8 and more, all within 1.5 points. Where routes drift, longer half-lives
/// are too slow (Zipf, drifting, 1/4: 60, 58 and 51 with 4, 8 and 32).
const HALF_LIFE_USES: f64 = 4.0;

/// The weight of a use doubles each half-life; before it overflows an f64, all are scaled down.
const LOG2_WEIGHT_MAX: f64 = 512.0;

/// Upper bound on the half-lives that a step counts for; its uses are scaled down accordingly.
/// Within a long step, the layers already computed have their uses and the others do not yet: if
/// the scores of those faded fully, the experts needed next would leave first (short chats at 1/4:
/// hits of prompts 21 and not 16 of 100, of answers 60 and not 57; at half of this bound 23 and 61,
/// but the policy adapts later to a new subject).
const STEP_HALF_LIVES_MAX: f64 = 0.5;

const NONE: usize = usize::MAX;

/// Experts that every token uses in turn. As many as there is room for stay, at equal distances:
/// then the drive has the same time for each of the others. Of these, the one used last is needed
/// last and leaves first, so their scores are the times of their last uses, negated.
#[derive(Clone, Copy, Debug)]
struct Cycle {
    n_keys: usize,
    n_staying: usize,
    /// Uses so far.
    n_uses: f64,
}

impl Cycle {
    fn new(n_keys: usize) -> Self {
        Self { n_keys, n_staying: 0, n_uses: 0.0 }
    }

    fn stays(self, key: KeyIdx) -> bool {
        let n_before = |key_idx: usize| key_idx * self.n_staying / self.n_keys;
        n_before(key.0 + 1) > n_before(key.0)
    }
}

/// Least frequently used, with decay. A slot is outside, pinned (in use or being filled) or idle.
///
/// Chosen by these hits per 100 demands while decoding, with slots for 1/8, 1/4 and 1/2 of the
/// experts. The first three rows are the bundled model: its held-out text token by token, an answer
/// of 1,234 tokens to 1,494, twenty short chats. The others are synthetic, with 12 layers and 6 of
/// 64 experts: Zipf's law, the same with two experts of a layer swapped every 8th token, and
/// uniform.
///
/// | routes | lru | clock | s3-fifo | lfu | bound |
/// |---|---|---|---|---|---|
/// | held-out text | 0, 41, 76 | 0, 45, 76 | 28, 49, 79 | 31, 55, 80 | 50, 72, 90 |
/// | long answer | 0, 44, 77 | 0, 47, 78 | 30, 52, 81 | 34, 59, 83 | 51, 73, 91 |
/// | short chats | 0, 40, 76 | 0, 44, 76 | 30, 53, 80 | 34, 60, 82 | 52, 75, 92 |
/// | Zipf | 27, 49, 74 | 29, 52, 75 | 42, 58, 78 | 48, 64, 80 | 59, 75, 90 |
/// | Zipf, drifting | 27, 49, 74 | 29, 52, 75 | 41, 57, 77 | 44, 60, 78 | 59, 75, 90 |
/// | uniform | 9, 20, 48 | 9, 20, 47 | 11, 21, 47 | 11, 23, 49 | 41, 58, 80 |
///
/// The gap to the bound is knowledge of the future: the best fixed set of experts, chosen with
/// hindsight, hits 52, 60 and 63 with a quarter of the bundled model, and exact knowledge of the
/// next four layers would add 1.5. Tried without success on that model: a second, shorter memory
/// (0.0), the distance of layers (+0.5), which experts follow which (+1.0 for a table of all
/// pairs). Where experts are swapped at every token (Zipf), S3-FIFO is better by 2 to 6.
#[derive(Debug)]
pub(crate) struct Lfu {
    /// Per key: the sum of the weights of its uses.
    scores: Vec<f64>,
    /// Weight of a use now in a step of few rows, as a power of two.
    log2_weight: f64,
    /// Weight of a use in this step.
    use_weight: f64,
    half_lives_per_row: f64,
    uses_per_row: f64,
    /// Set if every token uses every expert, in turn.
    cycle: Option<Cycle>,
    /// Score added to an expert in memory during a step that uses nearly all experts: a mean share
    /// of the step's uses. Otherwise the experts of later layers would be evicted for those of
    /// layers already computed, every time.
    credit: f64,
    /// Per slot: whether it has that credit, which ends when its use is known.
    has_credit: Vec<bool>,
    /// Per slot; unspecified where the slot is outside.
    keys: Vec<KeyIdx>,
    /// Idle slots: a binary heap with the lowest score at its root. Weights grow and scores do not
    /// fall, so the order of idle slots never changes by itself.
    heap: Vec<SlotIdx>,
    /// Per slot: its index in the heap.
    places: Vec<usize>,
}

impl Lfu {
    /// Creates a policy without experts.
    pub(crate) fn new(shape: PolicyShape) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "counts of experts are far below 2^52")]
        let uses_per_row = shape.n_uses_per_row.max(1) as f64 / shape.n_keys.max(1) as f64;
        let mut lfu = Self {
            scores: vec![0.0; shape.n_keys],
            log2_weight: 0.0,
            use_weight: 1.0,
            half_lives_per_row: uses_per_row / HALF_LIFE_USES,
            uses_per_row,
            cycle: (shape.n_uses_per_row >= shape.n_keys).then(|| Cycle::new(shape.n_keys)),
            credit: 0.0,
            has_credit: Vec::new(),
            keys: Vec::new(),
            heap: Vec::new(),
            places: Vec::new(),
        };
        lfu.resize(shape.n_slots);
        lfu
    }

    fn score(&self, slot: SlotIdx) -> f64 {
        let credit = if self.has_credit[slot.0] { self.credit } else { 0.0 };
        self.score_of(self.keys[slot.0]) + credit
    }

    fn score_of(&self, key: KeyIdx) -> f64 {
        let stays = self.cycle.is_some_and(|cycle| cycle.stays(key));
        if stays { f64::INFINITY } else { self.scores[key.0] }
    }

    /// Gives credit to the experts in memory, or removes what is left of it.
    fn set_credit(&mut self, credit: f64) {
        if credit <= 0.0 && self.credit <= 0.0 {
            return;
        }
        self.credit = credit;
        self.has_credit.fill(credit > 0.0);
        self.sort();
    }

    /// Restores the order of the heap after scores have changed.
    fn sort(&mut self) {
        for place in (0..self.heap.len() / 2).rev() {
            self.sink(place, self.heap[place]);
        }
    }

    fn count(&mut self, key: KeyIdx, n_uses: u32) {
        if let Some(cycle) = &mut self.cycle {
            if n_uses > 0 {
                cycle.n_uses += 1.0;
                self.scores[key.0] = -cycle.n_uses;
            }
            return;
        }
        self.scores[key.0] += f64::from(n_uses) * self.use_weight;
    }

    fn set(&mut self, place: usize, slot: SlotIdx) {
        self.heap[place] = slot;
        self.places[slot.0] = place;
    }

    fn rise(&mut self, mut place: usize, slot: SlotIdx) {
        let score = self.score(slot);
        while place > 0 {
            let parent = self.heap[(place - 1) / 2];
            if self.score(parent) <= score {
                break;
            }
            self.set(place, parent);
            place = (place - 1) / 2;
        }
        self.set(place, slot);
    }

    fn sink(&mut self, mut place: usize, slot: SlotIdx) {
        let score = self.score(slot);
        loop {
            let left = 2 * place + 1;
            if left >= self.heap.len() {
                break;
            }
            let right = (left + 1).min(self.heap.len() - 1);
            let is_right = self.score(self.heap[right]) < self.score(self.heap[left]);
            let child = if is_right { right } else { left };
            if score <= self.score(self.heap[child]) {
                break;
            }
            self.set(place, self.heap[child]);
            place = child;
        }
        self.set(place, slot);
    }
}

impl Lfu {
    /// Begins a step of `n_rows` rows, which advance the clock.
    pub(crate) fn begin_step(&mut self, n_rows: usize) {
        if self.cycle.is_some() {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "rows of a step are far below 2^52")]
        let half_lives = n_rows.max(1) as f64 * self.half_lives_per_row;
        let passed = half_lives.min(STEP_HALF_LIVES_MAX);
        self.log2_weight += passed;
        self.use_weight = passed / half_lives * libm::exp2(self.log2_weight);
        if self.log2_weight > LOG2_WEIGHT_MAX {
            let factor = libm::exp2(-self.log2_weight);
            self.scores.iter_mut().for_each(|score| *score *= factor);
            self.log2_weight = 0.0;
            self.use_weight *= factor;
        }
        let is_long = half_lives > STEP_HALF_LIVES_MAX;
        #[expect(clippy::cast_precision_loss, reason = "rows of a step are far below 2^52")]
        let mean_uses = n_rows as f64 * self.uses_per_row;
        self.set_credit(if is_long { mean_uses * self.use_weight } else { 0.0 });
    }

    /// Puts an expert that `n_uses` rows requested into an outside slot. The slot is then pinned.
    pub(crate) fn admit(&mut self, slot: SlotIdx, key: KeyIdx, n_uses: u32) {
        self.keys[slot.0] = key;
        self.has_credit[slot.0] = false;
        self.count(key, n_uses);
    }

    /// Counts `n_uses` rows that requested the expert in a pinned slot.
    pub(crate) fn hit(&mut self, slot: SlotIdx, n_uses: u32) {
        self.has_credit[slot.0] = false;
        self.count(self.keys[slot.0], n_uses);
    }

    /// Pins an idle slot: it is no longer a candidate for eviction.
    pub(crate) fn pin(&mut self, slot: SlotIdx) {
        let place = std::mem::replace(&mut self.places[slot.0], NONE);
        let last = self.heap.pop().expect("an idle slot is in the heap");
        if last == slot {
            return;
        }
        let parent = self.heap.get(place.saturating_sub(1) / 2).copied();
        if place > 0 && parent.is_some_and(|parent| self.score(last) < self.score(parent)) {
            self.rise(place, last);
        } else {
            self.sink(place, last);
        }
    }

    /// Makes a pinned slot idle.
    pub(crate) fn unpin(&mut self, slot: SlotIdx) {
        self.heap.push(slot);
        self.rise(self.heap.len() - 1, slot);
    }

    /// Returns the idle slot whose expert should leave; it stays until it is removed. Returns
    /// `None` if no slot is idle.
    pub(crate) fn victim(&self) -> Option<SlotIdx> {
        self.heap.first().copied()
    }

    /// Returns the idle slot whose expert should leave for another that is needed before it; `None`
    /// if there is none.
    pub(crate) fn victim_for(&self, key: KeyIdx) -> Option<SlotIdx> {
        self.victim().filter(|victim| self.score(*victim) < self.score_of(key))
    }

    /// Removes the expert of a pinned or idle slot; the slot is then outside.
    pub(crate) fn remove(&mut self, slot: SlotIdx) {
        if self.places[slot.0] != NONE {
            self.pin(slot);
        }
    }

    /// Sets the number of slots. Slots beyond it are already outside.
    pub(crate) fn resize(&mut self, n_slots: usize) {
        self.keys.resize(n_slots, KeyIdx(0));
        self.has_credit.resize(n_slots, false);
        self.places.resize(n_slots, NONE);
        self.heap.reserve(n_slots.saturating_sub(self.heap.len()));
        if let Some(cycle) = &mut self.cycle {
            cycle.n_staying = n_slots.saturating_sub(N_SLOTS_IN_TURN);
            self.sort();
        }
    }
}
