//! Check that a device computes a model's operations as the CPU does.
//!
//! A driver that miscompiles a kernel reports nothing: answers are wrong, or noise. So before a
//! model first runs on an adapter, both compute one layer of each kind in the model, on random
//! weights. **Invariant:** the verdict on an adapter depends only on its results.

mod miniature;
mod run;

use std::fmt;
use std::sync::Arc;

use moeflux::provider::backend::ExpertTiers;
use moeflux::provider::backend::cpu::CpuBackend;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::config::n_threads_default;
use moeflux::provider::error::Result;
use moeflux::provider::experts::stream::MappedSlots;
use moeflux::provider::ids::ExpertIdx;

use crate::adapter::HostMemory;
use crate::backend::GpuBackend;
use crate::config::{GpuConfig, Tiers};
use crate::device::Gpu;
use crate::host_import::can_import_slabs;
use crate::values::relative_error;

pub use miniature::layers_fingerprint;
use miniature::{N_PROMPT, ReducedLayer, ReducedModel};
use run::{CheckOutput, ExpertSource, FilledSlots, run};

/// Bound on the relative error of a row. A different order of summation causes some 1e-6, and a
/// wrong value in a row of thousands 1e-2.
const ERROR_MAX: f64 = 1e-3;

/// One row in this many may choose another expert, because two experts can tie.
const ROWS_PER_TIE: usize = 16;

/// Seed of the random weights.
const SEED: u64 = 1;

/// How kernels access the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpertPlacement {
    Device,
    DeviceAndHost,
    Copied,
    InPlace,
}

impl ExpertPlacement {
    const fn name(self) -> &'static str {
        match self {
            Self::Device => "experts on the GPU",
            Self::DeviceAndHost => "half of the experts in host memory",
            Self::Copied => "experts copied to the GPU",
            Self::InPlace => "experts read directly from host slots",
        }
    }
}

/// A mismatch between the device's and the CPU's results.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Layer, workload, and location of the experts.
    pub what: String,
    /// Number of differing rows, and of all rows.
    pub n_rows: (usize, usize),
    /// Largest relative error of a row. Rows for which other experts were chosen are excluded.
    pub error: f64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n_off, n_all) = self.n_rows;
        write!(f, "{}: {n_off} of {n_all} rows differ", self.what)?;
        if self.error > 0.0 {
            write!(f, ", by up to {:.1e} of their size", self.error)
        } else {
            f.write_str(": their router chose other experts")
        }
    }
}

/// Returns the differences between the GPU's and the CPU's results for the layers of a model.
///
/// # Errors
///
/// Errors of the device, and [`moeflux::Error::NoRoom`] if memory is exhausted.
///
/// # Panics
///
/// If the model has weights of a kind that only the CPU supports: see
/// [`crate::maker::first_cpu_only_kind`].
pub fn differences(gpu: &Arc<Gpu>, blueprint: &Blueprint) -> Result<Vec<Difference>> {
    let reduced = ReducedModel::new(blueprint, SEED)?;
    let expected = on_cpu(&reduced)?;
    let has_experts = reduced.layers.iter().any(|layer| layer.routed.is_some());
    let mut differences = Vec::new();
    for placement in placements(gpu, has_experts) {
        let found = outputs(gpu, &reduced, placement)?;
        differences.extend(compared(&expected, &found, placement));
    }
    Ok(differences)
}

fn on_cpu(reduced: &ReducedModel) -> Result<Vec<CheckOutput>> {
    let weights = Arc::clone(&reduced.weights);
    let n_threads = n_threads_default().get();
    let mut cpu = CpuBackend::new(weights, &reduced.workspace, N_PROMPT, n_threads)?;
    run(reduced, &mut cpu, &ExpertSource::Memory)
}

fn placements(gpu: &Gpu, has_experts: bool) -> Vec<ExpertPlacement> {
    let mut placements = vec![ExpertPlacement::Device];
    if has_experts {
        if gpu.facts().host_memory == HostMemory::Seen {
            placements.push(ExpertPlacement::DeviceAndHost);
        }
        placements.push(ExpertPlacement::Copied);
        if can_import_slabs(gpu.device()) {
            placements.push(ExpertPlacement::InPlace);
        }
    }
    placements
}

fn outputs(
    gpu: &Arc<Gpu>,
    reduced: &ReducedModel,
    placement: ExpertPlacement,
) -> Result<Vec<CheckOutput>> {
    let routed = reduced.layers.iter().filter_map(|layer| layer.routed.as_ref());
    let expert_bytes: usize = routed.map(|it| it.n_experts() * it.layout.record_bytes()).sum();
    let expert_bytes = expert_bytes as u64;
    let mut config = GpuConfig::default();
    match placement {
        // Slots are larger than the experts in them.
        ExpertPlacement::Device => config.expert_bytes_max = 2 * expert_bytes,
        ExpertPlacement::DeviceAndHost => {
            config.expert_bytes_max = expert_bytes / 2;
            config.tiers = Tiers::DeviceAndHost;
        }
        ExpertPlacement::Copied | ExpertPlacement::InPlace => {
            config.expert_bytes_max = expert_bytes;
        }
    }
    let ReducedModel { weights, workspace, layers, .. } = reduced;
    let mut backend = GpuBackend::new(Arc::clone(gpu), weights, workspace, N_PROMPT, config)?;
    let experts = match placement {
        ExpertPlacement::Device | ExpertPlacement::DeviceAndHost => {
            keep_experts(&mut backend, layers)?;
            ExpertSource::Device
        }
        ExpertPlacement::Copied => ExpertSource::Memory,
        ExpertPlacement::InPlace => match FilledSlots::new(layers) {
            Some(slots) => {
                backend.map_slots(&mapped_slots(layers, slots.stride_bytes))?;
                ExpertSource::Slots(slots)
            }
            None => ExpertSource::Memory,
        },
    };
    run(reduced, &mut backend, &experts)
}

fn mapped_slots(layers: &[ReducedLayer], stride_bytes: usize) -> MappedSlots {
    let layout = |layer: &ReducedLayer| layer.routed.as_ref().map(|it| (layer.idx, it.layout));
    MappedSlots { layouts: layers.iter().filter_map(layout).collect(), stride_bytes }
}

fn keep_experts(backend: &mut GpuBackend, layers: &[ReducedLayer]) -> Result<()> {
    for layer in layers {
        let Some(routed) = &layer.routed else { continue };
        for expert in (0..routed.n_experts()).map(ExpertIdx) {
            backend.keep_expert((layer.idx, expert), routed.n_experts(), &routed.view(expert))?;
        }
    }
    Ok(())
}

fn compared(
    expected: &[CheckOutput],
    found: &[CheckOutput],
    placement: ExpertPlacement,
) -> Vec<Difference> {
    let pairs = expected.iter().zip(found);
    pairs.filter_map(|(expected, found)| difference(expected, found, placement)).collect()
}

/// Returns the difference of two outcomes, unless rounding and ties explain it.
fn difference(
    expected: &CheckOutput,
    found: &CheckOutput,
    placement: ExpertPlacement,
) -> Option<Difference> {
    let n_rows = expected.rows.len();
    let (mut n_off, mut n_ties, mut most) = (0, 0, 0.0_f64);
    for row_idx in 0..n_rows {
        if expected.experts.get(row_idx) != found.experts.get(row_idx) {
            n_ties += 1;
            continue;
        }
        let error = relative_error(&found.rows[row_idx], &expected.rows[row_idx]);
        if error.is_nan() || error > ERROR_MAX {
            n_off += 1;
        }
        most = if error.is_nan() { f64::INFINITY } else { most.max(error) };
    }
    if n_ties > n_rows / ROWS_PER_TIE {
        n_off += n_ties;
    }
    let what = format!("{}, {}", found.what, placement.name());
    (n_off > 0).then_some(Difference { what, n_rows: (n_off, n_rows), error: most })
}

#[cfg(test)]
mod tests {
    use moeflux::provider::model::{Headers, Model};
    use std::path::Path;

    use super::*;

    fn output(rows: &[[f32; 4]], experts: &[usize]) -> CheckOutput {
        CheckOutput {
            what: "layer 0, a prompt".into(),
            rows: rows.iter().map(|row| row.to_vec()).collect(),
            experts: experts.iter().map(|expert| vec![ExpertIdx(*expert)]).collect(),
        }
    }

    #[test]
    fn other_weights_are_a_difference_everywhere() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-demo/model");
        let (blueprint, _) = Model::open(&dir).unwrap().into_parts();
        let outputs = |seed| on_cpu(&ReducedModel::new(&blueprint, seed).unwrap()).unwrap();
        let expected = outputs(SEED);
        assert_eq!(compared(&expected, &outputs(SEED), ExpertPlacement::Copied), []);
        let found = compared(&expected, &outputs(SEED + 1), ExpertPlacement::Copied);
        assert_eq!(found.len(), expected.len(), "{found:?}");
    }

    #[test]
    fn rounding_is_not_a_difference_but_a_wrong_value_is() {
        let expected = output(&[[1.0, -2.0, 3.0, 0.5]; 20], &[3; 20]);
        let found = |change: &dyn Fn(&mut CheckOutput)| {
            let mut found = output(&[[1.0, -2.0, 3.0, 0.500_001]; 20], &[3; 20]);
            change(&mut found);
            difference(&expected, &found, ExpertPlacement::Device).map(|it| it.n_rows)
        };
        assert_eq!(found(&|_| {}), None);
        assert_eq!(found(&|it| it.rows[7][2] = 3.1), Some((1, 20)));
        assert_eq!(found(&|it| it.rows[7][2] = f32::NAN), Some((1, 20)));
        assert_eq!(found(&|it| it.rows.iter_mut().for_each(|row| row.fill(0.0))), Some((20, 20)));
        // If another expert ties, the row may differ completely.
        assert_eq!(found(&|it| (it.experts[7], it.rows[7][2]) = (vec![ExpertIdx(4)], 9.0)), None);
        assert_eq!(found(&|it| it.experts.fill(vec![ExpertIdx(4)])), Some((20, 20)));
        assert_eq!(found(&|it| it.experts.clear()), Some((20, 20)));
    }
}
