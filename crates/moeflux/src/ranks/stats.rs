//! Statistics of exchanges between ranks, and of the ranks that delayed them.

use std::time::Duration;

/// Buckets per factor of two in time.
const STEPS_PER_OCTAVE: usize = 4;

/// Number of buckets, enough for times up to an hour.
const N_BUCKETS: usize = 32 * STEPS_PER_OCTAVE;

/// Time that one rank spent without computing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankTimes {
    /// Time in exchanges.
    pub waited: Duration,
    /// Time waiting for its drive.
    pub read_wait: Duration,
    /// Additional time that the others waited in exchanges in which this rank waited least: they
    /// waited for this rank. Averaged over the others.
    pub awaited: Duration,
}

/// Times of this rank that the next header reports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingTimes {
    /// Time in the last exchange.
    pub exchange: Duration,
    /// Total time waiting for the drive.
    pub read: Duration,
    /// The part of it that headers have reported.
    read_reported: Duration,
}

impl PendingTimes {
    /// Returns both times in microseconds, as far as they have not been reported.
    pub(super) fn take(&mut self) -> (u32, u32) {
        let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let read = self.read.saturating_sub(self.read_reported);
        self.read_reported = self.read;
        (us(std::mem::take(&mut self.exchange)), us(read))
    }
}

/// Statistics of exchanges.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// Exchanges of values.
    pub n_exchanges: u64,
    /// Bytes that this rank sent to each other rank.
    pub sent_bytes: u64,
    /// Total time of exchanges, including waits for slower ranks.
    pub exchange_time: Duration,
    /// Sum over exchanges of the shortest wait of any rank: the time for messages, without waits
    /// for slower ranks. Known one exchange later.
    pub way_time: Duration,
    /// Times of each rank, as reported by itself.
    pub ranks: Vec<RankTimes>,
    /// Number of exchanges by the time that they took here.
    n_by_time: Vec<u64>,
}

impl LinkStats {
    /// Creates empty statistics.
    pub(super) fn of(n_ranks: usize) -> Self {
        Self {
            n_exchanges: 0,
            sent_bytes: 0,
            exchange_time: Duration::ZERO,
            way_time: Duration::ZERO,
            ranks: vec![RankTimes::default(); n_ranks],
            n_by_time: vec![0; N_BUCKETS],
        }
    }

    pub(super) fn count(&mut self, took: Duration, n_bytes: usize) {
        self.n_exchanges += 1;
        self.sent_bytes += n_bytes as u64;
        self.exchange_time += took;
        let bucket = bucket_of(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.n_by_time[bucket.min(N_BUCKETS - 1)] += 1;
    }

    /// Counts how long each rank waited in the previous exchange, and for its drive since then, in
    /// microseconds.
    pub(super) fn count_waits(&mut self, waits: impl Iterator<Item = (u32, u32)>) {
        let waits: Vec<(Duration, Duration)> = waits
            .map(|(waited, read)| [waited, read].map(|it| Duration::from_micros(it.into())).into())
            .collect();
        for (times, (waited, read_wait)) in self.ranks.iter_mut().zip(&waits) {
            times.waited += *waited;
            times.read_wait += *read_wait;
        }
        let least = waits.iter().enumerate().min_by_key(|(_, (waited, _))| *waited);
        let Some((last, &(least, _))) = least else { return };
        self.way_time += least;
        let longer: Duration = waits.iter().map(|(waited, _)| *waited - least).sum();
        let n_others = u32::try_from(waits.len().saturating_sub(1)).unwrap_or(u32::MAX);
        self.ranks[last].awaited += longer / n_others.max(1);
    }

    /// Returns the statistics since `before`, taken earlier from the same engine.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let ranks = self.ranks.iter().zip(&before.ranks).map(|(now, before)| RankTimes {
            waited: now.waited.saturating_sub(before.waited),
            read_wait: now.read_wait.saturating_sub(before.read_wait),
            awaited: now.awaited.saturating_sub(before.awaited),
        });
        let counts = self.n_by_time.iter().zip(&before.n_by_time);
        Self {
            n_exchanges: self.n_exchanges - before.n_exchanges,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            exchange_time: self.exchange_time.saturating_sub(before.exchange_time),
            way_time: self.way_time.saturating_sub(before.way_time),
            ranks: ranks.collect(),
            n_by_time: counts.map(|(now, before)| now - before).collect(),
        }
    }

    /// Returns a time within which `share` of the exchanges finished, at most a quarter too long.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
        let wanted = self.n_exchanges as f64 * share;
        let mut seen = 0;
        for (bucket, n) in self.n_by_time.iter().enumerate() {
            seen += n;
            #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
            if seen as f64 >= wanted {
                return Duration::from_micros(end_of(bucket));
            }
        }
        Duration::MAX
    }
}

/// Returns the bucket of a time: whole microseconds below 4, then four buckets per factor of two.
fn bucket_of(us: u64) -> usize {
    match us {
        0..4 => usize::try_from(us).expect("less than 4"),
        _ => {
            let log = us.ilog2() as usize;
            let step = usize::try_from(us >> (log - 2)).expect("less than 8") - STEPS_PER_OCTAVE;
            (log - 1) * STEPS_PER_OCTAVE + step
        }
    }
}

/// Returns the end of a bucket in microseconds, exclusive.
fn end_of(bucket: usize) -> u64 {
    match bucket {
        0..4 => bucket as u64 + 1,
        _ => {
            let (octave, step) = (bucket / STEPS_PER_OCTAVE - 1, bucket % STEPS_PER_OCTAVE);
            (STEPS_PER_OCTAVE as u64 + step as u64 + 1) << octave
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_counted_before_the_end_of_its_bucket() {
        for us in (0..3000).chain([1 << 20, (1 << 31) - 1]) {
            let bucket = bucket_of(us);
            assert!(us < end_of(bucket), "{us}");
            assert!(bucket == 0 || us >= end_of(bucket - 1), "{us}");
            assert!(end_of(bucket) <= us + us / 4 + 1, "{us}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_counted_times() {
        let mut stats = LinkStats::of(2);
        (0..99).for_each(|_| stats.count(Duration::from_micros(3), 10));
        let before = stats.clone();
        stats.count(Duration::from_micros(100), 10);
        let [median, last] = [0.5, 0.995].map(|share| stats.quantile(share).as_micros());
        assert_eq!((median, last), (4, 112));
        assert_eq!((stats.n_exchanges, stats.sent_bytes), (100, 1000));
        let since = stats.since(&before);
        assert_eq!((since.n_exchanges, since.quantile(0.5).as_micros()), (1, 112));
    }

    #[test]
    fn the_rank_that_waits_least_is_the_one_awaited() {
        let mut stats = LinkStats::of(3);
        stats.count_waits([(110, 1), (10, 500), (210, 2)].into_iter());
        stats.count_waits([(20, 0), (20, 0), (20, 0)].into_iter());
        let us = |of: fn(&RankTimes) -> Duration| -> Vec<u128> {
            stats.ranks.iter().map(|it| of(it).as_micros()).collect()
        };
        assert_eq!(us(|it| it.waited), [130, 30, 230]);
        assert_eq!(us(|it| it.read_wait), [1, 500, 2]);
        assert_eq!(us(|it| it.awaited), [0, 150, 0], "100 and 200 longer");
        assert_eq!(stats.way_time.as_micros(), 30);
    }
}
