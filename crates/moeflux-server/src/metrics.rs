//! Counters in the text format of Prometheus.
//!
//! Names are vLLM's where the meaning is the same, so that its dashboards work; others begin with
//! `moeflux:`. **Invariant:** one line of help and one with the type precede the values of a name.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use moeflux_schedule::{DropReason, Histogram, PromptOutcome, Stats};

use moeflux_wire::FailureKind;

/// Numbers of current and past connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionCounts {
    pub(crate) n_open: usize,
    pub(crate) n_accepted: u64,
    pub(crate) n_displaced: u64,
    pub(crate) n_refused: u64,
}

/// Numbers of refused requests, by reason.
#[derive(Debug, Default)]
pub(crate) struct RefusalCounts {
    /// In the order of [`FailureKind::ALL`].
    by_kind: [AtomicU64; FailureKind::ALL.len()],
    n_malformed: AtomicU64,
}

impl RefusalCounts {
    /// Counts a request that was answered with a failure of this kind.
    pub(crate) fn count(&self, kind: FailureKind) {
        let of_kind = FailureKind::ALL.iter().zip(&self.by_kind).find(|(it, _)| **it == kind);
        of_kind.expect("all kinds are listed").1.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that violated HTTP.
    pub(crate) fn count_malformed(&self) {
        self.n_malformed.fetch_add(1, Ordering::Relaxed);
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let kinds = FailureKind::ALL.iter().zip(&self.by_kind);
        let kinds = kinds.map(move |(kind, counter)| (kind.name(), of(counter)));
        kinds.chain([("malformed", of(&self.n_malformed))])
    }
}

/// Returns all counters as a page.
pub(crate) fn text(
    model: &str,
    stats: &Stats,
    (connections, refusals): (&ConnectionCounts, &RefusalCounts),
    n_replayed: u64,
) -> String {
    let mut page = Page { label: escaped(model), text: String::new() };
    requests(&mut page, stats);
    refused(&mut page, refusals);
    tokens(&mut page, stats);
    times(&mut page, stats);
    own(&mut page, stats);
    saved(&mut page, stats);
    model_memory(&mut page, stats);
    streamed(&mut page, stats);
    table_rows(&mut page, stats);
    let help = "Answers in histories that were replayed as sampled.";
    page.counter("moeflux:replayed_turns_total", help, n_replayed);
    connected(&mut page, *connections);
    page.text
}

fn connected(page: &mut Page, connections: ConnectionCounts) {
    let ConnectionCounts { n_open, n_accepted, n_displaced, n_refused } = connections;
    page.gauge("moeflux:connections", "Open connections.", count(n_open));
    page.counter("moeflux:connections_total", "Accepted connections.", n_accepted);
    let help = "Connections closed to make room for others.";
    page.counter("moeflux:connections_displaced_total", help, n_displaced);
    let help = "Connections refused because their address had reached its limit.";
    page.counter("moeflux:connections_refused_total", help, n_refused);
}

fn requests(page: &mut Page, stats: &Stats) {
    page.gauge("vllm:num_requests_running", "Requests in progress.", count(stats.n_running));
    page.gauge("vllm:num_requests_waiting", "Requests in the queue.", count(stats.n_waiting));
    let ends = [
        ("stop", stats.n_ended + stats.n_stopped),
        ("length", stats.n_cut),
        ("abort", stats.n_cancelled),
        ("error", stats.n_failed),
    ];
    let name = "vllm:request_success_total";
    page.begin(name, "Finished answers, by outcome.", "counter");
    for (reason, n_answers) in ends {
        page.value(name, &format!(",finished_reason=\"{reason}\""), n_answers);
    }
}

fn refused(page: &mut Page, refusals: &RefusalCounts) {
    let name = "moeflux:requests_refused_total";
    page.begin(
        name,
        "Requests that were refused or failed before their response, by reason.",
        "counter",
    );
    for (reason, n_requests) in refusals.named() {
        page.value(name, &format!(",reason=\"{reason}\""), n_requests);
    }
}

fn tokens(page: &mut Page, stats: &Stats) {
    let n_prompt = stats.n_prompt_tokens;
    page.counter("vllm:prompt_tokens_total", "Prompt tokens.", n_prompt);
    let n_answer = stats.n_answer_tokens;
    page.counter("vllm:generation_tokens_total", "Answer tokens.", n_answer);
    let help = "Prompt tokens looked up in sessions.";
    page.counter("vllm:prefix_cache_queries_total", help, n_prompt);
    let help = "Prompt tokens found in a session or on the drive.";
    page.counter("vllm:prefix_cache_hits_total", help, stats.n_cached_tokens);
    let name = "moeflux:cached_tokens_total";
    page.begin(name, "Prompt tokens that needed no computation, by place.", "counter");
    let n_drive = stats.n_cached_drive_tokens;
    for (tier, n_tokens) in [("memory", stats.n_cached_tokens - n_drive), ("drive", n_drive)] {
        page.value(name, &format!(",tier=\"{tier}\""), n_tokens);
    }
    let name = "moeflux:prompts_total";
    page.begin(name, "Prompts, by what they found of a conversation.", "counter");
    for (outcome, n_prompts) in PromptOutcome::ALL.iter().zip(stats.n_outcomes) {
        page.value(name, &format!(",found=\"{}\"", outcome.name()), n_prompts);
    }
    let help = "Prompt tokens per request.";
    page.histogram("vllm:request_prompt_tokens", help, &stats.prompt_tokens);
    let help = "Tokens per answer.";
    page.histogram("vllm:request_generation_tokens", help, &stats.answer_tokens);
}

fn times(page: &mut Page, stats: &Stats) {
    let of = [
        ("time_to_first_token", "Until the first token", &stats.first_token),
        ("inter_token_latency", "Between two tokens", &stats.between_tokens),
        ("e2e_request_latency", "From submission to the last token", &stats.whole),
        ("request_queue_time", "In the queue", &stats.queued),
        ("request_prefill_time", "From the queue to the first token", &stats.prompt),
        ("request_decode_time", "From the first token to the last", &stats.answer),
    ];
    for (name, help, histogram) in of {
        page.histogram(&format!("vllm:{name}_seconds"), &format!("{help}, in seconds."), histogram);
    }
}

fn own(page: &mut Page, stats: &Stats) {
    let help = "Sessions kept for later prompts.";
    page.gauge("moeflux:sessions_kept", help, count(stats.n_kept));
    page.gauge("moeflux:sessions_kept_bytes", "Bytes of kept sessions.", stats.kept_bytes);
    let by_reason = [
        ("moeflux:sessions_dropped_total", "Kept sessions that were dropped.", &stats.n_dropped),
        ("moeflux:prompts_read_again_total", "Prompts whose session was dropped.", &stats.n_missed),
    ];
    for (name, help, counts) in by_reason {
        page.begin(name, help, "counter");
        for (reason, n_sessions) in DropReason::ALL.iter().zip(counts) {
            page.value(name, &format!(",reason=\"{}\"", reason.name()), n_sessions);
        }
    }
    let help = "Bytes of all sessions.";
    page.gauge("moeflux:session_bytes", help, stats.room.booked_bytes);
    if let Some(limit_bytes) = stats.room.limit_bytes {
        let help = "Upper bound on the bytes of all sessions.";
        page.gauge("moeflux:session_bytes_limit", help, limit_bytes);
    }
    let help = "Answers parked until their clients read again.";
    page.gauge("moeflux:answers_parked", help, count(stats.n_parked));
    page.counter("moeflux:answer_steps_total", "Steps of answers.", stats.n_steps);
    let help = "Answer tokens determined by a grammar.";
    page.counter("moeflux:forced_tokens_total", help, stats.n_forced_tokens);
}

/// The folder of saved conversations, if there is one.
fn saved(page: &mut Page, stats: &Stats) {
    let Some(saved) = &stats.saved else { return };
    let gauges = [
        ("objects", "Objects of saved conversations on the drive.", count(saved.n_objects)),
        ("bytes", "Bytes of saved conversations on the drive.", saved.n_bytes),
        ("bytes_limit", "Upper bound on these bytes.", saved.n_bytes_max),
        ("written_today_bytes", "Bytes written to them today.", saved.written_today_bytes),
        ("written_per_day_limit", "Upper bound on these bytes.", saved.write_bytes_per_day),
    ];
    for (name, help, value) in gauges {
        page.gauge(&format!("moeflux:saved_{name}"), help, value);
    }
    let counters = [
        ("objects_written", "Objects that were written.", saved.n_written),
        (
            "writes_refused",
            "Objects not written: a bound, a full drive, an error.",
            saved.n_refused,
        ),
        ("objects_evicted", "Objects that left for others.", saved.n_evicted),
        ("objects_unusable", "Objects that could not be used.", saved.n_misses),
        ("objects_damaged", "Files that were found damaged.", saved.n_damaged),
        ("drive_errors", "Operations that the system refused.", saved.n_drive_errors),
    ];
    for (name, help, value) in counters {
        page.counter(&format!("moeflux:saved_{name}_total"), help, value);
    }
}

fn model_memory(page: &mut Page, stats: &Stats) {
    let help = "Number of model loads.";
    page.counter("moeflux:model_loads_total", help, stats.n_loads);
    let help = "Number of model unloads.";
    page.counter("moeflux:model_unloads_total", help, stats.n_unloads);
    let Some(memory) = &stats.memory else { return };
    let help = "Upper bound on this process's memory; compare process_resident_memory_bytes.";
    page.gauge("moeflux:memory_budget_bytes", help, memory.budget_bytes);
    let name = "moeflux:model_memory_bytes";
    page.begin(name, "Memory of the model, by use.", "gauge");
    let uses = [
        ("resident", memory.resident_bytes),
        ("experts", memory.expert_bytes),
        ("step", memory.workspace_bytes),
    ];
    for (used_for, n_bytes) in uses {
        page.value(name, &format!(",use=\"{used_for}\""), n_bytes);
    }
}

fn streamed(page: &mut Page, stats: &Stats) {
    let Some(stream) = &stats.stream else { return };
    let help = "Bytes of experts read from drives.";
    let n_bytes = stream.demand_bytes + stream.guess_bytes;
    page.counter("moeflux:drive_read_bytes_total", help, n_bytes);
    let name = "moeflux:experts_total";
    page.begin(name, "Experts requested, by location.", "counter");
    for (place, n_experts) in
        [("memory", stream.hits), ("on_the_way", stream.on_their_way), ("drive", stream.misses)]
    {
        page.value(name, &format!(",place=\"{place}\""), n_experts);
    }
    let name = "moeflux:drive_wait_seconds_total";
    page.begin(name, "Time spent waiting for drives.", "counter");
    page.value(name, "", stream.read_wait.as_secs_f64());
}

/// Rows of tables, if the model has any.
fn table_rows(page: &mut Page, stats: &Stats) {
    let Some(rows) = &stats.rows else { return };
    let name = "moeflux:table_rows_total";
    page.begin(name, "Rows of tables requested, by location.", "counter");
    for (place, n_rows) in [("memory", rows.hits), ("drive", rows.asked - rows.hits)] {
        page.value(name, &format!(",place=\"{place}\""), n_rows);
    }
    let help = "Bytes read for rows of tables.";
    page.counter("moeflux:table_read_bytes_total", help, rows.read_bytes);
    let name = "moeflux:table_wait_seconds_total";
    page.begin(name, "Time spent waiting for rows of tables.", "counter");
    page.value(name, "", rows.read_wait.as_secs_f64());
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// The text written so far.
struct Page {
    /// The model's name, escaped.
    label: String,
    text: String,
}

impl Page {
    fn begin(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn value(&mut self, name: &str, more_labels: &str, value: impl std::fmt::Display) {
        let label = std::mem::take(&mut self.label);
        self.line(format_args!("{name}{{model_name=\"{label}\"{more_labels}}} {value}"));
        self.label = label;
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.begin(name, help, "gauge");
        self.value(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.begin(name, help, "counter");
        self.value(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.begin(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for (bound, n_values) in histogram.buckets() {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.value(&bucket, &format!(",le=\"{bound}\""), n_values);
        }
        self.value(&format!("{name}_sum"), "", histogram.sum());
        self.value(&format!("{name}_count"), "", histogram.count());
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a text takes every line");
    }
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use moeflux::stats::RowStats;

    use super::*;

    #[test]
    fn what_was_cached_or_read_is_told_by_place_and_outcome() {
        let mut stats = Stats::default();
        (stats.n_cached_tokens, stats.n_cached_drive_tokens) = (100, 30);
        stats.n_outcomes = [1, 2, 3, 4, 5, 6, 7];
        stats.rows = Some(RowStats { asked: 32, hits: 5, read_bytes: 4096, ..RowStats::default() });
        stats.saved = Some(Default::default());
        if let Some(saved) = &mut stats.saved {
            (saved.n_objects, saved.n_bytes_max, saved.n_refused) = (8, 9_000, 10);
            (saved.n_misses, saved.n_damaged) = (11, 12);
        }
        let counts = (&ConnectionCounts::default(), &RefusalCounts::default());
        let text = text("m", &stats, counts, 0);
        for expected in [
            "prefix_cache_hits_total{model_name=\"m\"} 100",
            "cached_tokens_total{model_name=\"m\",tier=\"memory\"} 70",
            "cached_tokens_total{model_name=\"m\",tier=\"drive\"} 30",
            "prompts_total{model_name=\"m\",found=\"memory\"} 1",
            "prompts_total{model_name=\"m\",found=\"drive\"} 2",
            "prompts_total{model_name=\"m\",found=\"diverged\"} 5",
            "prompts_total{model_name=\"m\",found=\"other_model\"} 6",
            "prompts_total{model_name=\"m\",found=\"nothing\"} 7",
            "table_rows_total{model_name=\"m\",place=\"memory\"} 5",
            "table_rows_total{model_name=\"m\",place=\"drive\"} 27",
            "table_read_bytes_total{model_name=\"m\"} 4096",
            "saved_objects{model_name=\"m\"} 8",
            "saved_bytes_limit{model_name=\"m\"} 9000",
            "saved_writes_refused_total{model_name=\"m\"} 10",
            "saved_objects_unusable_total{model_name=\"m\"} 11",
            "saved_objects_damaged_total{model_name=\"m\"} 12",
        ] {
            assert!(text.contains(&format!(":{expected}\n")), "{expected}: {text}");
        }
    }

    #[test]
    fn each_name_is_described_before_its_values() {
        let counts = (&ConnectionCounts::default(), &RefusalCounts::default());
        let text = text("a\"b", &Stats::default(), counts, 0);
        assert!(text.contains("# HELP moeflux:connections Open connections.\n"), "{text}");
        let mut described = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                described = rest.split(' ').next().unwrap();
                assert_eq!(text.matches(&format!("# TYPE {described} ")).count(), 1, "{line}");
            } else if !line.starts_with("# TYPE ") {
                assert!(line.starts_with(described), "{line}");
                assert!(line.contains("{model_name=\"a\\\"b\""), "{line}");
            }
        }
        assert!(text.contains("finished_reason=\"stop\"} 0\n"), "{text}");
        assert!(!text.contains("moeflux:saved_"), "no folder of saved conversations");
        assert!(text.contains(
            "vllm:request_queue_time_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 0"
        ));
    }
}
