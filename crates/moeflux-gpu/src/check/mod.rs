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
use moeflux::provider::experts::stream::SeenSlots;
use moeflux::provider::ids::ExpertIdx;

use crate::adapter::HostMemory;
use crate::backend::GpuBackend;
use crate::config::{GpuConfig, Tiers};
use crate::device::Gpu;
use crate::seen::can_see;
use crate::values::relative_error;

pub use miniature::name_of_layers;
use miniature::{Layer, Miniature, N_PROMPT};
use run::{ExpertsIn, Outcome, Slots, run};

/// Bound on the relative error of a row. A different order of summation causes some 1e-6, and a
/// wrong value in a row of thousands 1e-2.
const ERROR_MAX: f64 = 1e-3;

/// One row in this many may choose another expert, because two experts can tie.
const ROWS_PER_TIE: usize = 16;

/// Seed of the random weights.
const SEED: u64 = 1;

/// How kernels access the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Device,
    Both,
    Copied,
    Seen,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Device => "experts on the GPU",
            Self::Both => "half of the experts in host memory",
            Self::Copied => "experts copied to the GPU",
            Self::Seen => "experts read directly from host slots",
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
/// [`crate::maker::of_cpu_only`].
pub fn differences(gpu: &Arc<Gpu>, blueprint: &Blueprint) -> Result<Vec<Difference>> {
    let miniature = Miniature::new(blueprint, SEED)?;
    let expected = on_cpu(&miniature)?;
    let has_experts = miniature.layers.iter().any(|layer| layer.sparse.is_some());
    let mut differences = Vec::new();
    for way in ways(gpu, has_experts) {
        let found = outcomes(gpu, &miniature, way)?;
        differences.extend(compared(&expected, &found, way));
    }
    Ok(differences)
}

fn on_cpu(miniature: &Miniature) -> Result<Vec<Outcome>> {
    let weights = Arc::clone(&miniature.weights);
    let n_threads = n_threads_default().get();
    let mut cpu = CpuBackend::new(weights, &miniature.workspace, N_PROMPT, n_threads)?;
    run(miniature, &mut cpu, &ExpertsIn::Memory)
}

fn ways(gpu: &Gpu, has_experts: bool) -> Vec<Way> {
    let mut ways = vec![Way::Device];
    if has_experts {
        if gpu.facts().host_memory == HostMemory::Seen {
            ways.push(Way::Both);
        }
        ways.push(Way::Copied);
        if can_see(gpu.device()) {
            ways.push(Way::Seen);
        }
    }
    ways
}

fn outcomes(gpu: &Arc<Gpu>, miniature: &Miniature, way: Way) -> Result<Vec<Outcome>> {
    let sparse = miniature.layers.iter().filter_map(|layer| layer.sparse.as_ref());
    let expert_bytes: usize = sparse.map(|it| it.n_experts() * it.layout.record_bytes()).sum();
    let expert_bytes = expert_bytes as u64;
    let mut config = GpuConfig::default();
    match way {
        // Slots are larger than the experts in them.
        Way::Device => config.expert_bytes_max = 2 * expert_bytes,
        Way::Both => {
            config.expert_bytes_max = expert_bytes / 2;
            config.tiers = Tiers::DeviceAndHost;
        }
        Way::Copied | Way::Seen => config.expert_bytes_max = expert_bytes,
    }
    let Miniature { weights, workspace, layers, .. } = miniature;
    let mut backend = GpuBackend::new(Arc::clone(gpu), weights, workspace, N_PROMPT, config)?;
    let experts = match way {
        Way::Device | Way::Both => {
            keep_experts(&mut backend, layers)?;
            ExpertsIn::Device
        }
        Way::Copied => ExpertsIn::Memory,
        Way::Seen => match Slots::new(layers) {
            Some(slots) => {
                backend.see_slots(&seen(layers, slots.stride_bytes))?;
                ExpertsIn::Slots(slots)
            }
            None => ExpertsIn::Memory,
        },
    };
    run(miniature, &mut backend, &experts)
}

fn seen(layers: &[Layer], stride_bytes: usize) -> SeenSlots {
    let layout = |layer: &Layer| layer.sparse.as_ref().map(|it| (layer.idx, it.layout));
    SeenSlots { layouts: layers.iter().filter_map(layout).collect(), stride_bytes }
}

fn keep_experts(backend: &mut GpuBackend, layers: &[Layer]) -> Result<()> {
    for layer in layers {
        let Some(sparse) = &layer.sparse else { continue };
        for expert in (0..sparse.n_experts()).map(ExpertIdx) {
            backend.keep_expert((layer.idx, expert), sparse.n_experts(), &sparse.view(expert))?;
        }
    }
    Ok(())
}

fn compared(expected: &[Outcome], found: &[Outcome], way: Way) -> Vec<Difference> {
    let pairs = expected.iter().zip(found);
    pairs.filter_map(|(expected, found)| difference(expected, found, way)).collect()
}

/// Returns the difference of two outcomes, unless rounding and ties explain it.
fn difference(expected: &Outcome, found: &Outcome, way: Way) -> Option<Difference> {
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
    let what = format!("{}, {}", found.what, way.name());
    (n_off > 0).then_some(Difference { what, n_rows: (n_off, n_rows), error: most })
}

#[cfg(test)]
mod tests {
    use moeflux::provider::model::{Headers, Model};
    use std::path::Path;

    use super::*;

    fn outcome(rows: &[[f32; 4]], experts: &[usize]) -> Outcome {
        Outcome {
            what: "layer 0, a prompt".into(),
            rows: rows.iter().map(|row| row.to_vec()).collect(),
            experts: experts.iter().map(|expert| vec![ExpertIdx(*expert)]).collect(),
        }
    }

    #[test]
    fn other_weights_are_a_difference_everywhere() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-demo/model");
        let (blueprint, _) = Model::open(&dir).unwrap().into_parts();
        let outcomes = |seed| on_cpu(&Miniature::new(&blueprint, seed).unwrap()).unwrap();
        let expected = outcomes(SEED);
        assert_eq!(compared(&expected, &outcomes(SEED), Way::Copied), []);
        let found = compared(&expected, &outcomes(SEED + 1), Way::Copied);
        assert_eq!(found.len(), expected.len(), "{found:?}");
    }

    #[test]
    fn rounding_is_no_difference_and_a_wrong_value_is() {
        let expected = outcome(&[[1.0, -2.0, 3.0, 0.5]; 20], &[3; 20]);
        let found = |change: &dyn Fn(&mut Outcome)| {
            let mut found = outcome(&[[1.0, -2.0, 3.0, 0.500_001]; 20], &[3; 20]);
            change(&mut found);
            difference(&expected, &found, Way::Device).map(|it| it.n_rows)
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
