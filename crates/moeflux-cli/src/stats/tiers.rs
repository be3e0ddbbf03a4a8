//! Describes the placement of routed experts that a device keeps in two memories.

use moeflux::provider::backend::TierStats;
use serde_json::{Value, json};

use crate::output::size::binary;

/// Returns the statistics as JSON.
pub(crate) fn json(stats: &TierStats) -> Value {
    json!({
        "near_bytes": stats.near_bytes,
        "far_bytes": stats.far_bytes,
        "near_share": near_share(stats),
        "moved": stats.swaps,
    })
}

/// Returns a line of text.
pub(crate) fn line(stats: &TierStats) -> String {
    let place = format!(
        "experts   {} on the device, {} read from memory",
        binary(stats.near_bytes),
        binary(stats.far_bytes)
    );
    match near_share(stats) {
        None => place,
        Some(share) => {
            let (percent, moved) = (share * 100.0, stats.swaps);
            format!("{place}; {percent:.0} % of uses there, {moved} moved there to replace others")
        }
    }
}

/// Returns the counts since `before`.
pub(crate) fn since(stats: &TierStats, before: &TierStats) -> TierStats {
    TierStats {
        near_uses: stats.near_uses - before.near_uses,
        uses: stats.uses - before.uses,
        swaps: stats.swaps - before.swaps,
        ..*stats
    }
}

/// Returns the share of uses with an expert on the device, once some were counted.
#[expect(clippy::cast_precision_loss, reason = "a share, for display")]
pub(crate) fn near_share(stats: &TierStats) -> Option<f64> {
    (stats.uses > 0).then(|| stats.near_uses as f64 / stats.uses as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncounted_uses_are_omitted() {
        let stats = TierStats { near_bytes: 1 << 30, far_bytes: 3 << 30, ..TierStats::default() };
        assert_eq!(line(&stats), "experts   1.00 GiB on the device, 3.00 GiB read from memory");
        assert!(json(&stats)["near_share"].is_null());
        let later = TierStats { near_uses: 30, uses: 120, swaps: 7, ..stats };
        let words = "; 25 % of uses there, 7 moved there to replace others";
        assert!(line(&since(&later, &stats)).ends_with(words));
        assert_eq!(since(&later, &later), stats);
    }
}
