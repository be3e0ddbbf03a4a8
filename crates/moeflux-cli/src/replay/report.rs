//! A replayed trace as the numbers that are printed and drawn.
//!
//! **Invariant:** units stand in the names, of the JSON too: scripts rely on them.

use std::path::Path;

use moeflux::provider::experts::replay::{Replayed, Tally, bound, replay};
use moeflux::provider::experts::trace::{StepKind, Trace, TraceHeader};
use serde_json::{Value, json};

/// The name of the curve of what runs: the least frequently used expert leaves.
const POLICY: &str = "lfu";

/// The name of the curve that no policy reaches.
const BOUND: &str = "bound";

/// All that is said about a trace.
#[derive(Debug)]
pub(super) struct Report {
    /// The trace's file.
    pub(super) file: String,
    /// Whose routes.
    pub(super) header: TraceHeader,
    /// Tokens of prompts.
    pub(super) n_prefill_tokens: usize,
    /// Tokens that continued them.
    pub(super) n_decode_tokens: usize,
    /// Ascending.
    pub(super) budgets: Vec<usize>,
    /// What runs, then the bound.
    pub(super) curves: Vec<Curve>,
}

/// What a policy made of each budget.
#[derive(Debug)]
pub(super) struct Curve {
    /// The policy's name, or that of the bound.
    pub(super) name: &'static str,
    /// By budget.
    pub(super) points: Vec<Replayed>,
}

impl Curve {
    /// Whether this is what no policy reaches.
    pub(super) fn is_bound(&self) -> bool {
        self.name == BOUND
    }
}

impl Report {
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

    /// Tokens of one kind of step.
    pub(super) fn n_tokens(&self, kind: StepKind) -> usize {
        match kind {
            StepKind::Prefill => self.n_prefill_tokens,
            StepKind::Decode => self.n_decode_tokens,
        }
    }

    /// Memory that so many slots take.
    pub(super) fn memory_bytes(&self, n_slots: usize) -> u64 {
        self.header.slot_bytes().saturating_mul(n_slots as u64)
    }

    /// Bytes read for a token, rounded.
    pub(super) fn read_bytes_per_token(&self, kind: StepKind, replayed: &Replayed) -> u64 {
        let n_tokens = self.n_tokens(kind).max(1) as u64;
        (replayed.tally(kind).read_bytes + n_tokens / 2) / n_tokens
    }

    /// Bytes of the experts that a token asks for, none of them in memory.
    pub(super) fn routed_bytes_per_token(&self) -> u64 {
        let of_layer = |layer: &moeflux::provider::experts::trace::LayerShape| {
            layer.record_bytes.saturating_mul(layer.top_k as u64)
        };
        self.header.layers.iter().map(of_layer).fold(0, u64::saturating_add)
    }

    /// For machines.
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
