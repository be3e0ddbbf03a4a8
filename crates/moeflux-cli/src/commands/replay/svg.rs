//! A replayed trace as a chart: hit rate over memory, a line per policy, the bound dashed.
//!
//! **Invariant:** a self-contained file for any browser, light or dark by the reader's preference;
//! the curves' colours are visible on both. External text is escaped.

use std::fmt::Write as _;

use moeflux::provider::experts::trace::StepKind;

use super::report::{Curve, ReplayReport};
use crate::output::size::binary;

/// Size of the chart.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;

/// Edges of the plot area.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 660.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 380.0;

/// Colours of the page and its text.
const STYLE: &str = "rect{fill:#fff}text{fill:#343a40}\
                     @media(prefers-color-scheme:dark){rect{fill:#16181b}text{fill:#dee2e6}}";

/// Each has a contrast of at least 3 with either page.
const COLOURS: [&str; 4] = ["#d9480f", "#0c8599", "#7048e8", "#2b8a3e"];
const GREY: &str = "#868e96";

/// Upper bound on the ticks of the memory axis.
const N_TICKS_MAX: u64 = 8;

/// Returns the chart as text.
pub(super) fn render(report: &ReplayReport) -> String {
    let kind = if report.n_decode_tokens > 0 { StepKind::Decode } else { StepKind::Prefill };
    let memory_max = report.budgets.iter().map(|&n| report.memory_bytes(n)).max().unwrap_or(1);
    let chart = HitRateChart { report, kind, memory_max_bytes: memory_max.max(1) };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n<style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n"
    );
    chart.title(&mut svg);
    chart.hit_axis(&mut svg);
    chart.memory_axis(&mut svg);
    for (curve_idx, curve) in report.curves.iter().enumerate() {
        chart.curve(&mut svg, curve_idx, curve);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A chart of hit rate over memory.
struct HitRateChart<'a> {
    report: &'a ReplayReport,
    kind: StepKind,
    memory_max_bytes: u64,
}

impl HitRateChart<'_> {
    fn title(&self, svg: &mut String) {
        let what = match self.kind {
            StepKind::Decode => "decode",
            StepKind::Prefill => "prompts",
        };
        let file = escaped(&self.report.file);
        text(svg, (LEFT, 24.0), "start", &format!("Experts found in memory, {what} of {file}"));
    }

    /// Draws the hit rate on the left, and on the right the bytes read per token, its complement.
    fn hit_axis(&self, svg: &mut String) {
        let routed_bytes = self.report.routed_bytes_per_token();
        let records = self.report.header.layers.iter().map(|layer| layer.record_bytes);
        let mut of_experts = records.filter(|&n_bytes| n_bytes > 0);
        let first = of_experts.next();
        // The axes correspond only for decoding with equal records: prompts read an expert once for
        // many tokens, and unequal records differ in weight.
        let is_rest = self.kind == StepKind::Decode && of_experts.all(|it| Some(it) == first);
        for percent in (0..=100_u32).step_by(20) {
            let y = y_of(f64::from(percent) / 100.0);
            line(svg, (LEFT, y), (RIGHT, y));
            text(svg, (LEFT - 8.0, y + 4.0), "end", &format!("{percent} %"));
            if is_rest {
                let read_bytes = u128::from(routed_bytes) * u128::from(100 - percent) / 100;
                let read_bytes = u64::try_from(read_bytes).unwrap_or(u64::MAX);
                text(svg, (RIGHT + 8.0, y + 4.0), "start", &binary(read_bytes));
            }
        }
        text(svg, (LEFT - 8.0, TOP - 12.0), "end", "hits");
        if is_rest {
            text(svg, (WIDTH - 8.0, TOP - 12.0), "end", "read per token");
        }
    }

    fn memory_axis(&self, svg: &mut String) {
        let tick_bytes = tick_bytes(self.memory_max_bytes);
        for tick_idx in 0..=self.memory_max_bytes / tick_bytes {
            let x = self.x_of(tick_idx * tick_bytes);
            line(svg, (x, BOTTOM), (x, BOTTOM + 5.0));
            text(svg, (x, BOTTOM + 20.0), "middle", &tick_text(tick_idx * tick_bytes));
        }
        let n_experts = self.report.header.n_experts();
        let all = binary(self.report.memory_bytes(n_experts));
        let label = format!("memory for experts (all {n_experts}: {all})");
        text(svg, (f64::midpoint(LEFT, RIGHT), BOTTOM + 44.0), "middle", &label);
    }

    fn curve(&self, svg: &mut String, curve_idx: usize, curve: &Curve) {
        let (colour, dash) = match curve.is_bound() {
            true => (GREY, " stroke-dasharray=\"6 4\""),
            false => (COLOURS[curve_idx % COLOURS.len()], ""),
        };
        let mut points = String::new();
        let mut dots = String::new();
        for (&n_slots, replayed) in self.report.budgets.iter().zip(&curve.points) {
            let Some(rate) = replayed.tally(self.kind).hit_rate() else { continue };
            let (x, y) = (self.x_of(self.report.memory_bytes(n_slots)), y_of(rate));
            let _ = write!(points, "{x:.1},{y:.1} ");
            let _ = write!(
                dots,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: \
                 {n_slots} slots, {:.1} %</title></circle>",
                curve.name,
                100.0 * rate
            );
        }
        let stroke = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}");
        let _ = writeln!(svg, "<polyline points=\"{}\" {stroke}/>{dots}", points.trim_end());
        let (x, y) = (LEFT + 12.0 + 100.0 * index(curve_idx), TOP - 16.0);
        let _ = writeln!(svg, "<path d=\"M{x:.1} {y:.1}h24\" {stroke}/>");
        text(svg, (x + 30.0, y + 4.0), "start", curve.name);
    }

    #[expect(clippy::cast_precision_loss, reason = "a tenth of a pixel is drawn")]
    fn x_of(&self, n_bytes: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * (n_bytes as f64 / self.memory_max_bytes as f64)
    }
}

fn y_of(rate: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * rate
}

#[expect(clippy::cast_precision_loss, reason = "a handful of curves")]
fn index(idx: usize) -> f64 {
    idx as f64
}

/// Returns the tick distance: 1, 2 or 5 times a power of ten of a binary unit.
fn tick_bytes(max_bytes: u64) -> u64 {
    let unit = [40, 30, 20, 10].map(|shift| 1 << shift).into_iter().find(|&it| max_bytes >= 2 * it);
    let unit = unit.unwrap_or(1);
    let mut tick = unit;
    for factor in [1, 2, 5, 10, 20, 50, 100, 200, 500].into_iter() {
        tick = unit * factor;
        if max_bytes / tick <= N_TICKS_MAX {
            break;
        }
    }
    // For more than 4 PiB, the factors do not suffice.
    tick.max(max_bytes / N_TICKS_MAX)
}

/// Formats like `binary`, without zero decimals.
fn tick_text(n_bytes: u64) -> String {
    binary(n_bytes).replace(".00 ", " ")
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"{GREY}\" stroke-opacity=\"0.4\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// Writes a text, which must already be escaped.
fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // Control characters are not allowed in XML.
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}
