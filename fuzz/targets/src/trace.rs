//! Routing traces: an accepted trace consists of a model's steps, and can be replayed.
//!
//! Input: a byte, then an unmodified file, or, if the byte is odd, one without its checksums.

use std::path::Path;

use moeflux::provider::experts::replay::{bound, replay};
use moeflux::provider::experts::trace::{N_ROWS_MAX, StepKind, Trace};
use twox_hash::XxHash3_64;

use crate::support::check_refusal;

const HEADER_BYTES: usize = 24;
const LAYER_BYTES: usize = 16;
const BLOCK_HEAD_BYTES: usize = 8;
/// Upper bound on the experts of a replay, so that it takes no longer than reading the trace.
const N_EXPERTS_REPLAYED_MAX: usize = 10_000;

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

/// Appends `n_bytes` of `rest` and their checksum to `out`. Returns these bytes and the remainder.
fn put<'a>(out: &mut Vec<u8>, rest: &'a [u8], n_bytes: usize, seed: u64) -> (&'a [u8], &'a [u8]) {
    let (part, rest) = rest.split_at(n_bytes.min(rest.len()));
    out.extend_from_slice(part);
    out.extend_from_slice(&XxHash3_64::oneshot_with_seed(seed, part).to_le_bytes()[..4]);
    (part, rest)
}

/// Inserts the checksums of all parts.
fn summed(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let table_bytes = u32_at(bytes, 12).unwrap_or(0).saturating_mul(LAYER_BYTES);
    let header_bytes = HEADER_BYTES.saturating_add(table_bytes);
    let (header, mut rest) = put(&mut out, bytes, header_bytes, u64::MAX);
    let mut block_idx = 0;
    while !rest.is_empty() {
        let layer = rest.get(2..4).map_or(0, |it| usize::from(u16::from_le_bytes([it[0], it[1]])));
        let top_k = u32_at(header, HEADER_BYTES + layer * LAYER_BYTES + 4).unwrap_or(0);
        let n_rows = u32_at(rest, 4).unwrap_or(0);
        let rows_bytes = n_rows.saturating_mul(top_k).saturating_mul(2);
        let block_bytes = BLOCK_HEAD_BYTES.saturating_add(rows_bytes);
        rest = put(&mut out, rest, block_bytes, block_idx).1;
        block_idx += 1;
    }
    out
}

pub(crate) fn check(input: &[u8]) {
    let Some((&how, rest)) = input.split_first() else { return };
    let bytes = if how % 2 == 0 { rest.to_vec() } else { summed(rest) };
    let trace = match Trace::parse(&bytes, Path::new("trace")) {
        Ok(trace) => trace,
        Err(error) => return check_refusal(&error),
    };
    let header = trace.header();
    let mut again = Trace::empty(header.clone());
    for block in trace.blocks() {
        let shape = header.layers[block.layer.0];
        assert!((1..=N_ROWS_MAX).contains(&block.n_rows) && shape.top_k > 0);
        let n_uses: usize = block.uses.iter().map(|it| it.n_uses as usize).sum();
        assert_eq!(n_uses, block.n_rows * shape.top_k);
        // Panics if experts do not ascend or are not the layer's.
        again.push(block);
    }
    assert_eq!(again, trace);
    if trace.n_blocks() == 0 || header.n_experts() > N_EXPERTS_REPLAYED_MAX {
        return;
    }
    for n_slots in [1, 7] {
        let best = bound(&trace, n_slots);
        let found = replay(&trace, n_slots);
        for step in [StepKind::Prefill, StepKind::Decode] {
            let (found, best) = (found.tally(step), best.tally(step));
            assert_eq!(found.n_hits + found.n_misses, best.n_hits + best.n_misses);
        }
        let n_hits = |it: &moeflux::provider::experts::replay::Replayed| {
            it.prefill.n_hits + it.decode.n_hits
        };
        assert!(n_hits(&found) <= n_hits(&best), "more hits than can be");
    }
}
