//! The printed and drawn numbers of a replayed trace.
//!
//! **Invariant:** names include their units, also in the JSON: scripts rely on them.

use std::path::Path;

use moeflux::provider::experts::replay::{Replayed, Tally, bound, replay};
use moeflux::provider::experts::trace::{StepKind, Trace, TraceHeader};
use serde_json::{Value, json};

/// The name of the curve of the engine's policy, which evicts the least frequently used expert.
const POLICY: &str = "lfu";

/// The name of the curve that no policy can exceed.
const BOUND: &str = "bound";

/// Everything that is printed about a trace.
#[derive(Debug)]
pub(super) struct ReplayReport {
    /// The trace's file.
    pub(super) file: String,
    /// The model whose routes were traced.
    pub(super) header: TraceHeader,
    /// Tokens of prompts.
    pub(super) n_prefill_tokens: usize,
    /// Tokens that continued them.
    pub(super) n_decode_tokens: usize,
    /// Numbers of slots, ascending.
    pub(super) budgets: Vec<usize>,
    /// The engine's policy, then the bound.
    pub(super) curves: Vec<Curve>,
}

/// The results of a policy for each budget.
#[derive(Debug)]
pub(super) struct Curve {
    /// The name of the policy, or of the bound.
    pub(super) name: &'static str,
    /// For each budget.
    pub(super) points: Vec<Replayed>,
}

impl Curve {
    /// Returns whether this is the bound that no policy can exceed.
    pub(super) fn is_bound(&self) -> bool {
        self.name == BOUND
    }
}

impl ReplayReport {
    /// Replays the trace with each budget.
    pub(super) fn new(file: &Path, trace: &Trace, budgets: &[usize]) -> Self {
        let replayed = budgets.iter().map(|&n_slots| replay(trace, n_slots)).collect();
        let best = budgets.iter().map(|&n_slots| bound(trace, n_slots)).collect();
        let curves =
            vec![Curve { name: POLICY, points: replayed }, Curve { name: BOUND, points: best }];
        Self {
            file: file.display().to_string(),
            header: trace.header().clone(),
            n_prefill_tokens: trace.n_rows(StepKind::Prefill),
            n_decode_tokens: trace.n_rows(StepKind::Decode),
            budgets: budgets.to_vec(),
            curves,
        }
    }

    /// Returns the tokens in one kind of step.
    pub(super) fn n_tokens(&self, kind: StepKind) -> usize {
        match kind {
            StepKind::Prefill => self.n_prefill_tokens,
            StepKind::Decode => self.n_decode_tokens,
        }
    }

    /// Returns the memory of `n_slots` slots.
    pub(super) fn memory_bytes(&self, n_slots: usize) -> u64 {
        self.header.slot_bytes().saturating_mul(n_slots as u64)
    }

    /// Returns the bytes read for a token, rounded.
    pub(super) fn read_bytes_per_token(&self, kind: StepKind, replayed: &Replayed) -> u64 {
        let n_tokens = self.n_tokens(kind).max(1) as u64;
        (replayed.tally(kind).read_bytes + n_tokens / 2) / n_tokens
    }

    /// Returns the bytes of the experts that a token uses if none is in memory.
    pub(super) fn routed_bytes_per_token(&self) -> u64 {
        let of_layer = |layer: &moeflux::provider::experts::trace::LayerShape| {
            layer.record_bytes.saturating_mul(layer.top_k as u64)
        };
        self.header.layers.iter().map(of_layer).fold(0, u64::saturating_add)
    }

    /// Returns the report as JSON.
    pub(super) fn to_json(&self) -> Value {
        let curves = self.curves.iter().map(|curve| {
            let points = self.budgets.iter().zip(&curve.points);
            let points = points.map(|(&n_slots, replayed)| {
                json!({
                    "n_slots": n_slots,
                    "memory_bytes": self.memory_bytes(n_slots),
                    "prefill": self.tally_json(StepKind::Prefill, replayed),
                    "decode": self.tally_json(StepKind::Decode, replayed),
                })
            });
            json!({"policy": curve.name, "points": points.collect::<Vec<_>>()})
        });
        json!({
            "trace": self.file,
            "model_fingerprint": format!("{:016x}", self.header.fingerprint),
            "n_experts": self.header.n_experts(),
            "n_experts_per_token": self.header.n_uses_per_row(),
            "slot_bytes": self.header.slot_bytes(),
            "routed_bytes_per_token": self.routed_bytes_per_token(),
            "n_prefill_tokens": self.n_prefill_tokens,
            "n_decode_tokens": self.n_decode_tokens,
            "curves": curves.collect::<Vec<_>>(),
        })
    }

    fn tally_json(&self, kind: StepKind, replayed: &Replayed) -> Value {
        let tally: &Tally = replayed.tally(kind);
        json!({
            "n_hits": tally.n_hits,
            "n_misses": tally.n_misses,
            "hit_rate": tally.hit_rate(),
            "read_bytes_per_token": self.read_bytes_per_token(kind, replayed),
        })
    }
}
