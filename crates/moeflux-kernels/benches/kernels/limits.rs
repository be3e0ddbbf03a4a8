//! The limits of the machine: reads of memory, and sums of products of floats and of bytes.
//!
//! **Invariant:** limits are measured here, by loops that do nothing else, never taken from a data
//! sheet. An instruction set without a loop of its own has no limit.

use std::fmt;
use std::num::NonZeroUsize;

use crate::timing::{Effort, per_second};

/// The operands of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operands {
    /// Products of f32, added to f32.
    F32,
    /// Products of bytes, added to 32-bit integers.
    Int8,
}

/// The best loop of an instruction set.
#[derive(Clone, Copy)]
pub(crate) struct PeakLoop {
    /// As the kernels' table is named.
    pub(crate) isa: &'static str,
    pub(crate) operands: Operands,
    /// Runs a number of rounds and returns how many operations they were; only for CPUs that have
    /// the instruction set.
    pub(crate) run: unsafe fn(usize) -> usize,
}

/// Rounds of a loop between two looks at the clock: some 10 microseconds.
const N_ROUNDS: usize = 10_000;

/// Measured limits, by one thread and by all.
pub(crate) struct MachineLimits {
    n_threads: Vec<usize>,
    memory: Vec<f64>,
    peaks: Vec<(PeakLoop, Vec<f64>)>,
}

impl MachineLimits {
    /// Measures the limits.
    pub(crate) fn measure(memory: &[u8], effort: Effort) -> Self {
        let n_all = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let mut n_threads = vec![1, n_all];
        n_threads.dedup();
        let each = |measure: &dyn Fn(usize) -> f64| n_threads.iter().map(|n| measure(*n)).collect();
        Self {
            memory: each(&|n_threads| bytes_read_per_s(memory, n_threads, effort)),
            peaks: loops()
                .into_iter()
                .map(|it| (it, each(&|n_threads| ops_per_s(it, n_threads, effort))))
                .collect(),
            n_threads,
        }
    }

    /// Numbers of threads, each with the bytes per second that they read.
    pub(crate) fn memory(&self) -> impl Iterator<Item = (usize, f64)> {
        self.n_threads.iter().copied().zip(self.memory.iter().copied())
    }

    /// Operations per second of an instruction set.
    pub(crate) fn peak(&self, isa: &str, operands: Operands, n_threads: usize) -> Option<f64> {
        let is_it = |it: &&(PeakLoop, Vec<f64>)| it.0.isa == isa && it.0.operands == operands;
        let (_, rates) = self.peaks.iter().find(is_it)?;
        Some(rates[self.n_threads.iter().position(|it| *it == n_threads)?])
    }
}

impl fmt::Display for MachineLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, rates: &[f64], unit: &str| {
            write!(f, "{name:<28}")?;
            for (n_threads, rate) in self.n_threads.iter().zip(rates) {
                write!(f, "{:>9.1} {unit} by {n_threads}", rate / 1e9)?;
            }
            writeln!(f)
        };
        line("limit: memory read", &self.memory, "GB/s")?;
        for (PeakLoop { isa, operands, .. }, rates) in &self.peaks {
            let operands = match operands {
                Operands::F32 => "f32",
                Operands::Int8 => "int8",
            };
            line(&format!("limit: {operands} {isa}"), rates, "GOP/s")?;
        }
        Ok(())
    }
}

/// A plain sum: the compiler makes vector instructions of it on every machine.
fn bytes_read_per_s(memory: &[u8], n_threads: usize, effort: Effort) -> f64 {
    let part_bytes = memory.len() / n_threads;
    // Of the size of a matrix, so that the clock is looked at as often as by kernels.
    let piece_bytes = part_bytes.min(2 << 20);
    per_second(n_threads, effort, &|thread_idx| {
        let part = &memory[thread_idx * part_bytes..][..part_bytes];
        let mut pieces = part.chunks_exact(piece_bytes).cycle();
        Box::new(move || {
            let piece = pieces.next().expect("a cycle has no end");
            let (words, _) = piece.as_chunks::<8>();
            let sum = words.iter().fold(0_u64, |sum, it| sum.wrapping_add(u64::from_ne_bytes(*it)));
            std::hint::black_box(sum);
            piece.len()
        })
    })
}

fn ops_per_s(measured: PeakLoop, n_threads: usize, effort: Effort) -> f64 {
    per_second(n_threads, effort, &|_| {
        Box::new(move || {
            // SAFETY: `loops` has only those whose features this CPU has.
            unsafe { (measured.run)(N_ROUNDS) }
        })
    })
}

#[cfg(target_arch = "x86_64")]
fn loops() -> Vec<PeakLoop> {
    crate::x86_64::loops()
}

#[cfg(target_arch = "aarch64")]
fn loops() -> Vec<PeakLoop> {
    crate::aarch64::loops()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn loops() -> Vec<PeakLoop> {
    Vec::new()
}
