//! A plan as a page of aligned text.
//!
//! **Invariant:** what was assumed stands on the page, in one line each.

use moeflux::ByteCount;
use moeflux::provider::config::N_ROWS_DEFAULT;
use moeflux::provider::error::grouped;

use super::advice::speed;
use super::forecast::{Forecast, Prompt, Speed};
use super::machine::Figure;
use super::report::Report;
use crate::needs::{KV_KIND, float};
use crate::size::binary;

/// Columns of the text before the numbers.
const LABEL_WIDTH: usize = 34;

/// A longer line goes on below.
const LINE_WIDTH: usize = 100;

/// What the two ends mean.
const ASSUMPTIONS: &str = "\
low: uniform routing, no overlap of reading and computing, a full context, 85 % of the drive's rate
and 75 % of memory's. high: routing as skewed as the demo model's (found: 1 - (1 - share)^3, which
is 58 % at a quarter), full overlap of reading and computing, an empty context.";

/// The page, without a newline at its end.
pub(super) fn render(report: &Report) -> String {
    let mut lines = vec![title(report), String::new()];
    lines.extend(memory(report));
    lines.push(String::new());
    lines.extend(traffic(report));
    lines.push(String::new());
    lines.extend(machine(report));
    if let Some(tiers) = report.tiers {
        lines.push(String::new());
        lines.extend(tiers.lines());
    }
    if let Some(forecast) = &report.forecast {
        lines.push(String::new());
        lines.extend(expected(report, forecast));
    }
    let advice = report.advice();
    if !advice.is_empty() {
        lines.push(String::new());
        lines.extend(advice.iter().flat_map(|it| wrapped(it)));
    }
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    lines.join("\n")
}

fn title(report: &Report) -> String {
    let subject = &report.subject;
    let name = if subject.model_type.is_empty() { "a model" } else { &subject.model_type };
    match subject.params {
        Some(params) => {
            format!("{name} as it would be: {} bits in groups of {}", params.bits, params.group)
        }
        None => name.to_owned(),
    }
}

fn memory(report: &Report) -> Vec<String> {
    let needs = &report.needs;
    let state = if needs.state_bytes > 0 { ", state" } else { "" };
    let session = format!("session of {} ({}{state})", grouped(report.context), KV_KIND.name());
    let workspace = format!("workspace of {N_ROWS_DEFAULT} rows");
    let n_slots_min = needs.n_slots_min();
    let mut lines = vec![
        header("memory", "bytes"),
        size_row("resident weights", needs.resident_bytes),
        size_row(&session, needs.session_bytes(report.context)),
        size_row(&workspace, needs.workspace_bytes(N_ROWS_DEFAULT as u64)),
    ];
    if needs.n_experts() > 0 {
        lines.push(size_row("one slot for an expert", needs.slot_bytes));
        let least = format!("the least, with {n_slots_min} slots");
        lines.push(size_row(&least, needs.least_bytes(report.context)));
        let all = format!("all, with {} slots", grouped(needs.n_experts()));
        lines.push(size_row(&all, needs.all_bytes(report.context)));
    }
    lines
}

fn traffic(report: &Report) -> Vec<String> {
    let needs = &report.needs;
    let n_experts = grouped(needs.n_experts_per_token());
    vec![
        header("read for a token", "bytes"),
        size_row("resident weights", needs.resident_read_bytes),
        size_row(&format!("{n_experts} routed experts, all cold"), needs.routed_bytes()),
        size_row("all", report.read_bytes_per_token()),
        size_row("session, context full", needs.session_bytes(report.context)),
    ]
}

fn machine(report: &Report) -> Vec<String> {
    let machine = &report.machine;
    let gbps = |figure: &Figure| format!("{:.2} GB/s, {}", figure.value / 1e9, figure.source);
    let tops = format!("{:.2} TOP/s, {}", machine.compute.value / 1e12, machine.compute.source);
    let row = |label: &str, text: &str| format!("  {label:<10}{text}");
    vec![
        "machine".to_owned(),
        row("budget", &machine.budget_text()),
        row("drive", &gbps(&machine.drive)),
        row("memory", &gbps(&machine.memory)),
        row("compute", &tops),
    ]
}

fn expected(report: &Report, forecast: &Forecast) -> Vec<String> {
    let Forecast { low, high, .. } = forecast;
    let row =
        |label: &str, low: &str, high: &str| format!("  {label:<LABEL_WIDTH$}{low:>12}{high:>12}");
    let both = |label: &str, text: &dyn Fn(&Speed) -> String| row(label, &text(low), &text(high));
    let n_experts = report.needs.n_experts();
    let slots = format!("slots: {} of {}", grouped(forecast.n_slots), grouped(n_experts));
    let share = format!("{:.1} %", 100.0 * forecast.share);
    let mut lines = vec![
        format!("{:<width$}{:>12}{:>12}", "expected", "low", "high", width = LABEL_WIDTH + 2),
        row(&slots, &share, &share),
        both("experts found in memory", &|it| format!("{:.1} %", 100.0 * it.hit_rate)),
        both("read from the drive per token", &|it| bytes(it.drive_bytes_per_token)),
        both("tokens per second", &|it| speed(it.tokens_per_s)),
        both("bound by", &|it| it.bound.name().to_owned()),
    ];
    lines.extend(forecast.prompts.iter().map(prompt));
    lines.extend(ASSUMPTIONS.lines().map(|line| format!("  {line}")));
    lines
}

fn prompt(prompt: &Prompt) -> String {
    let Prompt { n_tokens, n_passes, drive_bytes, seconds, bound } = prompt;
    let passes = if *n_passes == 1 { "a pass".to_owned() } else { format!("{n_passes} passes") };
    let read = match *drive_bytes > 0.0 {
        true => format!("{passes} over {}", bytes(*drive_bytes)),
        false => "nothing read".to_owned(),
    };
    let label = format!("prompt of {}", grouped(*n_tokens));
    let rate = speed(float(*n_tokens) / seconds);
    let bound = bound.name();
    format!("  {label:<LABEL_WIDTH$}{rate:>12} tokens/s: {seconds:.1} s, {read}, bound by {bound}")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded for people")]
fn bytes(n_bytes: f64) -> String {
    ByteCount(n_bytes.max(0.0).round() as u64).rounded()
}

/// A point of a list, broken between words.
pub(crate) fn wrapped(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = "*".to_owned();
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > LINE_WIDTH {
            lines.push(std::mem::replace(&mut line, " ".to_owned()));
        }
        line.push(' ');
        line.push_str(word);
    }
    lines.push(line);
    lines
}

fn header(label: &str, what: &str) -> String {
    format!("{label:<width$}{what:>20}", width = LABEL_WIDTH + 2)
}

/// A label, exact bytes, and rounded both ways.
fn size_row(label: &str, n_bytes: u64) -> String {
    format!(
        "  {label:<LABEL_WIDTH$}{:>20}{:>12}{:>13}",
        grouped(n_bytes),
        ByteCount(n_bytes).rounded(),
        binary(n_bytes)
    )
}
