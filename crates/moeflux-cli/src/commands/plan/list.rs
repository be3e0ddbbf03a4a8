//! The models that are known by name on one machine, one line each.
//!
//! **Invariant:** arithmetic on configs embedded in the program; reads no file.

use moeflux::provider::weights::SyntheticKind;
use moeflux::{ByteCount, Error};
use serde_json::{Value, json};

use super::advice::{PACKED, range};
use super::forecast::share;
use super::machine::PlanMachine;
use super::report::{PlanQuery, PlanReport, PlannedModel, forecast_json};
use super::routing::RoutingSource;
use crate::failure::CommandResult;
use crate::model::bare_config::BareConfig;
use crate::model::known::{KNOWN, KnownModel};
use crate::model::needs::float;

/// The length of the prompt shown, one of those in a forecast.
const PROMPT_TOKENS: u64 = 512;

/// Width of the column of names.
const NAME_CHARS: usize = 24;

/// A line of the list.
#[derive(Debug)]
struct PlanRow {
    name: &'static str,
    size: &'static str,
    stored: String,
    weights_bytes: u64,
    expected: RowForecast,
}

/// What to expect of a model on a machine. Pairs are the low and the high end.
#[derive(Debug)]
pub(crate) enum RowForecast {
    /// It needs this much memory.
    TooLarge { least_bytes: u64, of: &'static str },
    /// It runs.
    Runs {
        /// The share of experts in memory or on the card.
        share: f64,
        /// Whether the model has no experts.
        is_dense: bool,
        /// Bytes that a token of an answer reads from the drive.
        drive_bytes: (f64, f64),
        /// Tokens per second.
        answer: (f64, f64),
        prompt: (f64, f64),
        /// What limits answers.
        bound: &'static str,
        json: Value,
    },
}

/// The plans of all known models on this machine.
#[derive(Debug)]
pub(super) struct PlanList {
    rows: Vec<PlanRow>,
}

impl PlanList {
    /// Plans the models as usually downloaded: FP8 where published so, and 4 bits; or with the
    /// requested bits.
    pub(super) fn new(
        machine: &PlanMachine,
        context: u64,
        (bits, group): (Option<u8>, Option<u8>),
    ) -> CommandResult<Self> {
        let mut rows = Vec::new();
        for known in &KNOWN {
            let config = known.config()?;
            let mut kinds = vec![config.kind(bits, group)?];
            // Models trained in 4 bits are not quantised again.
            if bits.is_none() && group.is_none() && kinds == [SyntheticKind::Fp8] {
                kinds.push(PACKED);
            }
            for kind in kinds {
                rows.push(row(known, planned(known, &config, kind)?, machine, context)?);
            }
        }
        Ok(Self { rows })
    }

    pub(super) fn json(&self) -> Value {
        let row = |row: &PlanRow| {
            let (least_bytes, forecast) = match &row.expected {
                RowForecast::TooLarge { least_bytes, .. } => (Some(least_bytes), None),
                RowForecast::Runs { json, .. } => (None, Some(json)),
            };
            json!({
                "model": row.name,
                "stored": row.stored,
                "weights_bytes": row.weights_bytes,
                "least_bytes": least_bytes,
                "forecast": forecast,
            })
        };
        json!({"models": self.rows.iter().map(row).collect::<Vec<_>>()})
    }

    /// Returns the lines of a table.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{:<24}{:<6} {:>7}{:>7} {:>13} {:>12}  bound",
            "model", "stored", "weights", "fits", "answer", "prompt"
        )];
        lines.extend(self.rows.iter().map(PlanRow::line));
        lines
    }
}

impl PlanRow {
    fn line(&self) -> String {
        let with_size = format!("{} ({})", self.name, self.size);
        let fits = with_size.len() < NAME_CHARS;
        let name = if fits && !self.name.contains(self.size) { &with_size } else { self.name };
        let weights = format!("{:.0} GB", float(self.weights_bytes) / 1e9);
        let begun = format!("{name:<NAME_CHARS$}{:<6} {weights:>7}", self.stored);
        match &self.expected {
            RowForecast::TooLarge { least_bytes, of } => {
                format!("{begun}   needs at least {} of {of}", ByteCount(*least_bytes).rounded())
            }
            RowForecast::Runs { share, answer, prompt, bound, .. } => {
                let share = format!("{:.0} %", 100.0 * share);
                let [answer, prompt] = [answer, prompt].map(|(low, high)| range(*low, *high));
                format!("{begun}{share:>7} {answer:>13} {prompt:>12}  {bound}")
            }
        }
    }
}

fn planned(
    known: &KnownModel,
    config: &BareConfig,
    kind: SyntheticKind,
) -> CommandResult<PlannedModel> {
    Ok(PlannedModel::new(known.name.to_owned(), config.blueprint(kind)?, Some(kind)))
}

fn row(
    known: &KnownModel,
    planned: PlannedModel,
    machine: &PlanMachine,
    context: u64,
) -> CommandResult<PlanRow> {
    let streamed = planned.streamed_on(machine, context.min(planned.needs.context_max));
    let planned = &streamed.unwrap_or(planned).divided(machine.cluster.as_ref())?;
    let expected = RowForecast::of_form(planned, machine, context)?;
    Ok(PlanRow {
        name: known.name,
        size: known.size,
        stored: planned.stored().unwrap_or_default(),
        weights_bytes: planned.weights_bytes,
        expected,
    })
}

impl RowForecast {
    /// Forecasts a session of at most `context` tokens.
    ///
    /// # Errors
    ///
    /// Those of a plan, but for too little memory.
    pub(crate) fn new(
        planned: &PlannedModel,
        machine: &PlanMachine,
        context: u64,
    ) -> CommandResult<Self> {
        let streamed = planned.streamed_on(machine, context.min(planned.needs.context_max));
        Self::of_form(streamed.as_ref().unwrap_or(planned), machine, context)
    }

    /// Forecasts a session of the form that the machine runs.
    fn of_form(planned: &PlannedModel, machine: &PlanMachine, context: u64) -> CommandResult<Self> {
        let context = context.min(planned.needs.context_max);
        let query = PlanQuery { planned, machine, context, routes: &RoutingSource::Unknown };
        let requested = machine.card.as_ref().filter(|card| card.is_requested);
        let lacks = requested.is_some_and(|it| {
            planned.needs.check_gpu_memory(it.resources.room_bytes, &it.allowed_by()).is_err()
        });
        Ok(match query.report() {
            _ if lacks => {
                Self::TooLarge { least_bytes: planned.needs.resident_bytes, of: "GPU memory" }
            }
            Ok(report) => Self::runs(&report),
            Err(Error::NoRoom { needed_bytes, .. }) => {
                Self::TooLarge { least_bytes: needed_bytes, of: "memory" }
            }
            Err(error) => return Err(error.into()),
        })
    }

    fn runs(report: &PlanReport<'_>) -> Self {
        let forecast = &report.forecast;
        let needs = &report.query.planned.needs;
        let n_experts = needs.n_experts();
        let placement = &forecast.placement;
        let prompt = forecast.prompts.iter().find(|it| it.n_tokens == PROMPT_TOKENS);
        let (low, high) = (&forecast.answer.low, &forecast.answer.high);
        Self::Runs {
            is_dense: n_experts == 0 || needs.are_layers_streamed(),
            share: share(placement.on_card + placement.in_memory, n_experts),
            drive_bytes: (high.drive_bytes_per_token, low.drive_bytes_per_token),
            answer: (low.tokens_per_s, high.tokens_per_s),
            prompt: prompt.map_or((0.0, 0.0), |it| (it.low, it.high)),
            bound: low.bound.name(),
            json: forecast_json(forecast, n_experts),
        }
    }
}
