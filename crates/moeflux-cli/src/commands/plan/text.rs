//! A plan as aligned text.
//!
//! **Invariant:** each assumption is stated on a line of the page.

use moeflux::ByteCount;
use moeflux::provider::error::grouped;

use super::advice::{advice, range};
use super::forecast::{AnswerForecast, ExpertLocations, PromptForecast};
use super::machine::{Figure, PlanMachine};
use super::report::PlanReport;
use super::routing::RoutingSource;
use crate::output::fold::{folded, point};
use crate::output::page::Labels;
use crate::output::size::binary;

/// Width of the labels of sizes.
const SIZES: Labels = Labels(31);

/// Width of the labels of the parts of a machine.
const ROWS: Labels = Labels(10);

/// Width of the text before speeds.
const SPEED_LABEL_WIDTH: usize = 28;

/// Width of a range of speeds.
const RANGE_WIDTH: usize = 15;

/// Explains both ends if nothing is read from the drive.
const ENDS_OF_RATES: &str = "Low: rates below those above. High: rates above them.";

/// Explains both ends if some experts are on a GPU and others in memory.
const ENDS_OF_PLACES: &str = "Low: rates below those above, experts used equally. High: rates \
                              above them, routing as skewed as the demo model's.";

/// Explains both ends if experts are read from the drive.
const ENDS: &str = "Low: rates below those above, little overlap of reading and computing, routing \
                    that no cache can guess. High: full overlap, routing as skewed as the demo \
                    model's. A trace of your own text (--trace) narrows both.";

/// Explains both ends if the layers of a dense model are read from the drive.
const ENDS_IN_TURN: &str = "Every token needs every layer, so what is not in memory is read for \
                            each token. Low: rates below those above, little overlap of reading \
                            and computing. High: full overlap.";

/// Explains both ends if there is a trace.
const ENDS_OF_TRACE: &str = "Low: rates below those above, little overlap of reading and \
                             computing. High: full overlap. Routing is that of the trace.";

/// Renders the plan, without a newline at its end.
pub(super) fn render(report: &PlanReport<'_>) -> String {
    let mut lines = vec![title(report), String::new()];
    lines.extend(memory(report));
    lines.push(String::new());
    lines.extend(machine_lines(report.query.machine));
    lines.push(String::new());
    lines.extend(expected(report));
    lines.push(String::new());
    lines.extend(advice(report).iter().flat_map(|it| point(it)));
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    lines.join("\n")
}

fn title(report: &PlanReport<'_>) -> String {
    let planned = report.query.planned;
    let bytes = ByteCount(planned.weights_bytes).rounded();
    let over = report.query.machine.cluster.map_or(String::new(), |cluster| {
        format!("\nover {} machines, each with some rows of every expert", cluster.n_ranks)
    });
    match planned.stored() {
        Some(stored) => format!("{} stored in {stored}: {bytes}{over}", planned.name),
        None => format!("{}: {bytes}{over}", planned.name),
    }
}

fn memory(report: &PlanReport<'_>) -> Vec<String> {
    let needs = &report.query.planned.needs;
    let (layout, machine) = (&report.forecast.layout, report.query.machine);
    let session = format!("{} tokens of context", grouped(report.query.context));
    let program_bytes = report.resources.host_with(&report.query.planned.blueprint).program_bytes;
    let step = layout
        .fixed_bytes
        .saturating_sub(needs.resident_bytes + layout.session_bytes + program_bytes)
        .saturating_sub(layout.memory.table_bytes);
    let resident = match needs.are_layers_streamed() {
        true => "weights that stay in memory",
        false => "weights that every token uses",
    };
    let mut lines = vec![
        SIZES.header(if machine.cluster.is_some() { "memory of each" } else { "memory" }, "bytes"),
        SIZES.size(resident, needs.resident_bytes),
        SIZES.size(&session, layout.session_bytes),
        SIZES.size(&format!("a step of {} tokens", grouped(layout.n_rows_max as u64)), step),
    ];
    if layout.memory.table_bytes > 0 {
        let what = match layout.row_cache_bytes {
            u64::MAX => "all rows of a table",
            _ => "rows of a table on the drive",
        };
        lines.push(SIZES.size(what, layout.memory.table_bytes));
        let (n_rows, n_bytes) = report.query.planned.blueprint.rows_per_token();
        lines.push(SIZES.size(&format!("  {n_rows} of them for a token"), n_bytes));
    }
    if needs.n_experts() > 0 {
        let all_bytes = needs.n_experts() * layout.slot_bytes;
        let n_experts = grouped(needs.n_experts());
        if needs.are_layers_streamed() {
            lines.push(SIZES.size(&format!("{n_experts} layers' feed-forwards"), all_bytes));
        } else {
            lines.push(SIZES.size(&format!("{n_experts} experts"), all_bytes));
            let used = format!("  {} of them for a token", grouped(needs.n_experts_per_token()));
            lines.push(SIZES.size(&used, needs.routed_bytes()));
        }
    }
    lines.push(SIZES.size("all of it", report.all_bytes));
    match report.least_bytes_of_cpu {
        None => lines.push(SIZES.size("minimum", report.least_bytes)),
        Some(of_cpu) => {
            lines.push(SIZES.size("minimum without the GPU", of_cpu));
            lines.push(SIZES.size("minimum with this GPU", report.least_bytes));
        }
    }
    lines
}

/// Describes the machine and the sources of its figures.
pub(super) fn machine_lines(machine: &PlanMachine) -> Vec<String> {
    let gbps = |figure: &Figure| format!("{:.2} GB/s, {}", figure.value / 1e9, figure.source);
    let mut lines = vec![match machine.cluster {
        Some(cluster) => format!("each of {} machines", cluster.n_ranks),
        None => "machine".to_owned(),
    }];
    lines.extend(
        machine.cluster.iter().flat_map(|cluster| ROWS.row("network", &cluster.network.text())),
    );
    lines.extend(ROWS.row("memory", &machine.memory_text()));
    lines.extend(ROWS.row("", &format!("reads {}", gbps(&machine.memory))));
    lines.extend(ROWS.row("drive", &format!("reads {}", gbps(&machine.drive))));
    let cpu = &machine.cpu;
    let profile = &cpu.profile.value;
    let [answers, prompts] =
        [profile.answer_bytes_per_s / 1e9, profile.prompt_operations_per_s / 1e9];
    lines.extend(ROWS.row("CPU", &format!("answers read {answers:.1} GB/s, {}", cpu.source)));
    lines.extend(ROWS.row("", &format!("prompts take {prompts:.0} GOP/s, {}", cpu.prompts_source)));
    if let Some(card) = &machine.card {
        let profile = &card.estimate.profile.value;
        let (room, far) = (binary(card.resources.room_bytes), profile.far_bytes_per_s / 1e9);
        let near = profile.answer_bytes_per_s / 1e9;
        lines.extend(ROWS.row("GPU", &card.estimate.source));
        let text = format!(
            "a model may use {room}; answers read {near:.0} GB/s there, and {far:.0} GB/s of the \
             host's memory{}",
            card.guesses
        );
        lines.extend(ROWS.row("", &text));
    }
    lines
}

fn expected(report: &PlanReport<'_>) -> Vec<String> {
    let forecast = &report.forecast;
    let heading = format!(
        "{:<width$}{:>RANGE_WIDTH$}  {}",
        "expected",
        "tokens/s",
        "bound by",
        width = SPEED_LABEL_WIDTH + 2
    );
    let after = format!("answer, after {} tokens", grouped(report.query.context));
    let mut lines = vec![
        heading,
        answer("answer, at the beginning", &forecast.answer),
        answer(&after, &forecast.answer_after),
    ];
    lines.extend(forecast.prompts.iter().map(prompt));
    let alone = |it: &AnswerForecast| answer("answer, one machine alone", it);
    lines.extend(report.alone.as_ref().map(alone));
    let needs = &report.query.planned.needs;
    if needs.n_experts() > 0 {
        let what = if needs.are_layers_streamed() { "feed-forwards" } else { "experts" };
        lines.extend(folded("  ", &format!("{what}: {}", places(report))));
    }
    if forecast.placement.on_drive > 0 {
        let AnswerForecast { low, high } = &forecast.answer;
        let [least, most] = [high, low].map(|it| bytes(it.drive_bytes_per_token));
        let [few, many] = [low, high].map(|it| 100.0 * it.hit_rate);
        let (found, read) = if least == most {
            (format!("{few:.0} %"), least)
        } else {
            (format!("{few:.0} to {many:.0} %"), format!("{least} to {most}"))
        };
        let places = if forecast.placement.on_card > 0 { "on the GPU or in" } else { "in" };
        let text = format!("found {places} memory: {found} of uses; read for a token: {read}");
        lines.extend(folded("  ", &text));
    }
    lines.extend(exchanges(report).iter().flat_map(|it| folded("  ", it)));
    let is_traced = matches!(report.query.routes, RoutingSource::Traced(_));
    let ends = match forecast.placement {
        ExpertLocations { on_drive: 1.., .. } if is_traced => ENDS_OF_TRACE,
        ExpertLocations { on_drive: 1.., .. } if needs.are_layers_streamed() => ENDS_IN_TURN,
        ExpertLocations { on_drive: 1.., .. } => ENDS,
        ExpertLocations { on_card: 1.., in_memory: 1.., .. } => ENDS_OF_PLACES,
        _ => ENDS_OF_RATES,
    };
    lines.extend(folded("  ", ends));
    lines
}

/// Describes the exchanges between machines.
fn exchanges(report: &PlanReport<'_>) -> Option<String> {
    report.query.machine.cluster?;
    let AnswerForecast { low, high } = &report.forecast.answer;
    let [least, most] = [high, low].map(|it| it.exchange_s * 1e3);
    let n_exchanges = 2 * report.query.planned.needs.sparse_layers.len() as u64;
    Some(format!(
        "exchanges: {} for a token, {least:.1} to {most:.1} ms together",
        grouped(n_exchanges)
    ))
}

/// Describes the placement of experts.
fn places(report: &PlanReport<'_>) -> String {
    let ExpertLocations { on_card, in_memory, on_drive } = report.forecast.placement;
    let n_experts = report.query.planned.needs.n_experts();
    let mut parts = Vec::new();
    for (n, place) in
        [(on_card, "on the GPU"), (in_memory, "in memory"), (on_drive, "on the drive")]
    {
        if n == n_experts && n > 0 {
            return format!("all {place}");
        }
        if n > 0 {
            parts.push(format!("{} {place}", grouped(n)));
        }
    }
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

fn answer(label: &str, answer: &AnswerForecast) -> String {
    let AnswerForecast { low, high } = answer;
    let range = range(low.tokens_per_s, high.tokens_per_s);
    let bound = match (low.bound.name(), high.bound.name()) {
        (low, high) if low == high => low.to_owned(),
        (low, high) => format!("{low} or {high}"),
    };
    format!("  {label:<SPEED_LABEL_WIDTH$}{range:>RANGE_WIDTH$}  {bound}")
}

fn prompt(prompt: &PromptForecast) -> String {
    let PromptForecast { n_tokens, n_passes, drive_bytes, low, high, bound } = prompt;
    let read = match (*drive_bytes > 0.0, *n_passes) {
        (false, _) => String::new(),
        (true, 1) => format!(", {} read", bytes(*drive_bytes)),
        (true, n) => format!(", {} read in {n} steps", bytes(*drive_bytes)),
    };
    let label = format!("prompt of {}", grouped(*n_tokens));
    let (range, bound) = (range(*low, *high), bound.name());
    format!("  {label:<SPEED_LABEL_WIDTH$}{range:>RANGE_WIDTH$}  {bound}{read}")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded for people")]
fn bytes(n_bytes: f64) -> String {
    ByteCount(n_bytes.max(0.0).round() as u64).rounded()
}
