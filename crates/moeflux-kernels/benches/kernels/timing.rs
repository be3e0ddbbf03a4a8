//! Measures how often per second a function runs, on one thread or on several at once.
//!
//! It does not depend on the function.

use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The duration of a measurement, and the size of its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// The least time of each measurement, without the warm-up.
    pub(crate) time: Duration,
    /// The least number of calls of each measurement.
    pub(crate) n_calls_min: usize,
    /// Bytes of matrices; for figures, more than any cache has.
    pub(crate) pool_bytes: usize,
}

impl Effort {
    /// For figures: short cells, so that the whole table takes less than a minute.
    pub(crate) const FULL: Self =
        Self { time: Duration::from_millis(200), n_calls_min: 3, pool_bytes: 1 << 30 };

    /// For tests: one call, to check that it works.
    pub(crate) const TOUCH: Self =
        Self { time: Duration::ZERO, n_calls_min: 1, pool_bytes: 8 << 20 };
}

/// Does a piece of work and returns its number of units.
pub(crate) type TimedWork<'a> = Box<dyn FnMut() -> usize + 'a>;

/// Units per second of all threads together: each makes its own work, which gets its index.
pub(crate) fn per_second<'a>(
    n_threads: usize,
    effort: Effort,
    make: &(dyn Fn(usize) -> TimedWork<'a> + Sync),
) -> f64 {
    let barrier = &Barrier::new(n_threads);
    std::thread::scope(|scope| {
        let measure = |thread_idx| {
            scope.spawn(move || {
                let mut work = make(thread_idx);
                work();
                barrier.wait();
                median(calls(&mut work, effort))
            })
        };
        let threads: Vec<_> = (0..n_threads).map(measure).collect();
        threads.into_iter().map(|thread| thread.join().expect("no kernel panics")).sum()
    })
}

/// Units per second of each call.
fn calls(work: &mut TimedWork<'_>, effort: Effort) -> Vec<f64> {
    let began = Instant::now();
    let mut rates = Vec::new();
    while rates.len() < effort.n_calls_min || began.elapsed() < effort.time {
        let start = Instant::now();
        let n_units = work();
        rates.push(n_units as f64 / start.elapsed().as_secs_f64());
    }
    rates
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
