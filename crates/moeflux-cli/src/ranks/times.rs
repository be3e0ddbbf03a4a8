//! The breakdown of an answer's time on each of several ranks.

use std::time::Duration;

use moeflux::provider::ranks::{LinkStats, RankTimes};
use serde_json::{Value, json};

/// The work of ranks while `n_tokens` tokens of answers were computed.
#[derive(Clone, Debug)]
pub(crate) struct RankBreakdown {
    hosts: Vec<String>,
    stats: LinkStats,
    took: Duration,
    n_tokens: usize,
}

/// A rank's shares of a token's time, in seconds.
#[derive(Clone, Copy, Debug)]
struct TokenShares {
    computes: f64,
    drive: f64,
    exchanges: f64,
    awaited: f64,
}

impl RankBreakdown {
    /// Returns `None` if there were no tokens.
    pub(crate) fn new(
        hosts: &[String],
        stats: LinkStats,
        (took, n_tokens): (Duration, usize),
    ) -> Option<Self> {
        (n_tokens > 0).then(|| Self { hosts: hosts.to_vec(), stats, took, n_tokens })
    }

    #[expect(clippy::cast_precision_loss, reason = "for display")]
    fn per_token(&self, total: f64) -> f64 {
        total / self.n_tokens as f64
    }

    fn of_token(&self, times: &RankTimes) -> TokenShares {
        let each = |time: Duration| self.per_token(time.as_secs_f64());
        let idle = times.waited + times.read_wait;
        TokenShares {
            computes: each(self.took.saturating_sub(idle)),
            drive: each(times.read_wait),
            exchanges: each(times.waited),
            awaited: each(times.awaited),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for display")]
    fn n_exchanges(&self) -> f64 {
        self.per_token(self.stats.n_exchanges as f64)
    }

    /// Returns the times as JSON.
    pub(crate) fn json(&self) -> Value {
        let seconds = |share: f64| self.stats.quantile(share).as_secs_f64();
        let ranks = self.hosts.iter().zip(&self.stats.ranks).map(|(host, times)| {
            let TokenShares { computes, drive, exchanges, awaited } = self.of_token(times);
            json!({
                "host": host,
                "compute_s_per_token": computes,
                "read_wait_s_per_token": drive,
                "exchange_s_per_token": exchanges,
                "others_wait_s_per_token": awaited,
            })
        });
        json!({
            "exchanges_per_token": self.n_exchanges(),
            "exchange_median_s": seconds(0.5),
            "exchange_p99_s": seconds(0.99),
            "messages_s_per_token": self.per_token(self.stats.way_time.as_secs_f64()),
            "ranks": ranks.collect::<Vec<_>>(),
        })
    }

    /// Returns the times as lines of text.
    pub(crate) fn lines(&self) -> Vec<String> {
        let us = |share: f64| format!("{:.0} us", 1e6 * self.stats.quantile(share).as_secs_f64());
        let mut lines = vec![
            format!(
                "ranks     {:.0} exchanges a token, median {}, 99 of 100 within {}",
                self.n_exchanges(),
                us(0.5),
                us(0.99)
            ),
            format!(
                "  {:<20}{:>10}{:>10}{:>12}{:>20}",
                "ms a token", "computes", "drive", "exchanges", "others wait for it"
            ),
        ];
        let ms = |seconds: f64| format!("{:.2}", 1e3 * seconds);
        let ranks = self.hosts.iter().zip(&self.stats.ranks).enumerate();
        lines.extend(ranks.map(|(rank, (host, times))| {
            let TokenShares { computes, drive, exchanges, awaited } = self.of_token(times);
            let [computes, drive, exchanges, awaited] =
                [computes, drive, exchanges, awaited].map(ms);
            let name = format!("{rank} {host}");
            format!("  {name:<20}{computes:>10}{drive:>10}{exchanges:>12}{awaited:>20}")
        }));
        lines
    }
}
