//! A plan as the numbers that are printed.
//!
//! **Invariant:** units stand in the names, of the JSON too: scripts rely on them.

use moeflux::provider::config::N_ROWS_DEFAULT;
use moeflux::provider::spec::QuantParams;
use serde_json::{Value, json};

use super::forecast::{Forecast, Prompt, Speed, forecast};
use super::machine::{Figure, PlanMachine};
use super::tiers::Tiers;
use crate::needs::{KV_KIND, Needs};

/// What is planned.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) model_type: String,
    /// Whether there are weights.
    pub(super) exists: bool,
    /// Of what does not exist.
    pub(super) params: Option<QuantParams>,
}

/// All that is printed of a plan.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) subject: Subject,
    pub(super) needs: Needs,
    pub(super) machine: PlanMachine,
    pub(super) context: u64,
    /// None if the budget is unknown or too small.
    pub(super) forecast: Option<Forecast>,
    /// Where experts would be beside a GPU.
    pub(super) tiers: Option<Tiers>,
}

impl Report {
    pub(super) fn new(needs: Needs, subject: Subject, machine: PlanMachine, context: u64) -> Self {
        let forecast = machine.gives().and_then(|gives| forecast(&needs, &gives, context));
        Self { subject, needs, machine, context, forecast, tiers: None }
    }

    /// The same with a GPU that gives so many bytes.
    pub(super) fn beside(self, gpu_bytes: Option<u64>) -> Self {
        let memory_bytes = self.machine.budget.as_ref().map(|(n_bytes, _)| *n_bytes);
        let both = gpu_bytes.zip(memory_bytes);
        let tiers = both.map(|(gpu, memory)| Tiers::new(&self.needs, gpu, memory, self.context));
        Self { tiers, ..self }
    }

    /// What a token reads from memory or drive, at the beginning of a session.
    pub(super) fn read_bytes_per_token(&self) -> u64 {
        self.needs.resident_read_bytes + self.needs.routed_bytes()
    }

    /// What would help, a sentence each.
    pub(super) fn advice(&self) -> Vec<String> {
        super::advice::advice(&self.needs, &self.machine, self.context, self.forecast.as_ref())
    }

    /// The same as JSON.
    pub(super) fn to_json(&self) -> Value {
        let Self { subject, needs, machine, context, forecast, tiers } = self;
        let (budget_bytes, budget_source) = machine.budget.clone().unzip();
        json!({
            "model_type": subject.model_type,
            "exists": subject.exists,
            "bits": subject.params.map(|it| it.bits),
            "group": subject.params.map(|it| it.group),
            "context": context,
            "resident_bytes": needs.resident_bytes,
            "session_bytes": needs.session_bytes(*context),
            "kv_kind": KV_KIND.name(),
            "kv_bytes": needs.session_bytes(*context) - needs.state_bytes,
            "state_fixed_bytes": needs.state_bytes,
            "workspace_bytes": needs.workspace_bytes(N_ROWS_DEFAULT as u64),
            "n_experts": needs.n_experts(),
            "n_experts_per_token": needs.n_experts_per_token(),
            "slot_bytes": needs.slot_bytes,
            "experts_bytes": needs.experts_bytes(),
            "resident_read_bytes_per_token": needs.resident_read_bytes,
            "routed_bytes_per_token": needs.routed_bytes(),
            "read_bytes_per_token": self.read_bytes_per_token(),
            "operations_per_token": needs.operations_per_token,
            "least_bytes": needs.least_bytes(*context),
            "all_bytes": needs.all_bytes(*context),
            "machine": {
                "budget_bytes": budget_bytes,
                "budget_source": budget_source,
                "drive": figure_json(&machine.drive, "bytes_per_s"),
                "memory": figure_json(&machine.memory, "bytes_per_s"),
                "compute": figure_json(&machine.compute, "operations_per_s"),
            },
            "tiers": tiers.map(Tiers::json),
            "forecast": forecast.as_ref().map(forecast_json),
            "advice": self.advice(),
        })
    }
}

fn figure_json(figure: &Figure, unit: &str) -> Value {
    json!({unit: figure.value, "source": figure.source})
}

/// A forecast, for machines.
pub(crate) fn forecast_json(forecast: &Forecast) -> Value {
    let Forecast { n_slots, share, low, high, prompts, load_seconds } = forecast;
    json!({
        "n_slots": n_slots,
        "share_of_experts": share,
        "decode_low": speed_json(low),
        "decode_high": speed_json(high),
        "prompts": prompts.iter().map(prompt_json).collect::<Vec<_>>(),
        "load_s": load_seconds,
    })
}

fn speed_json(speed: &Speed) -> Value {
    json!({
        "hit_rate": speed.hit_rate,
        "drive_bytes_per_token": speed.drive_bytes_per_token,
        "tokens_per_s": speed.tokens_per_s,
        "bound": speed.bound.name(),
    })
}

fn prompt_json(prompt: &Prompt) -> Value {
    json!({
        "n_tokens": prompt.n_tokens,
        "n_passes": prompt.n_passes,
        "drive_bytes": prompt.drive_bytes,
        "seconds": prompt.seconds,
        "tokens_per_s": crate::needs::float(prompt.n_tokens) / prompt.seconds,
        "bound": prompt.bound.name(),
    })
}
