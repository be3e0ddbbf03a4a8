//! The time of an answer, and the use of memory.

pub(crate) mod rows;
pub(crate) mod streaming;
pub(crate) mod tiers;

use std::time::{Duration, Instant};

use moeflux::provider::backend::DeviceNames;
use moeflux::provider::experts::RestStats;
use moeflux::provider::experts::stream::StreamStats;
use moeflux::provider::ranks::LinkStats;
use moeflux::{Engine, Finish};
use moeflux_io::process_peak_bytes;
use serde_json::{Value, json};

use crate::output::fold::labelled;
use crate::output::print;
use crate::output::size::binary;
use crate::ranks::times::RankBreakdown;
use crate::system::clock;
use crate::system::machine::package_energy_uj;

/// Times and costs of the answer of `moeflux generate`.
#[derive(Debug)]
pub(crate) struct GenerateStats {
    load: Duration,
    started: Instant,
    n_prompt_tokens: usize,
    /// Tokens of the prompt that were loaded from a drive.
    n_loaded_tokens: usize,
    pub(crate) prompt_read: Option<Duration>,
    first_token: Option<Duration>,
    last_token: Duration,
    n_tokens: usize,
    /// The cost of each token; the first includes the prompt.
    tokens: Vec<TokenCost>,
    /// Streaming statistics up to the last token.
    stream: Option<StreamStats>,
    /// Statistics of the ranks' exchanges up to the first token.
    ranks_at_first: Option<LinkStats>,
    energy_at_start: Option<u64>,
}

/// The cost of a token.
#[derive(Debug)]
struct TokenCost {
    time: Duration,
    stream: Option<StreamStats>,
}

impl GenerateStats {
    /// Starts the clock, with the model loaded and the prompt about to be processed.
    pub(crate) fn start(load: Duration, n_prompt_tokens: usize) -> Self {
        Self {
            load,
            started: clock::instant(),
            n_prompt_tokens,
            n_loaded_tokens: 0,
            prompt_read: None,
            first_token: None,
            last_token: Duration::ZERO,
            n_tokens: 0,
            tokens: Vec::new(),
            stream: None,
            ranks_at_first: None,
            energy_at_start: package_energy_uj(),
        }
    }

    /// Records how many tokens of the prompt were loaded from a drive.
    pub(crate) fn loaded(&mut self, n_tokens: usize) {
        self.n_loaded_tokens = n_tokens;
    }

    /// Records the end of the prompt.
    pub(crate) fn prompt_read(&mut self) {
        self.prompt_read = Some(self.started.elapsed());
    }

    /// Records a token. The cost of each is kept if `is_reported` says that they are reported
    /// individually.
    pub(crate) fn token(&mut self, engine: &Engine, is_reported: bool) {
        let now = self.started.elapsed();
        if self.n_tokens == 0 {
            self.ranks_at_first = engine.rank_stats();
        }
        if is_reported {
            let stream = engine.stream_stats();
            let before = self.stream.take().unwrap_or_default();
            let cost = stream.as_ref().map(|stream| stream.since(&before));
            self.tokens.push(TokenCost { time: now.saturating_sub(self.last_token), stream: cost });
            self.stream = stream;
        }
        self.last_token = now;
        self.first_token.get_or_insert(self.last_token);
        self.n_tokens += 1;
    }

    /// Returns the energy used by the processor's package since the start, if the system reports
    /// it.
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    fn energy_j(&self) -> Option<f64> {
        let used = package_energy_uj()?.checked_sub(self.energy_at_start?)?;
        Some(used as f64 / 1e6)
    }

    fn prefill_tokens_per_s(&self) -> Option<f64> {
        rate(self.n_prompt_tokens - self.n_loaded_tokens, self.prompt_read?)
    }

    /// Returns the decoding rate. The first token comes with the prompt, so only later tokens count
    /// as steps.
    fn decode_tokens_per_s(&self) -> Option<f64> {
        rate(self.n_tokens.saturating_sub(1), self.last_token.checked_sub(self.first_token?)?)
    }

    /// Returns the times of ranks since the first token, which comes with the prompt.
    fn rank_times(&self, engine: &Engine, hosts: &[String]) -> Option<RankBreakdown> {
        let stats = engine.rank_stats()?.since(self.ranks_at_first.as_ref()?);
        let took = self.last_token.checked_sub(self.first_token?)?;
        RankBreakdown::new(hosts, stats, (took, self.n_tokens - 1))
    }

    /// Returns the statistics as JSON.
    pub(crate) fn json(&self, engine: &Engine, (context, hosts): (usize, &[String])) -> Value {
        let memory = engine.memory();
        let DeviceNames { backend, arithmetic, isa, .. } = engine.device_names();
        let mut stats = json!({
            "backend": backend,
            "arithmetic": arithmetic.name(),
            "isa": isa,
            "load_s": self.load.as_secs_f64(),
            "prompt_tokens": self.n_prompt_tokens,
            "prompt_tokens_loaded": self.n_loaded_tokens,
            "prefill_s": self.prompt_read.map(|it| it.as_secs_f64()),
            "prefill_tokens_per_s": self.prefill_tokens_per_s(),
            "first_token_s": self.first_token.map(|it| it.as_secs_f64()),
            "generated_tokens": self.n_tokens,
            "decode_tokens_per_s": self.decode_tokens_per_s(),
            "context_tokens": context,
            "resident_bytes": memory.resident_bytes,
            "expert_bytes": memory.expert_bytes,
            "workspace_bytes": memory.workspace_bytes,
            "session_bytes": session_bytes(engine, context),
            "rss_bytes_peak": process_peak_bytes(),
            "package_energy_j": self.energy_j(),
        });
        stats["per_token"] = self.tokens.iter().map(TokenCost::json).collect();
        if let Some(stream) = engine.stream_stats() {
            stats["streaming"] = streaming::json(&stream);
        }
        if let Some(row_stats) = engine.row_stats() {
            stats["table_rows"] = rows::json(&row_stats);
        }
        if let Some(rest) = engine.rest_stats() {
            stats["rest"] = json!({
                "experts": rest.n_experts,
                "experts_read": rest.n_read,
                "expert_bytes_read": rest.read_bytes,
                "read_wait_s": rest.read_wait.as_secs_f64(),
                "read_s": rest.took.map(|it| it.as_secs_f64()),
            });
        }
        if let Some(times) = self.rank_times(engine, hosts) {
            stats["ranks"] = times.json();
        }
        if let Some(tiers) = engine.tier_stats() {
            stats["tiers"] = tiers::json(&tiers);
        }
        stats
    }

    /// Prints the statistics on stderr.
    pub(crate) fn print(
        &self,
        engine: &Engine,
        (seed, context, finish): (u64, usize, Finish),
        hosts: &[String],
    ) {
        let per_s = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
        let seconds = |time: Option<Duration>| {
            time.map_or("-".to_owned(), |t| format!("{:.2}", t.as_secs_f64()))
        };
        let memory = engine.memory();
        let DeviceNames { backend, arithmetic, isa, .. } = engine.device_names();
        print_labelled(&format!(
            "load      {} s, then {} s to the first token",
            seconds(Some(self.load)),
            seconds(self.first_token)
        ));
        let loaded = match self.n_loaded_tokens {
            0 => String::new(),
            n_tokens => format!(", {n_tokens} of them saved before"),
        };
        print_labelled(&format!(
            "prompt    {} tokens{loaded}, {} tokens/s",
            self.n_prompt_tokens,
            per_s(self.prefill_tokens_per_s())
        ));
        print_labelled(&format!(
            "answer    {} tokens, {} tokens/s, ended by {}",
            self.n_tokens,
            per_s(self.decode_tokens_per_s()),
            finish.name()
        ));
        print_labelled(&format!(
            "memory    {} resident, {} experts, {} workspace, {} for {context} tokens; peak {}",
            binary(memory.resident_bytes),
            binary(memory.expert_bytes),
            binary(memory.workspace_bytes),
            binary(session_bytes(engine, context)),
            process_peak_bytes().map_or("unknown".to_owned(), binary)
        ));
        if let Some(rest) = engine.rest_stats().filter(|it| it.n_experts > 0) {
            print_labelled(&rest_line(&rest));
        }
        if let Some(tiers) = engine.tier_stats() {
            print_labelled(&tiers::line(&tiers));
        }
        for line in engine.stream_stats().iter().flat_map(streaming::lines) {
            print_labelled(&line);
        }
        if let Some(row_stats) = engine.row_stats() {
            print_labelled(&rows::line(&row_stats));
        }
        for line in self.rank_times(engine, hosts).iter().flat_map(RankBreakdown::lines) {
            print::stderr_line(&line);
        }
        let arithmetic = arithmetic.name();
        print_labelled(&format!("computed  on {backend} in {arithmetic} ({isa}), seed {seed}"));
    }
}

impl TokenCost {
    fn json(&self) -> Value {
        let seconds = self.time.as_secs_f64();
        let Some(stream) = &self.stream else { return json!({"s": seconds}) };
        json!({
            "s": seconds,
            "read_wait_s": stream.read_wait.as_secs_f64(),
            "look_ahead_s": stream.ask.as_secs_f64(),
            "check_s": stream.check.as_secs_f64(),
            "bytes_read": stream.read_bytes(),
            "bytes_guessed": stream.guess_bytes,
            "hits": stream.hits,
            "on_their_way": stream.on_their_way,
            "misses": stream.misses,
        })
    }
}

/// Prints a line on stderr.
fn print_labelled(line: &str) {
    for line in labelled(line) {
        print::stderr_line(&line);
    }
}

/// Describes the experts that were read after the model was opened.
fn rest_line(rest: &RestStats) -> String {
    let RestStats { n_read, n_experts, read_wait, took, .. } = rest;
    let when = took.map_or("by now".to_owned(), |it| {
        format!("{:.2} s after the other weights", it.as_secs_f64())
    });
    let wait = read_wait.as_secs_f64();
    format!("experts   {n_read} of {n_experts} in memory {when}, waited {wait:.2} s")
}

fn session_bytes(engine: &Engine, context: usize) -> u64 {
    let memory = engine.memory();
    memory.session_fixed_bytes + memory.session_bytes_per_position * context as u64
}

/// Returns tokens per second; `None` if there were none.
#[expect(clippy::cast_precision_loss, reason = "a count of tokens, for display")]
pub(crate) fn rate(n_tokens: usize, time: Duration) -> Option<f64> {
    (n_tokens > 0 && !time.is_zero()).then(|| n_tokens as f64 / time.as_secs_f64())
}

/// Returns the median: the middle value, or the mean of the two in the middle.
pub(crate) fn median(runs: &[f64]) -> Option<f64> {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}
