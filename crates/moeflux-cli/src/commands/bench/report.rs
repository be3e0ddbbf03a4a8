//! The figures of runs as one JSON object, or as a table.
//!
//! **Invariant:** everything that a figure depends on is given with it: model, machine, command,
//! version.

use moeflux::provider::backend::DeviceNames;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::format::Checkpoint;
use moeflux::provider::ops::Op;
use moeflux::{Budget, ByteCount};
use moeflux_io::process_peak_bytes;
use serde_json::{Value, json};

use super::{BenchArgs, Runs};
use crate::model;
use crate::output::fold::labelled;
use crate::output::size::binary;
use crate::ranks::times::RankBreakdown;
use crate::stats::median;
use crate::stats::streaming;
use crate::stats::tiers;
use crate::system::machine::Machine;

/// Facts about the model that are known before its weights are read.
#[derive(Debug)]
pub(super) struct ModelFacts {
    dir: String,
    /// Bytes of its weight files.
    file_bytes: u64,
    /// Weights that a step of one token reads: all resident ones except the embedding table, and
    /// the chosen experts.
    weight_bytes_per_token: u64,
    /// The part for the chosen experts.
    routed_bytes_per_token: u64,
}

impl ModelFacts {
    /// Collects the facts from headers.
    pub(super) fn new(blueprint: &Blueprint, checkpoint: &Checkpoint) -> Self {
        let Blueprint { spec, plan, manifest, .. } = blueprint;
        let tables = plan.embed.ops().iter().map(|op| match op {
            // A tied table is also the output matrix, and is read as such.
            Op::Embed(op) if !spec.tied_embeddings => {
                manifest.matrix(op.table).layout.total_bytes() as u64
            }
            _ => 0,
        });
        let routed_bytes_per_token = blueprint.routed_bytes_per_token();
        let resident_bytes = manifest.resident_bytes() - tables.sum::<u64>();
        Self {
            dir: checkpoint.dir.display().to_string(),
            file_bytes: checkpoint.files.iter().map(|file| file.len_bytes).sum(),
            weight_bytes_per_token: resident_bytes + routed_bytes_per_token,
            routed_bytes_per_token,
        }
    }
}

/// The results and the conditions of a benchmark.
#[derive(Debug)]
pub(super) struct BenchReport<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) facts: &'a ModelFacts,
    pub(super) device: DeviceNames,
    /// Upper bound on the tokens computed together.
    pub(super) n_rows_max: usize,
    /// The value of `--memory`.
    pub(super) budget: Budget,
    pub(super) prefill: Runs,
    pub(super) decode: Runs,
    /// Bytes per second of the drive alone.
    pub(super) drive_speeds: Vec<f64>,
}

impl BenchReport<'_> {
    /// Returns the report as JSON.
    pub(super) fn json(&self) -> Value {
        let Self { args, facts, device, n_rows_max, .. } = self;
        let (prefill_runs, decode_runs) = (&self.prefill.rates, &self.decode.rates);
        let mut report = json!({
            "prefill_tokens_per_s": median(prefill_runs),
            "decode_tokens_per_s": median(decode_runs),
            "decode_tokens_per_s_per_session": self.per_session(),
            "prefill_runs": prefill_runs,
            "decode_runs": decode_runs,
            "prompt_tokens": args.prompt_tokens,
            "gen_tokens": args.gen_tokens,
            "sessions": args.sessions.get(),
            "context_tokens": args.context_tokens,
            "chunk": n_rows_max,
            "seed": args.seed,
            "rss_bytes_peak": process_peak_bytes(),
            "backend": device.backend,
            "arithmetic": device.arithmetic.name(),
            "isa": device.isa,
            "n_threads": model::n_threads(&args.model).get(),
            "model": facts.dir,
            "model_bytes": facts.file_bytes,
            "weight_bytes_per_token": facts.weight_bytes_per_token,
            "machine": Machine::here().json(),
            "command": command_line(),
            "version": env!("CARGO_PKG_VERSION"),
            "memory_bytes": match self.budget {
                Budget::Auto => None,
                Budget::Bytes(n_bytes) => Some(n_bytes),
            },
        });
        self.add_streaming(&mut report);
        for (name, runs) in [("prefill_tiers", &self.prefill), ("decode_tiers", &self.decode)] {
            if let Some(stats) = &runs.tiers {
                report[name] = tiers::json(stats);
            }
        }
        for (name, runs) in [("prefill_ranks", &self.prefill), ("decode_ranks", &self.decode)] {
            if let Some(times) = self.rank_times(runs) {
                report[name] = times.json();
            }
        }
        if let Some(gb_per_s) = self.far_gb_per_s() {
            report["decode_far_gb_per_s"] = json!(gb_per_s);
        }
        report
    }

    fn rank_times(&self, runs: &Runs) -> Option<RankBreakdown> {
        let hosts = self.args.model.group.as_ref()?.topology().hosts;
        RankBreakdown::new(&hosts, runs.ranks.clone()?, (runs.took, runs.n_tokens))
    }

    /// Returns the tokens per second of each of the sessions that answer together.
    fn per_session(&self) -> Option<f64> {
        let n_sessions = u32::try_from(self.args.sessions.get()).unwrap_or(u32::MAX);
        Some(median(&self.decode.rates)? / f64::from(n_sessions))
    }

    /// Returns the rate at which decoding reads experts from host memory, averaged over its time.
    fn far_gb_per_s(&self) -> Option<f64> {
        let near_share = self.decode.tiers.as_ref().and_then(tiers::near_share)?;
        let far_bytes = (1.0 - near_share) * bytes_as_f64(self.facts.routed_bytes_per_token);
        Some(median(&self.decode.rates)? * far_bytes / 1e9)
    }

    /// Adds the streaming fields: for each kind of runs, and for decode (or else prefill) at the
    /// top level.
    fn add_streaming(&self, report: &mut Value) {
        let kinds = [("prefill_streaming", &self.prefill), ("decode_streaming", &self.decode)];
        for (name, runs) in kinds {
            let Some(stats) = &runs.stream else { continue };
            let mut fields = streaming::json(stats);
            fields["device_gb_per_s"] = json!(median(&self.drive_speeds).map(|it| it / 1e9));
            if let Some(fields) = fields.as_object() {
                for (key, value) in fields {
                    report[key.as_str()] = value.clone();
                }
            }
            report[name] = fields;
        }
        let speeds: Vec<f64> = self.drive_speeds.iter().map(|it| it / 1e9).collect();
        if !speeds.is_empty() {
            report["device_gb_per_s_runs"] = json!(speeds);
        }
    }

    /// Describes the runs completed before Ctrl-C, if it ended them early.
    fn interruption(&self) -> Option<String> {
        let n_asked = |n_tokens: usize| if n_tokens == 0 { 0 } else { self.args.repeat.get() };
        let prefill = (self.prefill.rates.len(), n_asked(self.args.prompt_tokens));
        let decode = (self.decode.rates.len(), n_asked(self.args.gen_tokens));
        let is_whole = prefill.0 >= prefill.1 && decode.0 >= decode.1;
        (!is_whole).then(|| {
            let ((prompts, all_prompts), (answers, all_answers)) = (prefill, decode);
            format!(
                "stopped   by Ctrl-C after {prompts} of {all_prompts} prompts and {answers} of \
                 {all_answers} answers"
            )
        })
    }

    /// Returns the report as a table.
    pub(super) fn table(&self) -> String {
        let Self { args, facts, device, n_rows_max, .. } = self;
        let (prefill_runs, decode_runs) = (&self.prefill.rates, &self.decode.rates);
        let DeviceNames { backend, arithmetic, isa, .. } = device;
        let arithmetic = arithmetic.name();
        let per_token = ByteCount(facts.weight_bytes_per_token).rounded();
        let mut lines = vec![
            format!("model     {}, {}", facts.dir, ByteCount(facts.file_bytes).rounded()),
            format!("machine   {}", Machine::here().text()),
            format!(
                "computed  on {backend} in {arithmetic} ({isa}), threads: {}, chunk: {}",
                model::n_threads(&args.model),
                n_rows_max
            ),
            format!(
                "runs      {} after one warm-up run, each after {} tokens of context",
                args.repeat, args.context_tokens
            ),
            format!(
                "memory    {} at most",
                process_peak_bytes().map_or("unknown".to_owned(), binary)
            ),
        ];
        lines.extend(self.interruption());
        lines.extend([
            String::new(),
            format!("{:<17}{:>12}{:>24}", "tokens", "tokens/s", "lowest .. highest"),
        ]);
        lines.extend(row("prefill", args.prompt_tokens, prefill_runs));
        let n_sessions = args.sessions.get();
        lines.extend(row("decode", args.gen_tokens * n_sessions, decode_runs));
        if let Some(per_session) = self.per_session().filter(|_| n_sessions > 1) {
            lines.push(format!(
                "decode computes {n_sessions} sessions together: {per_session:.2} tokens/s each"
            ));
        } else if let Some(tokens_per_s) = median(decode_runs) {
            let gb_per_s = tokens_per_s * bytes_as_f64(facts.weight_bytes_per_token) / 1e9;
            lines
                .push(format!("decode reads {per_token} of weights per token: {gb_per_s:.2} GB/s"));
        }
        for (name, runs) in [("prefill", &self.prefill), ("decode", &self.decode)] {
            if let Some(stats) = &runs.stream {
                lines.push(format!("\n{name}, all measured runs"));
                lines.extend(streaming::lines(stats).iter().flat_map(|line| labelled(line)));
            }
        }
        for (name, runs) in [("prefill", &self.prefill), ("decode", &self.decode)] {
            lines.extend(runs.tiers.as_ref().map(|it| format!("{name}: {}", tiers::line(it))));
        }
        for (name, runs) in [("prefill", &self.prefill), ("decode", &self.decode)] {
            if let Some(times) = self.rank_times(runs) {
                lines.push(format!("\n{name}, all measured runs"));
                lines.extend(times.lines());
            }
        }
        if let Some(gb_per_s) = self.far_gb_per_s() {
            lines.push(format!("decode reads {gb_per_s:.2} GB/s of them from memory"));
        }
        if let Some(speed) = median(&self.drive_speeds) {
            lines.push(format!("\nthe drive alone gives {:.2} GB/s between runs", speed / 1e9));
        }
        lines.join("\n")
    }
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn bytes_as_f64(n_bytes: u64) -> f64 {
    n_bytes as f64
}

fn row(name: &str, n_tokens: usize, runs: &[f64]) -> Option<String> {
    let lowest = runs.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = runs.iter().copied().fold(0.0, f64::max);
    let median = median(runs)?;
    let range = format!("{lowest:.2} .. {highest:.2}");
    Some(format!("{name:<8}{n_tokens:>9}{median:>12.2}{range:>24}"))
}

/// Returns the command line in a form that can be pasted into a shell.
fn command_line() -> String {
    let words = std::env::args_os().map(|word| quoted(&word.to_string_lossy()));
    words.collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+%@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let cases: [(&[f64], Option<f64>); 4] = [
            (&[], None),
            (&[3.0], Some(3.0)),
            (&[9.0, 1.0, 2.0], Some(2.0)),
            (&[4.0, 1.0, 9.0, 2.0], Some(3.0)),
        ];
        for (runs, expected) in cases {
            assert_eq!(median(runs), expected);
        }
    }

    #[test]
    fn a_row_is_there_if_there_were_runs() {
        assert_eq!(row("decode", 0, &[]), None);
        let expected = "decode         64       45.00          44.00 .. 47.25";
        assert_eq!(row("decode", 64, &[47.25, 44.0, 45.0]).as_deref(), Some(expected));
    }

    #[test]
    fn words_can_be_pasted_into_a_shell() {
        for (word, expected) in [
            ("--model=/a/b-c_d.e", "--model=/a/b-c_d.e"),
            ("", "''"),
            ("my model", "'my model'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
