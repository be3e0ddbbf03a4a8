//! Measures how fast this machine computes models by running small random ones on the CPU and on a
//! GPU.
//!
//! Answers take a time per token, per layer and per byte of weights; prompts take a time per byte
//! and a time per operation. Models of two depths and of two widths, and prompts of two lengths,
//! separate these. On a GPU a prompt's time depends on how many rows an expert gets, so its model
//! has as many experts as real ones. **Invariant:** the models' folders are removed on every exit
//! path.

mod model;
mod run;

mod card;

pub(super) use card::of_gpu;

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use moeflux::provider::config::n_threads_default;
use moeflux::{Error, Remedy, Result};

use self::model::{SMALL, TrialModel};
use self::run::TrialRun;
use super::products::float_rates;
use crate::model::needs::{Needs, float};
use crate::output::progress::Bar;
use crate::system::compute_profile::ComputeProfile;
use crate::system::interrupt::Interrupt;

/// With less free memory, no meaningful trial model fits.
const FREE_BYTES_MIN: u64 = 2 << 30;

/// Prompt lengths: on a CPU one step each, in which experts get about 20 and 170 rows.
const PROMPTS_OF_CPU: [usize; 2] = [64, 512];

/// Measures the CPU.
pub(super) fn of_cpu(
    available_bytes: Option<u64>,
    interrupt: &Interrupt,
) -> Result<ComputeProfile> {
    check_free(available_bytes)?;
    let n_threads: NonZeroUsize = n_threads_default();
    let floats = float_rates(moeflux_kernels::best(), n_threads);
    let model = TrialModel::write(SMALL, interrupt)?;
    let bar = Bar::steps("measuring the CPU", 2);
    let engine = model.builder()?.load()?;
    let mut run = TrialRun::new(&engine, interrupt)?;
    let answer_s = run.answer_s()?;
    bar.add(1);
    let prompts = run.prompts_s(PROMPTS_OF_CPU)?;
    bar.add(1);
    let answers = model.token_bytes() / answer_s;
    let times = prompt_rates(&model.needs, PROMPTS_OF_CPU, prompts, floats.operations_per_s);
    Ok(ComputeProfile {
        answer_bytes_per_s: answers,
        answer_float_bytes_per_s: answers * floats.answer_ratio,
        answer_plain_bytes_per_s: floats.plain_bytes_per_s,
        step_s: 0.0,
        layer_s: 0.0,
        streamed_layer_s: 0.0,
        prompt_bytes_per_s: times.bytes_per_s,
        prompt_operations_per_s: times.operations_per_s,
        prompt_float_operations_per_s: floats.operations_per_s,
        far_bytes_per_s: answers,
        far_prompt_bytes_per_s: answers,
    })
}

fn check_free(available_bytes: Option<u64>) -> Result<()> {
    match available_bytes {
        Some(bytes) if bytes < FREE_BYTES_MIN => {
            let what = "a small model to measure with";
            Err(Error::no_room_in(bytes, what, FREE_BYTES_MIN, Remedy::FreeMemory))
        }
        _ => Ok(()),
    }
}

/// Rates of prompts.
struct PromptRates {
    bytes_per_s: f64,
    operations_per_s: f64,
}

/// Derives rates from the seconds of two prompt lengths: the common part is the time for the
/// weights, the rest is per token. Attention is subtracted first.
fn prompt_rates(
    needs: &Needs,
    lengths: [usize; 2],
    seconds: [f64; 2],
    attention_operations_per_s: f64,
) -> PromptRates {
    let lengths = lengths.map(|it| float(it as u64));
    let attention =
        |n: f64| needs.attention_operations_over(n / 2.0) * n / attention_operations_per_s;
    let [short, long] = [0, 1].map(|idx| (seconds[idx] - attention(lengths[idx])).max(1e-9));
    let token_s = (long - short) / (lengths[1] - lengths[0]);
    // Noise may make a longer prompt, or the weights, appear to cost nothing.
    let token_s = token_s.clamp(0.3 * long / lengths[1], long / lengths[1]);
    let weights_s = (long - lengths[1] * token_s).max(0.02 * long);
    let weights_bytes = float(needs.resident.n_bytes() + needs.experts_bytes());
    let operations = float(needs.resident.n_operations() + needs.routed.n_operations());
    PromptRates { bytes_per_s: weights_bytes / weights_s, operations_per_s: operations / token_s }
}

/// Removes folders left by trials that were killed.
pub(super) fn remove_old(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_trial = name.to_string_lossy().starts_with("trial-");
        let is_old = entry
            .metadata()
            .and_then(|it| it.modified())
            .is_ok_and(|it| it.elapsed().is_ok_and(|age| age.as_secs() > 3600));
        if is_trial && is_old {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_times_are_split_into_their_parts() {
        let needs = Needs {
            attention_operations: 1000,
            resident: crate::model::needs::ProductCosts {
                codes: crate::model::needs::ProductCost {
                    n_bytes: 1_000_000,
                    n_operations: 2_000_000,
                },
                ..Default::default()
            },
            ..Needs::default()
        };
        // 1 GB/s, 1 GOP/s, and attention at 100 MOP/s.
        let time = |n: f64| 1e-3 + n * 2e-3 + 1000.0 * n * n / 2.0 / 1e8;
        let times = prompt_rates(&needs, [64, 512], [time(64.0), time(512.0)], 1e8);
        let operations_per_s = times.operations_per_s;
        assert!((operations_per_s / 1e9 - 1.0).abs() < 1e-6, "{operations_per_s}");
        assert!(times.bytes_per_s > 0.0 && times.bytes_per_s <= 1e9, "{}", times.bytes_per_s);
    }

    #[test]
    fn only_old_trials_are_removed() {
        let dir = moeflux_testing::temp_dir::TempDir::new();
        fs::create_dir(dir.path().join("trial-small-1")).unwrap();
        fs::create_dir(dir.path().join("other")).unwrap();
        remove_old(dir.path());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
