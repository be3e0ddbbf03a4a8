//! Possible improvements: sentences with numbers.
//!
//! **Invariant:** states the effect of a change, never recommends it.

use moeflux::ByteCount;
use moeflux::provider::spec::QuantParams;
use moeflux::provider::weights::SyntheticKind;

use super::forecast::{AnswerForecast, Bottleneck, ExpertLocations, Forecast};
use super::report::PlanReport;
use super::resources::{Resources, Uncertain};
use crate::output::size::binary;

/// The usual quantisation of `moeflux pack`.
pub(crate) const PACKED: SyntheticKind = SyntheticKind::Affine(QuantParams { bits: 4, group: 64 });

pub(super) fn advice(report: &PlanReport<'_>) -> Vec<String> {
    let mut advice = Vec::new();
    let PlanReport { forecast, least_bytes, .. } = report;
    if forecast.placement.on_drive == 0 {
        let seconds = forecast.load_seconds;
        let needs = &report.query.planned.needs;
        let is_dense = needs.n_experts() == 0 || needs.are_layers_streamed();
        let what = if is_dense { "the whole model is" } else { "all experts are" };
        let place = match forecast.placement {
            _ if is_dense && report.resources.card.is_some() => "on the GPU",
            ExpertLocations { on_card: 0, .. } => "in memory",
            ExpertLocations { in_memory: 0, .. } => "on the GPU",
            _ => "on the GPU or in memory",
        };
        advice.push(format!(
            "{what} {place}: after loading ({seconds:.1} s) nothing is read from the drive"
        ));
    } else {
        advice.extend(more_memory(report));
        advice.extend(faster_drive(report));
    }
    let least = |n_bytes: u64| format!("{} ({})", typed(n_bytes), ByteCount(n_bytes).rounded());
    advice.push(match report.least_bytes_of_cpu {
        None => format!("minimum: --memory {}", least(*least_bytes)),
        Some(of_cpu) => format!(
            "minimum: --memory {} without the GPU, --memory {} with it",
            least(of_cpu),
            least(*least_bytes)
        ),
    });
    let without = report.without_gpu.iter();
    advice.extend(without.map(|it| format!("the GPU of this machine is not used: {it}")));
    if report.query.planned.kind == Some(SyntheticKind::Float) {
        advice.push("with 4 bits, as `moeflux pack` writes them: add --bits 4".to_owned());
    }
    let doubts = report.query.machine.doubts.iter();
    advice.extend(doubts.map(|it| format!("warning: {it}")));
    advice
}

/// Formats bytes as an option accepts them.
fn typed(n_bytes: u64) -> String {
    format!("{}M", n_bytes.div_ceil(1 << 20))
}

fn speeds(report: &PlanReport<'_>, resources: &Resources) -> Option<String> {
    report.query.forecast_input(resources).forecast().ok().map(|it| speed_range(&it.answer))
}

fn more_memory(report: &PlanReport<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let Some(now) = report.query.machine.memory_bytes() else { return lines };
    let double = now.saturating_mul(2);
    if double < report.all_bytes {
        let more = speeds(report, &report.resources.with_budget(double));
        lines.extend(more.map(|it| format!("with {} of memory: {it}", binary(double))));
    }
    let all = speeds(report, &report.resources.with_budget(report.all_bytes));
    let all_text = binary(report.all_bytes);
    lines.extend(
        all.map(|it| format!("with {all_text} of memory nothing is read from the drive: {it}")),
    );
    lines
}

fn faster_drive(report: &PlanReport<'_>) -> Option<String> {
    if report.forecast.answer.high.bound != Bottleneck::Drive {
        return None;
    }
    let double = 2.0 * report.resources.drive.value;
    let faster = Resources { drive: Uncertain::of_drive(double), ..report.resources.clone() };
    let speeds = speeds(report, &faster)?;
    Some(format!("with a drive of {:.1} GB/s: {speeds}", double / 1e9))
}

/// Formats a range as `0.35 to 0.41 tokens/s`.
pub(crate) fn speed_range(answer: &AnswerForecast) -> String {
    format!("{} tokens/s", range(answer.low.tokens_per_s, answer.high.tokens_per_s))
}

/// Formats the range for a forecast's first tokens.
pub(crate) fn first_tokens(forecast: &Forecast) -> String {
    speed_range(&forecast.answer)
}

/// Formats a range as `0.35 to 0.41`.
pub(super) fn range(low: f64, high: f64) -> String {
    let [low, high] = [low, high].map(speed);
    if low == high { low } else { format!("{low} to {high}") }
}

/// Formats a speed with its significant digits.
pub(super) fn speed(tokens_per_s: f64) -> String {
    match tokens_per_s {
        10.0.. => format!("{tokens_per_s:.0}"),
        1.0.. => format!("{tokens_per_s:.1}"),
        _ => format!("{tokens_per_s:.2}"),
    }
}
