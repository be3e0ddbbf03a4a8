//! Detects whether other programs used the machine during a measurement.
//!
//! **Invariant:** the use by this process itself does not count; where the system does not report
//! it separately, the load before the first measurement counts.

use crate::model::needs::float;
use crate::system::machine;

/// Upper bound on the share of all cores that other programs may use: beyond it, their effect
/// exceeds the tolerance of a measured figure.
const SHARE_MAX: f64 = 0.25;

/// The same bound for the load, in runnable threads per core.
const LOAD_SHARE_MAX: f64 = 0.5;

/// Shorter intervals are too coarse: each core counts a hundred ticks a second.
const N_TICKS_MIN: u64 = 50;

/// CPU time since the system booted: in total, in use, and used by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTicks {
    all: u64,
    used: u64,
    own: u64,
}

impl CpuTicks {
    fn now() -> Option<Self> {
        let [all, own] = machine::cpu_times()?;
        Self::of(&all, &own)
    }

    /// Parses `cpu  user nice system idle iowait irq softirq steal ..` and `pid (name) state ..`.
    /// Program names may contain blanks and parentheses.
    fn of(stat: &str, own: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let times: Vec<u64> = line.split_whitespace().map_while(|it| it.parse().ok()).collect();
        let [user, nice, system, idle, io_wait, interrupts, soft, stolen, ..] = *times else {
            return None;
        };
        let sum = |times: &[u64]| times.iter().try_fold(0_u64, |sum, it| sum.checked_add(*it));
        let used = sum(&[user, nice, system, interrupts, soft, stolen])?;
        let (_, fields) = own.rsplit_once(')')?;
        let mut fields = fields.split_whitespace().skip(11).map(str::parse::<u64>);
        let own = sum(&[fields.next()?.ok()?, fields.next()?.ok()?])?;
        Some(Self { all: sum(&[used, idle, io_wait])?, used, own })
    }

    /// Returns the share of all CPU time since `before` that other programs used.
    fn share_of_others(self, before: Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|it| *it >= N_TICKS_MIN)?;
        let used = self.used.checked_sub(before.used)?;
        let own = self.own.checked_sub(before.own)?;
        Some(float(used.saturating_sub(own)) / float(all))
    }
}

/// Observes each part of a measurement separately: a short part may be disturbed while the average
/// is not.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadMonitor {
    before: Option<CpuTicks>,
    share_max: Option<f64>,
}

impl LoadMonitor {
    /// Starts the first part.
    pub(super) fn begin() -> Self {
        Self { before: CpuTicks::now(), share_max: None }
    }

    /// Ends a part and starts the next.
    pub(super) fn part(self) -> Self {
        let now = CpuTicks::now();
        let share = now.zip(self.before).and_then(|(now, before)| now.share_of_others(before));
        let share_max = match (self.share_max, share) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        Self { before: now, share_max }
    }

    /// Returns the share that other programs used in the worst part.
    pub(super) fn share_max(self) -> Option<f64> {
        self.share_max
    }
}

/// The load caused by other programs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OtherLoad {
    /// The share of all cores, in the worst part of the measurement.
    pub(super) share: Option<f64>,
    /// Runnable threads in the minute before, and the cores of this process.
    pub(super) load: Option<(f64, usize)>,
}

impl OtherLoad {
    /// Describes the load if the machine was busy.
    pub(super) fn busy(&self) -> Option<String> {
        match (self.share, self.load) {
            (Some(share), _) => (share > SHARE_MAX)
                .then(|| format!("other programs used {:.0} % of all cores", 100.0 * share)),
            (None, Some((load, n_cores))) => (load > LOAD_SHARE_MAX * float(n_cores as u64))
                .then(|| format!("load {load:.1} on {n_cores} cores")),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 10 20 800 30 1 2 3 50 0\ncpu0 1 2 3 4 5 6 7 8\nintr 5\n";
    const OWN: &str = "812 (a) b (c) R 802 802 16396 0 -1 4194304 101 0 0 0 70 6 0 0 20 0 1";

    #[test]
    fn cpu_ticks_of_linux_are_parsed() {
        let ticks = CpuTicks::of(STAT, OWN).unwrap();
        assert_eq!(ticks, CpuTicks { all: 966, used: 136, own: 76 });
        for (stat, own) in [
            ("", OWN),
            (STAT, ""),
            ("cpu  1 2 3", OWN),
            (STAT, "1 (x) R 1 2"),
            ("cpu  18446744073709551615 1 1 1 1 1 1 1", OWN),
            (STAT, "1 (x) R 1 1 1 1 1 1 1 1 1 1 -1 x"),
        ] {
            assert_eq!(CpuTicks::of(stat, own), None, "{stat:?} {own:?}");
        }
    }

    #[test]
    fn own_cpu_time_does_not_count_as_load() {
        let before = CpuTicks { all: 1000, used: 100, own: 50 };
        let share = |all, used, own| CpuTicks { all, used, own }.share_of_others(before);
        assert_eq!(share(2000, 600, 550), Some(0.0));
        assert_eq!(share(2000, 900, 550), Some(0.3));
        // Inconsistent clocks, and intervals that are too short.
        assert_eq!(share(2000, 600, 590), Some(0.0));
        assert_eq!((share(1010, 110, 50), share(900, 90, 50)), (None, None));
    }

    #[test]
    fn the_load_average_counts_only_without_cpu_times() {
        let busy = |share, load| OtherLoad { share, load }.busy();
        let load = Some((4.26, 2));
        assert_eq!(busy(Some(0.1), load), None, "it ended before");
        let words = busy(Some(0.6), None).unwrap();
        assert_eq!(words, "other programs used 60 % of all cores");
        assert_eq!(busy(None, load).unwrap(), "load 4.3 on 2 cores");
        assert_eq!((busy(None, Some((0.9, 2))), busy(None, None)), (None, None));
    }
}
