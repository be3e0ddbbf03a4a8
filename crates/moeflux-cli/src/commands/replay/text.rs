//! A replayed trace as aligned tables.

use std::fmt::Write as _;

use moeflux::provider::error::grouped;
use moeflux::provider::experts::replay::Replayed;
use moeflux::provider::experts::trace::StepKind;

use super::report::ReplayReport;
use crate::output::size::binary;

/// Width of a policy's numbers.
const CELL_WIDTH: usize = 12;

/// Renders the report, without a newline at its end.
pub(super) fn render(report: &ReplayReport) -> String {
    let header = &report.header;
    let count = |n: usize| grouped(n as u64);
    let n_layers = header.layers.iter().filter(|layer| layer.n_experts > 0).count();
    let mut lines = vec![
        format!("trace     {}, of the model {:016x}", report.file, header.fingerprint),
        format!(
            "experts   {} in {} layers, {} per token; a slot takes {}, a token all cold {}",
            count(header.n_experts()),
            count(n_layers),
            count(header.n_uses_per_row()),
            binary(header.slot_bytes()),
            binary(report.routed_bytes_per_token())
        ),
        format!(
            "tokens    {} of prompts, {} after them",
            count(report.n_prefill_tokens),
            count(report.n_decode_tokens)
        ),
    ];
    for (kind, name) in [(StepKind::Decode, "decode"), (StepKind::Prefill, "prompt")] {
        if report.n_tokens(kind) == 0 {
            continue;
        }
        lines.push(String::new());
        lines.push(format!("{name}: experts found in memory"));
        let rate = |replayed: &Replayed| {
            let rate = replayed.tally(kind).hit_rate();
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1} %", 100.0 * rate))
        };
        lines.extend(table(report, &rate));
        lines.push(String::new());
        lines.push(format!("{name}: read per token"));
        lines.extend(table(report, &|it| binary(report.read_bytes_per_token(kind, it))));
    }
    lines.join("\n")
}

fn table(report: &ReplayReport, cell: &dyn Fn(&Replayed) -> String) -> Vec<String> {
    let mut head = format!("  {:>9}{:>8}{:>13}", "slots", "share", "memory");
    for curve in &report.curves {
        let _ = write!(head, "{:>CELL_WIDTH$}", curve.name);
    }
    let row = |(budget_idx, &n_slots): (usize, &usize)| {
        let memory = binary(report.memory_bytes(n_slots));
        let share = share(n_slots, report.header.n_experts());
        let mut row = format!("  {:>9}{share:>8}{memory:>13}", grouped(n_slots as u64));
        for curve in &report.curves {
            let _ = write!(row, "{:>CELL_WIDTH$}", cell(&curve.points[budget_idx]));
        }
        row
    };
    let rows = report.budgets.iter().enumerate().map(row);
    std::iter::once(head).chain(rows).collect()
}

#[expect(clippy::cast_precision_loss, reason = "one digit is printed")]
fn share(n_slots: usize, n_experts: usize) -> String {
    format!("{:.1} %", 100.0 * n_slots as f64 / n_experts as f64)
}
