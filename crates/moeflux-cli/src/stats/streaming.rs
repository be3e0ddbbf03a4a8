//! The cost of streaming: the same fields for every command that reports it.

use moeflux::provider::experts::stream::StreamStats;
use serde_json::{Value, json};

use crate::output::size::binary;

/// Returns the statistics as JSON.
pub(crate) fn json(stats: &StreamStats) -> Value {
    json!({
        "expert_slots": stats.n_slots,
        "expert_slot_bytes": stats.slot_bytes,
        "experts": stats.n_experts,
        "expert_hits": stats.hits,
        "expert_hits_on_device": stats.device_hits,
        "expert_on_their_way": stats.on_their_way,
        "expert_misses": stats.misses,
        "expert_bytes_read": stats.read_bytes(),
        "expert_bytes_guessed": stats.guess_bytes,
        "expert_guesses": stats.guesses,
        "expert_guesses_used": stats.guesses_used,
        "read_gb_per_s": stats.read_bytes_per_s().map(|it| it / 1e9),
        "read_wait_s": stats.read_wait.as_secs_f64(),
        "read_busy_s": stats.read_busy.as_secs_f64(),
        "check_s": stats.check.as_secs_f64(),
        "look_ahead_s": stats.ask.as_secs_f64(),
        "look_ahead_recall": stats.ahead.recall(),
        "look_ahead_precision": stats.ahead.precision(),
        "reads_repeated": stats.rereads + stats.retries,
        "read_by": stats.drive,
    })
}

/// Returns lines of text: where experts came from, and the time spent waiting for them.
pub(crate) fn lines(stats: &StreamStats) -> Vec<String> {
    let n_asked = stats.hits + stats.on_their_way + stats.misses;
    let near = match stats.device_hits {
        0 => String::new(),
        n_near => format!(" ({n_near} on the device)"),
    };
    let repeated = match stats.rereads + stats.retries {
        0 => String::new(),
        1 => ", 1 read repeated".to_owned(),
        n_repeated => format!(", {n_repeated} reads repeated"),
    };
    let what = if stats.are_layers { "layers    " } else { "experts   " };
    let rate = stats.read_bytes_per_s().map_or("-".to_owned(), |it| format!("{:.2}", it / 1e9));
    vec![
        format!(
            "{what}{} of {} in memory; {} of {n_asked} requested were there{near}, \
             {} being read",
            stats.n_slots, stats.n_experts, stats.hits, stats.on_their_way
        ),
        format!(
            "drive     {} read by {} at {rate} GB/s, waited {:.2} s{repeated}",
            binary(stats.read_bytes()),
            stats.drive,
            stats.read_wait.as_secs_f64()
        ),
    ]
}
