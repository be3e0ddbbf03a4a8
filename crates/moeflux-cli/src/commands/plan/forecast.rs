//! Expected tokens per second as ranges, from a model's needs and a machine's resources.
//!
//! The placement of experts comes from the engine's own division of memory. The low end assumes the
//! slowest of each rate, little overlap and, without a trace, routing that no cache can guess; the
//! high end assumes the fastest rates, nearly full overlap, and routing as skewed as that of the
//! built-in model. **Invariant:** pure arithmetic: reads no file and no clock.

use moeflux::Error;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::budget::{MemoryLayout, Placement, SlotLender, n_experts_of_chunk};
use moeflux::provider::experts::policy::N_SLOTS_IN_TURN;

use super::resources::{RangeEnd, Resources};
use super::routing::RoutingSource;
use crate::model::needs::{Needs, ProductCosts, SparseLayer, float};

/// The lengths of forecast prompts, as far as the context allows.
const PROMPTS: [u64; 2] = [512, 2048];

/// Ranks exchange f32 values.
const FLOAT_BYTES: f64 = 4.0;

/// The fraction of the shorter of reading and computing that does not overlap with the longer.
const UNHIDDEN_LOW: f64 = 0.6;
const UNHIDDEN_HIGH: f64 = 0.2;

/// The experts for which a card has transfer buffers instead of permanent room.
const N_SLOTS_ON_THEIR_WAY: u64 = 32;

/// The limiting component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bottleneck {
    Drive,
    Cpu,
    Gpu,
    Network,
}

impl Bottleneck {
    /// Returns its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Drive => "drive",
            Self::Cpu => "CPU",
            Self::Gpu => "GPU",
            Self::Network => "network",
        }
    }
}

/// One end of the range for an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speed {
    /// The share of uses whose expert is in memory or on the card.
    pub(crate) hit_rate: f64,
    /// Bytes read from the drive for a token.
    pub(crate) drive_bytes_per_token: f64,
    /// The part of a token's time for exchanges between machines.
    pub(crate) exchange_s: f64,
    /// The resulting speed.
    pub(crate) tokens_per_s: f64,
    /// The limiting component.
    pub(crate) bound: Bottleneck,
}

/// The forecast for an answer: both ends of the range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AnswerForecast {
    pub(crate) low: Speed,
    pub(crate) high: Speed,
}

/// The forecast for a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PromptForecast {
    /// Its length.
    pub(crate) n_tokens: u64,
    /// How often the experts that cannot stay are read.
    pub(crate) n_passes: u64,
    /// Bytes read from the drive over all passes.
    pub(crate) drive_bytes: f64,
    /// Tokens per second.
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// The limiting component.
    pub(crate) bound: Bottleneck,
}

/// The number of routed experts in each memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertLocations {
    pub(crate) on_card: u64,
    pub(crate) in_memory: u64,
    pub(crate) on_drive: u64,
}

/// A forecast.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forecast {
    /// How the engine would divide the memory.
    pub(crate) layout: MemoryLayout,
    /// The placement of the experts.
    pub(crate) placement: ExpertLocations,
    /// At the start of a session.
    pub(crate) answer: AnswerForecast,
    /// When the context is full.
    pub(crate) answer_after: AnswerForecast,
    /// By prompt length.
    pub(crate) prompts: Vec<PromptForecast>,
    /// Time until the first token can be processed: for resident weights, and experts while there
    /// is room.
    pub(crate) load_seconds: f64,
}

/// The input of a forecast: a model, a machine, and the tokens of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForecastInput<'a> {
    pub(crate) blueprint: &'a Blueprint,
    pub(crate) needs: &'a Needs,
    pub(crate) resources: &'a Resources,
    pub(crate) context: u64,
    pub(crate) routes: &'a RoutingSource,
}

/// Returns the hit rate if routing is as skewed as that of the built-in model, whose hit rates with
/// `lfu` are 37, 62, 81 and 94 % at shares of 1/8, 1/4, 1/2 and 3/4. A token uses the share `used`
/// of all experts, and finds at most as many as are in memory.
fn skewed(share: f64, used: f64) -> f64 {
    (1.0 - (1.0 - share).powi(3)).min(share / used)
}

/// Returns the seconds for reading and computing, partly overlapped.
pub(super) fn together(end: &RangeEnd, drive: f64, computing: f64) -> f64 {
    let unhidden = if end.is_low { UNHIDDEN_LOW } else { UNHIDDEN_HIGH };
    drive.max(computing) + unhidden * drive.min(computing)
}

impl ForecastInput<'_> {
    /// Makes the forecast.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if the memory is too small.
    pub(crate) fn forecast(&self) -> Result<Forecast, Error> {
        let layout = self.resources.layout(self.blueprint, self.context)?;
        let placement = self.placement(&layout);
        let answer = |context: u64| AnswerForecast {
            low: self.answer(&layout, (self.resources.low(), context)),
            high: self.answer(&layout, (self.resources.high(), context)),
        };
        let lengths = PROMPTS.iter().filter(|length| **length <= self.context);
        let n_loaded = placement.on_card + placement.in_memory;
        let loaded = float(self.needs.resident_bytes)
            + share(n_loaded, self.needs.n_experts()) * float(self.needs.experts_bytes());
        Ok(Forecast {
            layout,
            placement,
            answer: answer(0),
            answer_after: answer(self.context),
            prompts: lengths.map(|length| self.prompt(&layout, *length)).collect(),
            load_seconds: loaded / self.resources.drive.value,
        })
    }

    /// Returns the smallest budget that works.
    pub(crate) fn least_bytes(&self) -> Result<u64, Error> {
        self.resources.least_bytes(self.blueprint, self.context)
    }

    fn placement(&self, layout: &MemoryLayout) -> ExpertLocations {
        let n_experts = self.needs.n_experts();
        let n_slots = |n_bytes: u64| n_bytes.checked_div(layout.slot_bytes).unwrap_or(0);
        match layout.placement {
            Placement::Resident => {
                ExpertLocations { on_card: 0, in_memory: n_experts, on_drive: 0 }
            }
            Placement::OnDevice { host_bytes } => {
                let far = share_of(host_bytes, layout.memory.expert_bytes) * float(n_experts);
                let in_memory = rounded(far);
                ExpertLocations { on_card: n_experts - in_memory, in_memory, on_drive: 0 }
            }
            Placement::Streaming { n_slots: in_memory } => {
                let card_bytes = layout.device_expert_bytes.filter(|_| self.resources.is_on_card());
                let room = n_slots(card_bytes.unwrap_or(0)).saturating_sub(N_SLOTS_ON_THEIR_WAY);
                let in_memory = (in_memory as u64).min(n_experts);
                let on_card = room.min(n_experts - in_memory);
                ExpertLocations { on_card, in_memory, on_drive: n_experts - in_memory - on_card }
            }
        }
    }

    /// Returns the shares of uses whose expert is in memory or on the card, and on the card alone.
    fn hits(&self, placement: ExpertLocations, is_low: bool) -> (f64, f64) {
        let n_experts = self.needs.n_experts();
        let used = share(self.needs.n_experts_per_token(), n_experts);
        let in_turn = self.needs.are_layers_streamed();
        let by_share = |share: f64| if is_low || in_turn { share } else { skewed(share, used) };
        let n_here = placement.on_card + placement.in_memory;
        let n_passed = if in_turn && placement.on_drive > 0 { N_SLOTS_IN_TURN as u64 } else { 0 };
        let n_here = n_here.saturating_sub(n_passed);
        let found = match self.routes.hit_rate(n_here) {
            Some(found) if placement.on_drive > 0 => found,
            _ => by_share(share(n_here, n_experts)),
        };
        let on_card = by_share(share(placement.on_card, n_experts));
        (found, on_card.min(found))
    }

    fn answer(&self, layout: &MemoryLayout, (end, context): (RangeEnd, u64)) -> Speed {
        let needs = self.needs;
        let placement = self.placement(layout);
        let (hit_rate, card_rate) = self.hits(placement, end.is_low);
        let profile = &end.profile;
        let is_on_card = self.resources.is_on_card();
        let read_seconds = |costs: &ProductCosts| {
            float(costs.codes.n_bytes) / profile.answer_bytes_per_s
                + float(costs.floats.n_bytes) / profile.answer_float_bytes_per_s
                + float(costs.plain.n_bytes) / profile.answer_plain_bytes_per_s
        };
        let routed = match is_on_card {
            // Kernels read experts that are not on the card directly from host memory.
            true => {
                let far = (1.0 - card_rate) * float(needs.routed_bytes()) / profile.far_bytes_per_s;
                card_rate * read_seconds(&needs.routed) + far
            }
            false => read_seconds(&needs.routed),
        };
        let is_streamed = placement.on_drive > 0;
        let waits = if is_streamed { profile.streamed_layer_s } else { 0.0 };
        let computing = read_seconds(&needs.resident)
            + routed
            + self.of_session(&end, context)
            + profile.step_s
            + float(needs.n_layers) * profile.layer_s
            + float(needs.sparse_layers.len() as u64) * waits;
        let drive_bytes = (1.0 - hit_rate) * float(needs.routed_bytes());
        let drive = drive_bytes / end.drive_bytes_per_s;
        let exchange_s = self.exchanges(layout, (1, 1), &end);
        Speed {
            hit_rate,
            drive_bytes_per_token: drive_bytes,
            exchange_s,
            tokens_per_s: 1.0 / (together(&end, drive, computing) + exchange_s),
            bound: self.bound(drive, computing, exchange_s),
        }
    }

    /// Returns the seconds for a token's attention: for reading the session or for computing,
    /// whichever is longer.
    fn of_session(&self, end: &RangeEnd, context: u64) -> f64 {
        let needs = self.needs;
        // On a card, keys and values are in f32.
        let width = if self.resources.is_on_card() { 2.0 } else { 1.0 };
        let kv_bytes = width * float(needs.attention_bytes_over(context));
        let read = (kv_bytes + 2.0 * float(needs.state_bytes)) / end.session_bytes_per_s;
        let n_operations = needs.attention_operations_over(float(context));
        let computed = n_operations / end.profile.prompt_float_operations_per_s;
        read.max(computed)
    }

    fn bound(&self, drive: f64, computing: f64, exchanges: f64) -> Bottleneck {
        match (drive >= computing, self.resources.is_on_card()) {
            _ if exchanges > drive.max(computing) => Bottleneck::Network,
            (true, _) => Bottleneck::Drive,
            (false, true) => Bottleneck::Gpu,
            (false, false) => Bottleneck::Cpu,
        }
    }

    /// Forecasts a prompt in steps as the engine makes them: on a CPU, a long prompt borrows memory
    /// of experts, and each expert is read once for a step.
    fn prompt(&self, layout: &MemoryLayout, n_tokens: u64) -> PromptForecast {
        let lender = SlotLender::planned(layout, self.blueprint);
        let lender =
            lender.filter(|_| !self.resources.is_on_card() && self.resources.cluster.is_none());
        let n_rows_prompt = usize::try_from(n_tokens).unwrap_or(usize::MAX);
        let prompt_steps = lender.and_then(|lender| lender.prompt_steps(n_rows_prompt, 0));
        let n_rows = prompt_steps.map_or(layout.n_rows_max, |it| it.n_rows) as u64;
        let n_lent = prompt_steps.map_or(0, |it| it.n_slots_lent) as u64;
        let n_passes = n_tokens.div_ceil(n_rows.max(1));
        let placement = self.placement(layout);
        let n_experts = self.needs.n_experts();
        // A card whose experts are streamed holds different ones after each layer of a prompt.
        let n_on_card = if placement.on_drive > 0 { 0 } else { placement.on_card };
        let n_passed = match self.needs.are_layers_streamed() {
            true => N_SLOTS_IN_TURN as u64,
            false => 0,
        };
        let n_stay = (placement.in_memory + n_on_card).saturating_sub(n_lent + n_passed);
        let stays = share(n_stay, n_experts);
        let n_rows = n_rows.min(n_tokens);
        let chosen_bytes = self.needs.chosen_bytes(n_rows) * float(n_passes);
        let drive_bytes = if placement.on_drive > 0 { chosen_bytes * (1.0 - stays) } else { 0.0 };
        let far_bytes = match self.resources.is_on_card() {
            true => chosen_bytes * (1.0 - share(n_on_card, n_experts)),
            false => 0.0,
        };
        let seconds = |end: RangeEnd| {
            let begun = chosen_bytes + float(n_passes * self.needs.resident.n_bytes());
            let begun = begun / end.profile.prompt_bytes_per_s;
            let far = far_bytes / end.profile.far_prompt_bytes_per_s;
            let computing = begun + self.products(&end, n_tokens) + far;
            let drive = drive_bytes / end.drive_bytes_per_s;
            let exchanges = self.exchanges(layout, (n_tokens, n_passes), &end);
            let seconds = together(&end, drive, computing) + exchanges;
            (seconds, self.bound(drive, computing, exchanges))
        };
        let [(slow, bound), (fast, _)] = [self.resources.low(), self.resources.high()].map(seconds);
        let (low, high) = (float(n_tokens) / slow, float(n_tokens) / fast);
        PromptForecast { n_tokens, n_passes, drive_bytes, low, high, bound }
    }

    /// Returns the seconds for exchanges between machines, for `n_rows` rows in `n_steps` steps: in
    /// each layer the inner values of its experts, chunk by chunk, then the sum. Nothing overlaps
    /// with computing.
    fn exchanges(
        &self,
        layout: &MemoryLayout,
        (n_rows, n_steps): (u64, u64),
        end: &RangeEnd,
    ) -> f64 {
        let Some(cluster) = self.resources.cluster else { return 0.0 };
        let rows_of_step = float(n_rows) / float(n_steps.max(1));
        let of_layer = |layer: &SparseLayer| {
            let top_k = usize::try_from(layer.top_k).unwrap_or(usize::MAX);
            let n_chunk_experts = float(n_experts_of_chunk(layout.n_held(), top_k) as u64);
            let n_chunks = (layer.n_chosen(rows_of_step) / n_chunk_experts).ceil().max(1.0);
            let n_values = |per_row: u64| rows_of_step * float(per_row) * FLOAT_BYTES;
            let inner_bytes = n_values(layer.top_k * layer.n_inner);
            let inner = n_chunks * cluster.exchange_s(inner_bytes / n_chunks, end.is_low);
            inner + cluster.exchange_s(n_values(layer.n_hidden), end.is_low)
        };
        float(n_steps) * self.needs.sparse_layers.iter().map(of_layer).sum::<f64>()
    }

    /// Returns the seconds for a prompt's products including attention: a token attends to half of
    /// the others on average, and only the last one produces logits.
    fn products(&self, end: &RangeEnd, n_tokens: u64) -> f64 {
        let needs = self.needs;
        let of = |n_operations: u64| float(n_operations) * float(n_tokens);
        let each = |of: fn(&ProductCosts) -> u64| {
            of(&needs.resident) - of(&needs.head) + of(&needs.routed)
        };
        let codes = each(|it| it.codes.n_operations);
        let floats = each(|it| it.floats.n_operations + it.plain.n_operations);
        let seen = float(n_tokens) / 2.0;
        let attention = needs.attention_operations_over(seen) * float(n_tokens);
        of(codes) / end.profile.prompt_operations_per_s
            + (of(floats + needs.state_operations) + attention)
                / end.profile.prompt_float_operations_per_s
    }
}

/// Returns a share; a model without experts has all of them.
pub(crate) fn share(n: u64, n_experts: u64) -> f64 {
    if n_experts == 0 { 1.0 } else { float(n) / float(n_experts) }
}

fn share_of(n_bytes: u64, all_bytes: u64) -> f64 {
    if all_bytes == 0 { 0.0 } else { float(n_bytes) / float(all_bytes) }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count")]
fn rounded(n: f64) -> u64 {
    n.max(0.0).round() as u64
}
