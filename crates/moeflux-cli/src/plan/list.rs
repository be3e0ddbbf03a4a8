//! The models that are known by name on one machine, one line each.
//!
//! **Invariant:** arithmetic on configs embedded in the program; reads no file.

use moeflux::provider::weights::ImaginedKind;
use moeflux::{ByteCount, Error};
use serde_json::{Value, json};

use super::advice::{PACKED, range};
use super::machine::PlanMachine;
use super::report::{Plan, Report, Subject, forecast_json};
use super::routes::Routes;
use crate::bare_config::BareConfig;
use crate::failure::Outcome;
use crate::known::{KNOWN, Known};
use crate::needs::float;

/// The length of the prompt shown, one of those in a forecast.
const PROMPT_TOKENS: u64 = 512;

/// A line of the list.
#[derive(Debug)]
struct Row {
    name: &'static str,
    size: &'static str,
    stored: String,
    weights_bytes: u64,
    expected: Expected,
}

#[derive(Debug)]
enum Expected {
    /// It needs this much memory.
    TooLarge {
        least_bytes: u64,
        of: &'static str,
    },
    Runs {
        share: f64,
        answer: (f64, f64),
        prompt: (f64, f64),
        bound: &'static str,
        json: Value,
    },
}

/// All known models on this machine.
#[derive(Debug)]
pub(super) struct List {
    rows: Vec<Row>,
}

impl List {
    /// Plans the models as usually downloaded: FP8 where published so, and 4 bits; or with the
    /// requested bits.
    pub(super) fn new(
        machine: &PlanMachine,
        context: u64,
        (bits, group): (Option<u8>, Option<u8>),
    ) -> Outcome<Self> {
        let mut rows = Vec::new();
        for known in &KNOWN {
            let config = known.config()?;
            let mut kinds = vec![config.kind(bits, group)?];
            // Models trained in 4 bits are not quantised again.
            if bits.is_none() && group.is_none() && kinds == [ImaginedKind::Fp8] {
                kinds.push(PACKED);
            }
            for kind in kinds {
                rows.push(row(known, subject(known, &config, kind)?, machine, context)?);
            }
        }
        Ok(Self { rows })
    }

    pub(super) fn json(&self) -> Value {
        let row = |row: &Row| {
            let (least_bytes, forecast) = match &row.expected {
                Expected::TooLarge { least_bytes, .. } => (Some(least_bytes), None),
                Expected::Runs { json, .. } => (None, Some(json)),
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
        lines.extend(self.rows.iter().map(Row::line));
        lines
    }
}

impl Row {
    fn line(&self) -> String {
        let name = match self.name.contains(self.size) {
            true => self.name.to_owned(),
            false => format!("{} ({})", self.name, self.size),
        };
        let weights = format!("{:.0} GB", float(self.weights_bytes) / 1e9);
        let begun = format!("{name:<24}{:<6} {weights:>7}", self.stored);
        match &self.expected {
            Expected::TooLarge { least_bytes, of } => {
                format!("{begun}   needs at least {} of {of}", ByteCount(*least_bytes).rounded())
            }
            Expected::Runs { share, answer, prompt, bound, .. } => {
                let share = format!("{:.0} %", 100.0 * share);
                let [answer, prompt] = [answer, prompt].map(|(low, high)| range(*low, *high));
                format!("{begun}{share:>7} {answer:>13} {prompt:>12}  {bound}")
            }
        }
    }
}

fn subject(known: &Known, config: &BareConfig, kind: ImaginedKind) -> Outcome<Subject> {
    Ok(Subject::new(known.name.to_owned(), config.blueprint(kind)?, Some(kind)))
}

fn row(known: &Known, subject: Subject, machine: &PlanMachine, context: u64) -> Outcome<Row> {
    let subject = &subject.divided(machine.job.as_ref())?;
    let context = context.min(subject.needs.context_max);
    let plan = Plan { subject, machine, context, routes: &Routes::Unknown };
    let told = machine.card.as_ref().filter(|card| card.is_told);
    let lacks = told.is_some_and(|it| {
        subject.needs.check_gpu_memory(it.gives.room_bytes, &it.allowed_by()).is_err()
    });
    let expected = match plan.report() {
        _ if lacks => {
            Expected::TooLarge { least_bytes: subject.needs.resident_bytes, of: "GPU memory" }
        }
        Ok(report) => runs(&report),
        Err(Error::NoRoom { needed_bytes, .. }) => {
            Expected::TooLarge { least_bytes: needed_bytes, of: "memory" }
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Row {
        name: known.name,
        size: known.size,
        stored: subject.stored().unwrap_or_default(),
        weights_bytes: subject.weights_bytes,
        expected,
    })
}

fn runs(report: &Report<'_>) -> Expected {
    let forecast = &report.forecast;
    let n_experts = report.plan.subject.needs.n_experts();
    let places = &forecast.places;
    let prompt = forecast.prompts.iter().find(|it| it.n_tokens == PROMPT_TOKENS);
    Expected::Runs {
        share: float(places.on_card + places.in_memory) / float(n_experts.max(1)),
        answer: (forecast.answer.low.tokens_per_s, forecast.answer.high.tokens_per_s),
        prompt: prompt.map_or((0.0, 0.0), |it| (it.low, it.high)),
        bound: forecast.answer.low.bound.name(),
        json: forecast_json(forecast, n_experts),
    }
}
