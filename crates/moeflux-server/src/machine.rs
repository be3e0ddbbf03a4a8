//! The state of the machine for the page: one line of JSON, with totals since the start; and the
//! uses of experts.
//!
//! **Invariant:** a value that is not known is `null`, and none is left out. Rates are made by the
//! reader, from two states and their times. This module knows no HTTP and reads no clock.

use moeflux::Memory;
use moeflux::stats::{LayerExperts, LayerTime, RowStats, StepTimes, StreamStats, TierStats};
use moeflux_schedule::{ExpertsReport, PromptOutcome, State, Stats};
use serde_json::{Value as Json, json};

/// What a state of the machine is made of.
#[derive(Debug)]
pub(crate) struct MachineView<'a> {
    /// The name of the model.
    pub(crate) model: &'a str,
    pub(crate) state: State,
    pub(crate) stats: &'a Stats,
    /// Bytes of the process.
    pub(crate) process_bytes: Option<u64>,
    /// Measured bytes per second of the drive and of memory.
    pub(crate) measured: Option<[Option<f64>; 2]>,
}

/// Returns a state of the machine without its time.
pub(crate) fn json(view: &MachineView<'_>) -> Json {
    let MachineView { model, state, stats, process_bytes, measured } = view;
    json!({
        "model": model,
        "state": state.name(),
        "requests": {
            "running": stats.n_running,
            "waiting": stats.n_waiting,
            "parked": stats.n_parked,
        },
        "tokens": {
            "prompt": stats.n_prompt_tokens,
            "cached": stats.n_cached_tokens,
            "cached_drive": stats.n_cached_drive_tokens,
            "answer": stats.n_answer_tokens,
            "forced": stats.n_forced_tokens,
        },
        "steps": stats.n_steps,
        "sessions": {
            "kept": stats.n_kept,
            "kept_bytes": stats.kept_bytes,
            "bytes": stats.room.booked_bytes,
            "bytes_limit": stats.room.limit_bytes,
        },
        "prompts": prompts(stats),
        "saved": saved(stats),
        "memory": stats.memory.as_ref().map(|it| memory(it, *process_bytes)),
        "experts": stats.stream.as_ref().map(experts),
        "table_rows": stats.rows.as_ref().map(table_rows),
        "tiers": stats.tiers.as_ref().map(tiers),
        "measured": measured.map(|[drive, memory]| json!({
            "drive_bytes_per_s": drive,
            "memory_bytes_per_s": memory,
        })),
    })
}

/// Prompts by what they found.
fn prompts(stats: &Stats) -> Json {
    let counts = PromptOutcome::ALL.iter().zip(stats.n_outcomes);
    Json::Object(counts.map(|(it, n_prompts)| (it.name().to_owned(), n_prompts.into())).collect())
}

/// The folder of saved conversations.
fn saved(stats: &Stats) -> Json {
    let Some(saved) = &stats.saved else { return Json::Null };
    json!({
        "objects": saved.n_objects,
        "bytes": saved.n_bytes,
        "bytes_limit": saved.n_bytes_max,
        "written_today_bytes": saved.written_today_bytes,
        "written_per_day_limit": saved.write_bytes_per_day,
        "written": saved.n_written,
        "refused": saved.n_refused,
        "evicted": saved.n_evicted,
        "unusable": saved.n_misses,
        "damaged": saved.n_damaged,
        "drive_errors": saved.n_drive_errors,
    })
}

fn memory(memory: &Memory, process_bytes: Option<u64>) -> Json {
    json!({
        "budget_bytes": memory.budget_bytes,
        "resident_bytes": memory.resident_bytes,
        "expert_bytes": memory.expert_bytes,
        "step_bytes": memory.workspace_bytes,
        "process_bytes": process_bytes,
    })
}

fn table_rows(rows: &RowStats) -> Json {
    json!({
        "table_bytes": rows.table_bytes,
        "requested": rows.asked,
        "hits": rows.hits,
        "reads": rows.reads,
        "read_bytes": rows.read_bytes,
        "reads_repeated": rows.rereads + rows.retries,
        "read_wait_s": rows.read_wait.as_secs_f64(),
    })
}

fn experts(stream: &StreamStats) -> Json {
    json!({
        "are_layers": stream.are_layers,
        "n_experts": stream.n_experts,
        "n_slots": stream.n_slots,
        "slot_bytes": stream.slot_bytes,
        "hits": stream.hits,
        "device_hits": stream.device_hits,
        "on_the_way": stream.on_their_way,
        "misses": stream.misses,
        "guesses": stream.guesses,
        "guesses_used": stream.guesses_used,
        "demand_bytes": stream.demand_bytes,
        "guess_bytes": stream.guess_bytes,
        "read_wait_s": stream.read_wait.as_secs_f64(),
        "read_busy_s": stream.read_busy.as_secs_f64(),
        "drive": stream.drive,
    })
}

fn tiers(tiers: &TierStats) -> Json {
    json!({
        "near_bytes": tiers.near_bytes,
        "far_bytes": tiers.far_bytes,
        "near_uses": tiers.near_uses,
        "uses": tiers.uses,
        "swaps": tiers.swaps,
    })
}

/// Returns the uses of experts, of which there may be ten thousands: no tree of JSON is built.
pub(crate) fn experts_json(report: &ExpertsReport) -> String {
    let layer = |LayerExperts { layer, uses, in_memory, .. }: &LayerExperts| {
        let flags = in_memory.iter().map(bool::to_string).collect::<Vec<_>>().join(",");
        let uses = uses.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        format!("{{\"layer\":{layer},\"uses\":[{uses}],\"in_memory\":[{flags}]}}")
    };
    let layers: Vec<String> = report.layers.iter().map(layer).collect();
    let last = report.last_step.as_ref().map_or(Json::Null, last_token);
    format!("{{\"layers\":[{}],\"last_token\":{last}}}", layers.join(","))
}

fn last_token(times: &StepTimes) -> Json {
    let seconds: f64 = times.layers.iter().map(|it| it.time.as_secs_f64()).sum();
    let layer = |it: &LayerTime| {
        json!({
            "layer": it.layer,
            "seconds": it.time.as_secs_f64(),
            "wait_s": it.wait.as_secs_f64(),
            "found": it.n_found,
            "read": it.n_read,
        })
    };
    json!({"seconds": seconds, "layers": times.layers.iter().map(layer).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_null() {
        let mut stats = Stats::default();
        let view = |stats: &Stats, measured| {
            let (model, state) = ("m", State::Unloaded);
            json(&MachineView { model, state, stats, process_bytes: None, measured })
        };
        let unloaded = view(&stats, None);
        assert_eq!(unloaded["state"], "unloaded");
        for key in ["memory", "experts", "table_rows", "tiers", "measured"] {
            assert_eq!(unloaded.get(key), Some(&Json::Null), "{key}");
        }
        assert_eq!(unloaded["sessions"].get("bytes_limit"), Some(&Json::Null));
        let tiers = TierStats { near_bytes: 1, far_bytes: 2, near_uses: 3, uses: 4, swaps: 5 };
        (stats.tiers, stats.stream) = (Some(tiers), Some(StreamStats::default()));
        stats.rows = Some(RowStats { asked: 32, hits: 5, rereads: 1, ..RowStats::default() });
        let streaming = view(&stats, Some([Some(2e9), None]));
        let rows = &streaming["table_rows"];
        assert_eq!((&rows["requested"], &rows["hits"]), (&json!(32), &json!(5)));
        assert_eq!(rows["reads_repeated"], 1);
        let expected = json!({"near_bytes": 1, "far_bytes": 2, "near_uses": 3, "uses": 4,
            "swaps": 5});
        assert_eq!(streaming["tiers"], expected);
        assert_eq!(streaming["experts"]["read_wait_s"], 0.0);
        let expected = json!({"drive_bytes_per_s": 2e9, "memory_bytes_per_s": null});
        assert_eq!(streaming["measured"], expected);
    }
}
