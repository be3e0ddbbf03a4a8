//! The numbers of a plan.
//!
//! **Invariant:** names include their units, also in the JSON: scripts rely on them.

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::model::Headers;
use moeflux::provider::spec::NativeFormat;
use moeflux::provider::weights::{Shares, SyntheticKind};
use moeflux::{ByteCount, Error, Model};
use serde_json::{Value, json};

use super::forecast::{
    AnswerForecast, ExpertLocations, Forecast, ForecastInput, PromptForecast, Speed, share,
};
use super::machine::{Figure, PlanMachine};
use super::resources::Resources;
use super::routing::RoutingSource;
use crate::failure::{CommandFailure, CommandResult};
use crate::model::hub;
use crate::model::needs::{KV_KIND, Needs};
use crate::system::network::Cluster;

/// A budget larger than any machine's memory.
const EVERYTHING_BYTES: u64 = 1 << 60;

/// Budgets are rounded up to this unit, to be easier to type.
const BUDGET_UNIT_BYTES: u64 = 1 << 20;

/// Margin for the size of the process, which differs between runs.
const PROGRAM_MARGIN_BYTES: u64 = 4 << 20;

/// The model that is planned.
#[derive(Debug)]
pub(crate) struct PlannedModel {
    /// The name shown.
    pub(crate) name: String,
    pub(crate) blueprint: Blueprint,
    pub(crate) needs: Needs,
    /// The kind of weights that are assumed; `None` if the weights exist.
    pub(crate) kind: Option<SyntheticKind>,
    /// All weights as stored, over all machines.
    pub(crate) weights_bytes: u64,
}

impl PlannedModel {
    pub(crate) fn new(name: String, blueprint: Blueprint, kind: Option<SyntheticKind>) -> Self {
        let needs = Needs::new(&blueprint);
        let weights_bytes = needs.resident_bytes + needs.experts_bytes();
        Self { name, blueprint, needs, kind, weights_bytes }
    }

    /// Describes a model that is here.
    pub(crate) fn of_model(model: Model) -> Self {
        let name = hub::name_of(model.path());
        Self::new(name, model.into_parts().0, None)
    }

    /// Returns the form that a machine would run, if that is not this one: a dense model whose
    /// layers are streamed.
    pub(crate) fn streamed_on(&self, machine: &PlanMachine, context: u64) -> Option<Self> {
        let streamed = self.blueprint.streamed.as_ref()?;
        let can_compute = crate::model::device::check_kinds(&self.blueprint).is_ok();
        let streams = |resources: Resources| resources.streams_layers(&self.blueprint, context);
        let is_streamed = machine.cluster.is_some()
            || match &machine.card {
                Some(card) if card.is_requested => streams(machine.of_card(card)),
                Some(card) if can_compute && !streams(machine.of_card(card)) => false,
                _ => streams(machine.of_cpu()),
            };
        is_streamed.then(|| Self::new(self.name.clone(), (**streamed).clone(), self.kind))
    }

    /// Names the format that holds most of the weights.
    pub(crate) fn main_kind(&self) -> Option<String> {
        self.blueprint.manifest.kinds().first().map(|count| count.kind.to_string())
    }

    /// Returns the part of the model that the first of several machines holds: no other holds more.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the rows cannot be divided over that many machines.
    pub(crate) fn divided(mut self, cluster: Option<&Cluster>) -> Result<Self, Error> {
        if let Some(cluster) = cluster {
            self.blueprint.shard(&Shares::equal(cluster.n_ranks as usize), 0)?;
            self.needs = Needs::new(&self.blueprint);
        }
        Ok(self)
    }

    /// Describes how the weights are stored.
    pub(crate) fn stored(&self) -> Option<String> {
        Some(match self.kind? {
            SyntheticKind::Affine(params) if params.group == 64 => format!("{} bits", params.bits),
            SyntheticKind::Affine(params) => {
                format!("{} bits in groups of {}", params.bits, params.group)
            }
            SyntheticKind::AffineExperts(params) => format!("experts in {} bits", params.bits),
            SyntheticKind::Fp8 => "FP8".to_owned(),
            SyntheticKind::Mxfp4 => "MXFP4".to_owned(),
            SyntheticKind::Ints(params) => NativeFormat::Ints(params).name().to_owned(),
            SyntheticKind::Float => "bf16".to_owned(),
            SyntheticKind::Gguf(types) => format!("GGUF in {types}"),
        })
    }
}

/// The subject of a plan: a model on a machine, with a session of some length.
#[derive(Debug)]
pub(crate) struct PlanQuery<'a> {
    pub(crate) planned: &'a PlannedModel,
    pub(crate) machine: &'a PlanMachine,
    pub(crate) context: u64,
    pub(crate) routes: &'a RoutingSource,
}

/// Everything that is printed about a plan.
#[derive(Debug)]
pub(crate) struct PlanReport<'a> {
    pub(crate) query: PlanQuery<'a>,
    /// The input of the forecast.
    pub(crate) resources: Resources,
    pub(crate) forecast: Forecast,
    /// The smallest budget that works.
    pub(crate) least_bytes: u64,
    /// The smallest budget without the GPU, if a GPU computes.
    pub(crate) least_bytes_of_cpu: Option<u64>,
    /// Why this machine's GPU does not compute the model, if it was a candidate.
    pub(crate) without_gpu: Option<String>,
    /// The smallest budget with which nothing is read from the drive.
    pub(crate) all_bytes: u64,
    /// The answer speed of one machine alone, if there are several and the model runs on one.
    pub(crate) alone: Option<AnswerForecast>,
}

impl<'a> PlanQuery<'a> {
    pub(crate) fn forecast_input<'b>(&'b self, resources: &'b Resources) -> ForecastInput<'b> {
        let PlannedModel { blueprint, needs, .. } = self.planned;
        ForecastInput { blueprint, needs, resources, context: self.context, routes: self.routes }
    }

    /// Chooses the device. The card computes if it was requested. It also does so by default, if
    /// it can compute this model, all experts fit there, and the model is not too small for a GPU.
    fn choose_device(&self) -> Result<(Resources, Forecast), Error> {
        let of_cpu = self.machine.of_cpu();
        let can_compute = crate::model::device::check_kinds(&self.planned.blueprint).is_ok();
        if let Some(card) =
            self.machine.card.as_ref().filter(|card| card.is_requested || can_compute)
        {
            let resources = self.machine.of_card(card);
            match self.forecast_input(&resources).forecast() {
                Err(error) if card.is_requested => return Err(error),
                Ok(forecast) if card.is_requested || self.is_for_auto(&forecast) => {
                    return Ok((resources, forecast));
                }
                _ => {}
            }
        }
        let forecast = self.forecast_input(&of_cpu).forecast()?;
        Ok((of_cpu, forecast))
    }

    fn is_for_auto(&self, forecast: &Forecast) -> bool {
        let needs = &self.planned.needs;
        let card = self.machine.card.as_ref();
        let is_whole = match needs.n_experts() {
            // Experts cannot show whether the other weights fit.
            0 => card.is_some_and(|card| {
                card.resources.room_bytes >= needs.all_bytes_on_device(self.context)
            }),
            n_experts => forecast.placement.on_card == n_experts,
        };
        is_whole && self.planned.weights_bytes >= crate::model::device::SMALL_BYTES
    }

    /// Makes the report.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if the memory is too small.
    pub(crate) fn report(self) -> Result<PlanReport<'a>, Error> {
        let (resources, forecast) = self.choose_device()?;
        let least_bytes = self.forecast_input(&resources).least_bytes()?;
        let least_bytes_of_cpu = match resources.card {
            Some(_) => Some(self.forecast_input(&self.machine.of_cpu()).least_bytes()?),
            None => None,
        };
        let everything = Resources { card: None, ..resources.with_budget(EVERYTHING_BYTES) };
        let all = self.forecast_input(&everything).forecast()?.layout;
        let all_bytes = all.fixed_bytes + all.memory.expert_bytes + PROGRAM_MARGIN_BYTES;
        // Weights that every token uses pass through host memory, even to a card with room for
        // everything.
        let passing_bytes = self.planned.needs.resident_bytes
            + resources.host_with(&self.planned.blueprint).program_bytes;
        let least_bytes = least_bytes.max(resources.card.map_or(0, |_| passing_bytes));
        let whole = |n_bytes: u64| n_bytes.next_multiple_of(BUDGET_UNIT_BYTES);
        Ok(PlanReport {
            without_gpu: self.without_gpu(&resources),
            query: self,
            resources,
            forecast,
            least_bytes: whole(least_bytes),
            least_bytes_of_cpu: least_bytes_of_cpu.map(whole),
            all_bytes: whole(all_bytes),
            alone: None,
        })
    }

    fn without_gpu(&self, resources: &Resources) -> Option<String> {
        let card = self.machine.card.as_ref().filter(|_| resources.card.is_none())?;
        if self.planned.weights_bytes < crate::model::device::SMALL_BYTES {
            return Some("the model is too small to use a GPU by default".to_owned());
        }
        let problem = crate::model::device::check_kinds(&self.planned.blueprint).err();
        Some(problem.map_or_else(
            || {
                let room = ByteCount(card.resources.room_bytes).rounded();
                format!(
                    "the model does not fit on it ({room}); `moeflux plan --gpu-memory SIZE` plans \
                     its use for part of the model, and --backend gpu of other commands uses it"
                )
            },
            |problem| problem.to_string(),
        ))
    }

    /// Turns a lack of memory into an error of one line that names the smallest budget.
    pub(crate) fn refused(&self, error: Error) -> CommandFailure {
        let Error::NoRoom { needed_bytes, available_bytes, needs, .. } = error else {
            return error.into();
        };
        let parts: Vec<String> = needs
            .iter()
            .map(|need| format!("{} for {}", ByteCount(need.n_bytes).rounded(), need.of))
            .collect();
        let (needed, machine) = (ByteCount(needed_bytes), self.machine);
        let bits = match self.planned.kind {
            Some(_) => "fewer bits (--bits)",
            // Existing weights stay as they are.
            None => "a model with fewer bits",
        };
        let there = match (available_bytes, machine.leaves_a_part()) {
            (Some(bytes), true) => format!(
                "a process may use {} of the memory {}",
                ByteCount(bytes).rounded(),
                machine.memory_source()
            ),
            (Some(bytes), false) => format!("--memory allows {}", ByteCount(bytes).rounded()),
            (None, _) => "there is less".to_owned(),
        };
        Error::Input(format!(
            "{} needs at least {needed}: {}; {there}; use more memory (--ram, --memory), a shorter \
             context (--context) or {bits}",
            self.planned.name,
            parts.join(", ")
        ))
        .into()
    }
}

impl PlanReport<'_> {
    /// Returns the bytes that a token reads from memory or drive at the beginning of a session.
    pub(super) fn read_bytes_per_token(&self) -> u64 {
        let needs = &self.query.planned.needs;
        needs.resident.n_bytes() + needs.routed_bytes()
    }

    /// Returns the report as JSON, with the advice.
    pub(super) fn to_json(&self, advice: &[String]) -> Value {
        let PlanQuery { planned, machine, context, .. } = &self.query;
        let PlannedModel { needs, kind, name, .. } = planned;
        let params = match kind {
            Some(SyntheticKind::Affine(params)) => Some(params),
            _ => None,
        };
        let layout = &self.forecast.layout;
        json!({
            "model": name,
            "exists": kind.is_none(),
            "stored": planned.stored(),
            "bits": params.map(|it| it.bits),
            "group": params.map(|it| it.group),
            "context": context,
            "resident_bytes": needs.resident_bytes,
            "session_bytes": layout.session_bytes,
            "kv_kind": KV_KIND.name(),
            "kv_bytes": layout.memory.session_bytes_per_position * context,
            "state_fixed_bytes": needs.state_bytes,
            "workspace_bytes": layout.memory.workspace_bytes,
            "fixed_bytes": layout.fixed_bytes,
            "table_bytes": layout.memory.table_bytes,
            "streams_layers": needs.are_layers_streamed(),
            "n_experts": needs.n_experts(),
            "n_experts_per_token": needs.n_experts_per_token(),
            "slot_bytes": layout.slot_bytes,
            "experts_bytes": needs.experts_bytes(),
            "resident_read_bytes_per_token": needs.resident.n_bytes(),
            "routed_bytes_per_token": needs.routed_bytes(),
            "read_bytes_per_token": self.read_bytes_per_token(),
            "operations_per_token": needs.resident.n_operations() + needs.routed.n_operations(),
            "least_bytes": self.least_bytes,
            "least_bytes_without_gpu": self.least_bytes_of_cpu,
            "all_bytes": self.all_bytes,
            "machine": {
                "memory_bytes": machine.memory_bytes(),
                "memory_source": machine.memory_source(),
                "drive": figure_json(&machine.drive, "bytes_per_s"),
                "memory": figure_json(&machine.memory, "bytes_per_s"),
                "cpu": {"pace": machine.cpu.profile.value.json(), "source": machine.cpu.source},
                "gpu": machine.card.as_ref().map(|card| json!({
                    "room_bytes": card.resources.room_bytes,
                    "sees_host": card.resources.sees_host,
                    "pace": card.estimate.profile.value.json(),
                    "source": card.estimate.source,
                    "name": card.known.map(|known| known.name),
                })),
                "doubts": machine.doubts,
            },
            "ranks": machine.cluster.map(|cluster| cluster.n_ranks),
            "network": machine.cluster.map(|cluster| cluster.network.option()),
            "answer_alone": self.alone.as_ref().map(answer_json),
            "computes": if self.resources.card.is_some() { "gpu" } else { "cpu" },
            "forecast": forecast_json(&self.forecast, needs.n_experts()),
            "advice": advice,
        })
    }
}

fn figure_json(figure: &Figure, unit: &str) -> Value {
    json!({unit: figure.value, "source": figure.source})
}

/// Returns a forecast as JSON.
pub(crate) fn forecast_json(forecast: &Forecast, n_experts: u64) -> Value {
    let Forecast { placement, answer, answer_after, prompts, load_seconds, .. } = forecast;
    let ExpertLocations { on_card, in_memory, on_drive } = placement;
    json!({
        "experts_on_gpu": on_card,
        "experts_in_memory": in_memory,
        "experts_on_drive": on_drive,
        "share_of_experts": share(on_card + in_memory, n_experts),
        "answer": answer_json(answer),
        "answer_with_full_context": answer_json(answer_after),
        "prompts": prompts.iter().map(prompt_json).collect::<Vec<_>>(),
        "load_s": load_seconds,
    })
}

fn answer_json(answer: &AnswerForecast) -> Value {
    json!({"low": speed_json(&answer.low), "high": speed_json(&answer.high)})
}

fn speed_json(speed: &Speed) -> Value {
    json!({
        "hit_rate": speed.hit_rate,
        "drive_bytes_per_token": speed.drive_bytes_per_token,
        "exchange_s_per_token": speed.exchange_s,
        "tokens_per_s": speed.tokens_per_s,
        "bound": speed.bound.name(),
    })
}

fn prompt_json(prompt: &PromptForecast) -> Value {
    json!({
        "n_tokens": prompt.n_tokens,
        "n_passes": prompt.n_passes,
        "drive_bytes": prompt.drive_bytes,
        "tokens_per_s_low": prompt.low,
        "tokens_per_s_high": prompt.high,
        "bound": prompt.bound.name(),
    })
}

/// Checks that the size of the memory is known.
///
/// # Errors
///
/// [`Error::Input`] if the system does not report it.
pub(crate) fn check_memory_known(machine: &PlanMachine) -> CommandResult {
    match machine.memory_bytes() {
        Some(_) => Ok(()),
        None => {
            let problem = "this system does not report how much memory is free: give --ram SIZE";
            Err(Error::Input(problem.to_owned()).into())
        }
    }
}
