//! The numbers of a plan.
//!
//! **Invariant:** names include their units, also in the JSON: scripts rely on them.

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::spec::NativeFormat;
use moeflux::provider::weights::{ImaginedKind, Shares};
use moeflux::{ByteCount, Error};
use serde_json::{Value, json};

use super::forecast::{Answer, Case, Forecast, Places, Prompt, Speed};
use super::gives::Gives;
use super::machine::{Figure, PlanMachine};
use super::routes::Routes;
use crate::failure::{Failure, Outcome};
use crate::needs::{KV_KIND, Needs, float};
use crate::network::Job;

/// A budget larger than any machine's memory.
const EVERYTHING_BYTES: u64 = 1 << 60;

/// Budgets are rounded up to this unit, to be easier to type.
const BUDGET_UNIT_BYTES: u64 = 1 << 20;

/// Margin for the size of the process, which differs between runs.
const PROGRAM_MARGIN_BYTES: u64 = 4 << 20;

/// The model that is planned.
#[derive(Debug)]
pub(crate) struct Subject {
    /// The name shown.
    pub(crate) name: String,
    pub(crate) blueprint: Blueprint,
    pub(crate) needs: Needs,
    /// The kind of weights that are assumed; `None` if the weights exist.
    pub(crate) kind: Option<ImaginedKind>,
    /// All weights as stored, over all machines.
    pub(crate) weights_bytes: u64,
}

impl Subject {
    pub(crate) fn new(name: String, blueprint: Blueprint, kind: Option<ImaginedKind>) -> Self {
        let needs = Needs::new(&blueprint);
        let weights_bytes = needs.resident_bytes + needs.experts_bytes();
        Self { name, blueprint, needs, kind, weights_bytes }
    }

    /// Returns the part of the first of several machines: none has a larger one.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the rows cannot be divided over that many machines.
    pub(crate) fn divided(mut self, job: Option<&Job>) -> Result<Self, Error> {
        if let Some(job) = job {
            self.blueprint.divide(&Shares::equal(job.n_ranks as usize), 0)?;
            self.needs = Needs::new(&self.blueprint);
        }
        Ok(self)
    }

    /// Describes how the weights are stored.
    pub(crate) fn stored(&self) -> Option<String> {
        Some(match self.kind? {
            ImaginedKind::Affine(params) if params.group == 64 => format!("{} bits", params.bits),
            ImaginedKind::Affine(params) => {
                format!("{} bits in groups of {}", params.bits, params.group)
            }
            ImaginedKind::AffineExperts(params) => format!("experts in {} bits", params.bits),
            ImaginedKind::Fp8 => "FP8".to_owned(),
            ImaginedKind::Mxfp4 => "MXFP4".to_owned(),
            ImaginedKind::Ints(params) => NativeFormat::Ints(params).name().to_owned(),
            ImaginedKind::Float => "bf16".to_owned(),
            ImaginedKind::Gguf(types) => format!("GGUF in {types}"),
        })
    }
}

/// A model on a machine.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) machine: &'a PlanMachine,
    pub(crate) context: u64,
    pub(crate) routes: &'a Routes,
}

/// Everything that is printed about a plan.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) plan: Plan<'a>,
    /// The input of the forecast.
    pub(crate) gives: Gives,
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
    pub(crate) alone: Option<Answer>,
}

impl<'a> Plan<'a> {
    pub(crate) fn case<'b>(&'b self, gives: &'b Gives) -> Case<'b> {
        let Subject { blueprint, needs, .. } = self.subject;
        Case { blueprint, needs, gives, context: self.context, routes: self.routes }
    }

    /// Chooses the device. The card computes if it was requested, or if the whole model fits there.
    fn chosen(&self) -> Result<(Gives, Forecast), Error> {
        let of_cpu = self.machine.of_cpu();
        let is_computed = crate::device::check_kinds(&self.subject.blueprint).is_ok();
        if let Some(card) = self.machine.card.as_ref().filter(|card| card.is_told || is_computed) {
            let gives = self.machine.of_card(card);
            match self.case(&gives).forecast() {
                Err(error) if card.is_told => return Err(error),
                Ok(forecast) if card.is_told || self.is_for_auto(&forecast) => {
                    return Ok((gives, forecast));
                }
                _ => {}
            }
        }
        let forecast = self.case(&of_cpu).forecast()?;
        Ok((of_cpu, forecast))
    }

    fn is_for_auto(&self, forecast: &Forecast) -> bool {
        let is_whole = forecast.places.on_card == self.subject.needs.n_experts();
        is_whole && self.subject.weights_bytes >= crate::device::SMALL_BYTES
    }

    /// Makes the report.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if the memory is too small.
    pub(crate) fn report(self) -> Result<Report<'a>, Error> {
        let (gives, forecast) = self.chosen()?;
        let least_bytes = self.case(&gives).least_bytes()?;
        let least_bytes_of_cpu = match gives.card {
            Some(_) => Some(self.case(&self.machine.of_cpu()).least_bytes()?),
            None => None,
        };
        let everything = Gives { card: None, ..gives.with_budget(EVERYTHING_BYTES) };
        let all = self.case(&everything).forecast()?.layout;
        let all_bytes = all.fixed_bytes + all.memory.expert_bytes + PROGRAM_MARGIN_BYTES;
        // Weights that every token uses pass through host memory, even to a card with room for
        // everything.
        let on_its_way = self.subject.needs.resident_bytes
            + gives.host_with(&self.subject.blueprint).program_bytes;
        let least_bytes = least_bytes.max(gives.card.map_or(0, |_| on_its_way));
        let whole = |n_bytes: u64| n_bytes.next_multiple_of(BUDGET_UNIT_BYTES);
        Ok(Report {
            without_gpu: self.without_gpu(&gives),
            plan: self,
            gives,
            forecast,
            least_bytes: whole(least_bytes),
            least_bytes_of_cpu: least_bytes_of_cpu.map(whole),
            all_bytes: whole(all_bytes),
            alone: None,
        })
    }

    fn without_gpu(&self, gives: &Gives) -> Option<String> {
        let card = self.machine.card.as_ref().filter(|_| gives.card.is_none())?;
        if self.subject.weights_bytes < crate::device::SMALL_BYTES {
            return Some("the model is too small to use a GPU by default".to_owned());
        }
        let problem = crate::device::check_kinds(&self.subject.blueprint).err();
        Some(problem.map_or_else(
            || {
                let room = ByteCount(card.gives.room_bytes).rounded();
                format!(
                    "the model does not fit on it ({room}); `moeflux plan --gpu-memory SIZE` plans \
                     its use for part of the model, and --backend gpu of other commands uses it"
                )
            },
            |problem| problem.to_string(),
        ))
    }

    /// Turns a lack of memory into an error of one line that names the smallest budget.
    pub(crate) fn refused(&self, error: Error) -> Failure {
        let Error::NoRoom { needed_bytes, available_bytes, needs, .. } = error else {
            return error.into();
        };
        let parts: Vec<String> = needs
            .iter()
            .map(|need| format!("{} for {}", ByteCount(need.n_bytes).rounded(), need.of))
            .collect();
        let (needed, machine) = (ByteCount(needed_bytes), self.machine);
        let bits = match self.subject.kind {
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
            self.subject.name,
            parts.join(", ")
        ))
        .into()
    }
}

impl Report<'_> {
    /// Returns the bytes that a token reads from memory or drive at the beginning of a session.
    pub(super) fn read_bytes_per_token(&self) -> u64 {
        let needs = &self.plan.subject.needs;
        needs.resident.n_bytes() + needs.routed_bytes()
    }

    /// Returns the report as JSON, with the advice.
    pub(super) fn to_json(&self, advice: &[String]) -> Value {
        let Plan { subject, machine, context, .. } = &self.plan;
        let Subject { needs, kind, name, .. } = subject;
        let params = match kind {
            Some(ImaginedKind::Affine(params)) => Some(params),
            _ => None,
        };
        let layout = &self.forecast.layout;
        json!({
            "model": name,
            "exists": kind.is_none(),
            "stored": subject.stored(),
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
                "cpu": {"pace": machine.cpu.pace.value.json(), "source": machine.cpu.source},
                "gpu": machine.card.as_ref().map(|card| json!({
                    "room_bytes": card.gives.room_bytes,
                    "sees_host": card.gives.sees_host,
                    "pace": card.computer.pace.value.json(),
                    "source": card.computer.source,
                    "name": card.known.map(|known| known.name),
                })),
                "doubts": machine.doubts,
            },
            "ranks": machine.job.map(|job| job.n_ranks),
            "network": machine.job.map(|job| job.network.option()),
            "answer_alone": self.alone.as_ref().map(answer_json),
            "computes": if self.gives.card.is_some() { "gpu" } else { "cpu" },
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
    let Forecast { places, answer, answer_after, prompts, load_seconds, .. } = forecast;
    let Places { on_card, in_memory, on_drive } = places;
    json!({
        "experts_on_gpu": on_card,
        "experts_in_memory": in_memory,
        "experts_on_drive": on_drive,
        "share_of_experts": float(on_card + in_memory) / float(n_experts.max(1)),
        "answer": answer_json(answer),
        "answer_with_full_context": answer_json(answer_after),
        "prompts": prompts.iter().map(prompt_json).collect::<Vec<_>>(),
        "load_s": load_seconds,
    })
}

fn answer_json(answer: &Answer) -> Value {
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

fn prompt_json(prompt: &Prompt) -> Value {
    json!({
        "n_tokens": prompt.n_tokens,
        "n_passes": prompt.n_passes,
        "drive_bytes": prompt.drive_bytes,
        "tokens_per_s_low": prompt.low,
        "tokens_per_s_high": prompt.high,
        "bound": prompt.bound.name(),
    })
}

/// Fails if the system does not report its memory.
///
/// # Errors
///
/// [`Error::Input`] in that case.
pub(crate) fn check_known(machine: &PlanMachine) -> Outcome {
    match machine.memory_bytes() {
        Some(_) => Ok(()),
        None => {
            let problem = "this system does not report how much memory is free: give --ram SIZE";
            Err(Error::Input(problem.to_owned()).into())
        }
    }
}
