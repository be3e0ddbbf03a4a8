//! How exchanges between ranks went.

use std::time::Duration;

/// How exchanges went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// Exchanges of values.
    pub n_exchanges: u64,
    /// Bytes that this rank sent to each other one.
    pub sent_bytes: u64,
    /// Time that all exchanges took, waiting for slower ranks included.
    pub exchange_time: Duration,
    /// Exchanges that took less than so many microseconds: 1, 2, 4, 8 and so on.
    pub n_by_log2_us: [u64; 32],
}

impl LinkStats {
    pub(super) fn count(&mut self, took: Duration, n_bytes: usize) {
        self.n_exchanges += 1;
        self.sent_bytes += n_bytes as u64;
        self.exchange_time += took;
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        self.n_by_log2_us[bucket.min(31)] += 1;
    }

    /// Within so many microseconds this share of exchanges was over, to the next power of two.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> u64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
        let wanted = self.n_exchanges as f64 * share;
        let mut seen = 0;
        for (bucket, n) in self.n_by_log2_us.iter().enumerate() {
            seen += n;
            #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
            if seen as f64 >= wanted {
                return 1 << bucket;
            }
        }
        1 << 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_powers_of_two() {
        let mut stats = LinkStats::default();
        (0..99).for_each(|_| stats.count(Duration::from_micros(3), 10));
        stats.count(Duration::from_micros(100), 10);
        assert_eq!((stats.quantile_us(0.5), stats.quantile_us(0.995)), (4, 128));
        assert_eq!((stats.n_exchanges, stats.sent_bytes), (100, 1000));
    }
}
