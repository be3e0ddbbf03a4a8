//! The rate at which all cores together read memory.
//!
//! **Invariant:** each thread sums its own memory, which exceeds its cache and uses huge pages
//! where available, as weights do. The memory is written first, so that no page fault occurs while
//! the time is measured. The best of several rounds counts, because other programs can only reduce
//! the rate.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::Duration;

use moeflux_io::AlignedBytes;

use crate::system::clock;

/// Bytes that each thread reads.
const PART_BYTES: usize = 128 << 20;

/// Upper bound over all threads: more would take long to prepare.
const ALL_BYTES_MAX: usize = 2 << 30;

/// No machine needs more threads to reach its rate.
const N_THREADS_MAX: usize = 64;

/// At most this fraction of the free memory is used.
const SHARE_OF_FREE: u64 = 8;

/// The duration of each round.
const DURATION: Duration = Duration::from_millis(60);

/// Rounds, each started by all threads together.
const N_ROUNDS: usize = 4;

/// Returns bytes per second; `None` if there is too little memory to measure.
pub(super) fn rate(n_cores: usize, available_bytes: Option<u64>) -> Option<f64> {
    let free_bytes = available_bytes.map_or(u64::MAX, |bytes| bytes / SHARE_OF_FREE);
    let free_bytes = usize::try_from(free_bytes).unwrap_or(usize::MAX);
    let n_threads = n_cores.clamp(1, N_THREADS_MAX);
    let part_bytes = PART_BYTES.min(ALL_BYTES_MAX / n_threads).min(free_bytes / n_threads);
    measure(n_threads, part_bytes, DURATION)
}

fn measure(n_threads: usize, n_bytes: usize, duration: Duration) -> Option<f64> {
    if n_bytes < 8192 {
        return None;
    }
    let n_ready = AtomicUsize::new(0);
    let n_started = AtomicUsize::new(n_threads);
    let wait_for_all = |round: usize| {
        n_ready.fetch_add(1, Ordering::SeqCst);
        while n_ready.load(Ordering::SeqCst) < (round + 1) * n_started.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    };
    let work = || {
        let mut memory = AlignedBytes::zeroed(n_bytes);
        let bytes = memory.as_deref_mut().unwrap_or_default();
        bytes.fill(1);
        let mut rates = [0.0; N_ROUNDS];
        for (round, rate) in rates.iter_mut().enumerate() {
            wait_for_all(round);
            *rate = sum_for(bytes, duration);
        }
        rates
    };
    let rates = std::thread::scope(|scope| {
        let spawn = |number: usize| {
            let builder = Builder::new().name(format!("moeflux-memory-{number}"));
            builder.spawn_scoped(scope, work).ok()
        };
        let threads: Vec<_> = (0..n_threads).filter_map(spawn).collect();
        // Tells the threads not to wait for those that could not be created.
        n_started.store(threads.len(), Ordering::SeqCst);
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    let round = |number: usize| rates.iter().map(|rates| rates[number]).sum::<f64>();
    (0..N_ROUNDS).map(round).max_by(f64::total_cmp).filter(|rate| *rate > 0.0)
}

/// Returns the bytes per second of one thread.
#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn sum_for(bytes: &[u8], duration: Duration) -> f64 {
    let began = clock::instant();
    let mut n_bytes = 0;
    while began.elapsed() < duration {
        black_box(sum(black_box(bytes)));
        n_bytes += bytes.len();
    }
    n_bytes as f64 / began.elapsed().as_secs_f64().max(1e-9)
}

/// Sums words of eight bytes, into several sums at once: a single sum would be limited by the
/// latency of additions, not by memory.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0_u64; 32];
    let (words, _) = bytes.as_chunks::<8>();
    for words in words.chunks(32) {
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        for n_words in [0, 1, 31, 32, 33, 1000] {
            let bytes: Vec<u8> = (1..=n_words).flat_map(u64::to_ne_bytes).collect();
            assert_eq!(sum(&bytes), n_words * (n_words + 1) / 2);
        }
    }

    #[test]
    fn there_is_a_rate_unless_there_is_no_memory() {
        let short = Duration::from_millis(1);
        assert!(measure(2, 100_000, short).is_some_and(|rate| rate.is_finite() && rate > 0.0));
        assert_eq!(measure(2, 10, short), None);
        assert_eq!(rate(2, Some(0)), None);
    }
}
