//! Every storage format gives the same bytes for a requested expert.

use std::ops::ControlFlow;

use moeflux_io::Caching;
use moeflux_kernels::{FloatKind, Matrix};

use super::*;
use crate::error::Error;
use crate::experts::stream::Drives;
use crate::format::Checkpoint;
use crate::spec::{Family, ModelSpec, QuantParams};
use crate::weights::tests_support::{Tensors, quantised, spec};
use crate::weights::{Binder, ExpertShape, ExpertView, Manifest, Progress, TensorSource};

const N_EXPERTS: usize = 5;
const HIDDEN: usize = 128;
const INNER: usize = 64;
const PROJECTIONS: [(&str, usize, usize); 3] =
    [("gate_proj", INNER, HIDDEN), ("up_proj", INNER, HIDDEN), ("down_proj", HIDDEN, INNER)];

fn bound(checkpoint: &Checkpoint, spec: &ModelSpec) -> Manifest {
    let mut binder = Binder::new(TensorSource::Checkpoint(checkpoint), spec);
    let shape = ExpertShape { n_experts: N_EXPERTS, hidden: HIDDEN, inner: INNER };
    binder.experts(LayerIdx(3), "m.3.mlp", shape).unwrap();
    binder.finish().unwrap()
}

fn load(tensors: &Tensors, spec: &ModelSpec) -> Result<Experts> {
    let (_dir, checkpoint) = tensors.open();
    let manifest = bound(&checkpoint, spec);
    let stored_bytes = tensors.0.iter().map(|tensor| tensor.bytes.len() as u64).sum::<u64>();
    assert_eq!(manifest.expert_bytes(), stored_bytes);
    let drives = Drives::open(&checkpoint, Caching::PageCache, None)?;
    let resident = ResidentExperts::load_in_background(&manifest, (&checkpoint, None), drives)?;
    let mut experts = Experts::Resident(Box::new(resident));
    while let Some(progress) = experts.wait_for_load(Duration::from_millis(1), true)? {
        assert!(progress.done_bytes <= stored_bytes && progress.total_bytes == stored_bytes);
    }
    let rest = experts.load_stats().unwrap();
    assert_eq!((rest.n_read, rest.read_bytes), (rest.n_experts, stored_bytes));
    Ok(experts)
}

/// Returns all bytes of an expert.
fn bytes_of(view: &ExpertView<'_>) -> Vec<u8> {
    let parts = |it: &Matrix<'_>| [it.codes(), it.scales(), it.biases()].concat();
    [&view.gate, &view.up, &view.down].map(parts).concat()
}

/// Returns all experts as passed to a device.
fn kept(tensors: &Tensors, spec: &ModelSpec) -> Result<Vec<Vec<u8>>> {
    let (_dir, checkpoint) = tensors.open();
    let manifest = bound(&checkpoint, spec);
    let mut done_bytes = 0;
    let watch = &mut |progress: Progress| {
        done_bytes = progress.done_bytes;
        ControlFlow::Continue(())
    };
    let mut kept = Vec::new();
    for_each_expert(&manifest, (&checkpoint, None), watch, &mut |bank, expert, view| {
        assert_eq!((bank.layer, expert), (LayerIdx(3), ExpertIdx(kept.len())));
        kept.push(bytes_of(view));
        Ok(())
    })?;
    assert_eq!((kept.len(), done_bytes), (N_EXPERTS, manifest.expert_bytes()));
    Ok(kept)
}

/// Requests all experts and compares each part with `expected(expert, projection, part)`.
fn check<'t>(
    tensors: &'t Tensors,
    spec: &ModelSpec,
    parts: &[&str],
    expected: impl Fn(usize, usize, &str) -> &'t [u8],
) {
    let mut experts = load(tensors, spec).unwrap();
    let chosen: Vec<_> = (0..N_EXPERTS).map(ExpertIdx).collect();
    experts
        .request(&ExpertRequest { layer: LayerIdx(3), chosen: &chosen, is_small: true })
        .unwrap();
    let kept = kept(tensors, spec).unwrap();
    let mut n_seen = 0;
    while let Some(arrived) = experts.next_ready().unwrap() {
        for place in 0..arrived.len() {
            let (expert, view) = (arrived.expert(place), arrived.view(place));
            assert_eq!(expert.0, n_seen);
            n_seen += 1;
            assert_eq!(bytes_of(&view), kept[expert.0], "{expert:?}");
            for (projection_idx, matrix) in [view.gate, view.up, view.down].iter().enumerate() {
                let (_, n_rows, n_cols) = PROJECTIONS[projection_idx];
                assert_eq!((matrix.layout().n_rows, matrix.layout().n_cols), (n_rows, n_cols));
                let found = [Matrix::codes, Matrix::scales, Matrix::biases].map(|get| get(matrix));
                for (part_idx, part) in parts.iter().enumerate() {
                    let expected = expected(expert.0, projection_idx, part);
                    assert_eq!(found[part_idx], expected, "{expert:?} {projection_idx} {part}");
                }
            }
        }
    }
    assert_eq!(n_seen, N_EXPERTS);
}

fn check_each(tensors: &Tensors, spec: &ModelSpec, parts: &[&str]) {
    check(tensors, spec, parts, |expert_idx, projection_idx, part| {
        let (projection, ..) = PROJECTIONS[projection_idx];
        tensors.bytes(&format!("m.3.mlp.experts.{expert_idx}.{projection}.{part}"))
    });
}

fn check_stacked(tensors: &Tensors, spec: &ModelSpec, parts: &[&str]) {
    check(tensors, spec, parts, |expert_idx, projection_idx, part| {
        let (projection, ..) = PROJECTIONS[projection_idx];
        let all = tensors.bytes(&format!("m.3.mlp.switch_mlp.{projection}.{part}"));
        &all[all.len() / N_EXPERTS * expert_idx..][..all.len() / N_EXPERTS]
    });
}

/// Stores one tensor per expert and projection, in shuffled order.
fn each(mut add: impl FnMut(&mut Tensors, &str, usize, usize)) -> Tensors {
    let mut tensors = Tensors::default();
    for (projection, n_rows, n_cols) in PROJECTIONS.into_iter().rev() {
        for expert_idx in [2, 0, 4, 1, 3] {
            let base = format!("m.3.mlp.experts.{expert_idx}.{projection}");
            add(&mut tensors, &base, n_rows, n_cols);
        }
    }
    tensors
}

#[test]
fn a_tensor_per_expert() {
    let plain = spec(Family::Qwen3Moe, 4);
    for dtype in ["F32", "F16", "BF16"] {
        let tensors = each(|tensors, base, n_rows, n_cols| {
            tensors.add(&format!("{base}.weight"), dtype, &[n_rows, n_cols]);
        });
        check_each(&tensors, &plain, &["weight"]);
    }
    let tensors = each(|tensors, base, n_rows, n_cols| {
        tensors.add_fp8(base, n_rows, n_cols);
    });
    check_each(&tensors, &plain, &["weight", "weight_scale_inv"]);
    let params = QuantParams { bits: 5, group: 32 };
    let tensors = each(|tensors, base, n_rows, n_cols| {
        tensors.add_affine(base, &[n_rows, n_cols], params, FloatKind::F16);
    });
    check_each(&tensors, &quantised(Family::Qwen3Moe, 5, 32), &["weight", "scales", "biases"]);
}

#[test]
fn stacked_experts() {
    for (bits, group, scale) in
        [(3, 32, FloatKind::F32), (4, 64, FloatKind::Bf16), (8, 64, FloatKind::F16)]
    {
        let mut tensors = Tensors::default();
        for (projection, n_rows, n_cols) in PROJECTIONS {
            let base = format!("m.3.mlp.switch_mlp.{projection}");
            let params = QuantParams { bits, group };
            tensors.add_affine(&base, &[N_EXPERTS, n_rows, n_cols], params, scale);
        }
        let spec = quantised(Family::Qwen3Moe, bits, group);
        check_stacked(&tensors, &spec, &["weight", "scales", "biases"]);
    }
    let mut tensors = Tensors::default();
    for (projection, n_rows, n_cols) in PROJECTIONS {
        let name = format!("m.3.mlp.switch_mlp.{projection}.weight");
        tensors.add(&name, "BF16", &[N_EXPERTS, n_rows, n_cols]);
    }
    check_stacked(&tensors, &spec(Family::Qwen3Moe, 4), &["weight"]);
}

#[test]
fn fused_experts_have_gate_rows_first() {
    for suffix in ["", ".weight"] {
        let (gate_up, down) = (
            format!("m.3.mlp.experts.gate_up_proj{suffix}"),
            format!("m.3.mlp.experts.down_proj{suffix}"),
        );
        let mut tensors = Tensors::default();
        tensors.add(&gate_up, "BF16", &[N_EXPERTS, 2 * INNER, HIDDEN]);
        tensors.add(&down, "BF16", &[N_EXPERTS, HIDDEN, INNER]);
        let matrix_bytes = INNER * HIDDEN * 2;
        check(
            &tensors,
            &spec(Family::Qwen35Moe, 4),
            &["weight"],
            |expert_idx, projection_idx, _| {
                let (name, matrix_idx) = match projection_idx {
                    0 => (&gate_up, 2 * expert_idx),
                    1 => (&gate_up, 2 * expert_idx + 1),
                    _ => (&down, expert_idx),
                };
                &tensors.bytes(name)[matrix_idx * matrix_bytes..][..matrix_bytes]
            },
        );
    }
}

#[test]
fn only_requested_experts_arrive_each_once() {
    let tensors = each(|tensors, base, n_rows, n_cols| {
        tensors.add(&format!("{base}.weight"), "BF16", &[n_rows, n_cols]);
    });
    let mut experts = load(&tensors, &spec(Family::Qwen3Moe, 4)).unwrap();
    let mut ask = |chosen: &[usize]| {
        let chosen: Vec<_> = chosen.iter().copied().map(ExpertIdx).collect();
        experts
            .request(&ExpertRequest { layer: LayerIdx(3), chosen: &chosen, is_small: true })
            .unwrap();
        let mut came = Vec::new();
        while let Some(arrived) = experts.next_ready().unwrap() {
            came.extend((0..arrived.len()).map(|place| arrived.expert(place).0));
        }
        assert!(experts.next_ready().unwrap().is_none());
        came
    };
    assert_eq!(ask(&[1, 4, 4, 0]), [0, 1, 4]);
    assert!(ask(&[]).is_empty());
    assert_eq!(ask(&[2]), [2]);
}

#[test]
fn a_scale_that_is_not_finite_is_named_with_its_place() {
    let params = QuantParams { bits: 4, group: 64 };
    let nan = f32::NAN.to_le_bytes();
    let mut tensors = Tensors::default();
    for (projection, n_rows, n_cols) in PROJECTIONS {
        let base = format!("m.3.mlp.switch_mlp.{projection}");
        tensors.add_affine(&base, &[N_EXPERTS, n_rows, n_cols], params, FloatKind::F32);
    }
    // Expert 2, row 5, group 1 of 2.
    let value_idx = (2 * INNER + 5) * 2 + 1;
    let biases = tensors.bytes_mut("m.3.mlp.switch_mlp.up_proj.biases");
    biases[value_idx * 4..][..4].copy_from_slice(&nan);
    let error = load(&tensors, &quantised(Family::Qwen3Moe, 4, 64)).unwrap_err().to_string();
    let tensor = "tensor `m.3.mlp.switch_mlp.up_proj.biases`";
    let expected = format!("expert 2 of layer 3: {tensor}: value {value_idx} is NaN");
    assert!(error.starts_with(&expected), "{error}");

    let mut tensors = each(|tensors, base, n_rows, n_cols| {
        tensors.add_fp8(base, n_rows, n_cols);
    });
    let name = "m.3.mlp.experts.4.down_proj.weight_scale_inv";
    tensors.bytes_mut(name)[..4].copy_from_slice(&nan);
    let spec = spec(Family::DeepseekV3, 4);
    for error in [load(&tensors, &spec).unwrap_err(), kept(&tensors, &spec).unwrap_err()] {
        let error = error.to_string();
        assert!(error.contains(&format!("tensor `{name}`: value 0 is NaN")), "{error}");
    }
}

#[test]
fn keeping_experts_can_stop_at_any_of_them() {
    let tensors = each(|tensors, base, n_rows, n_cols| {
        tensors.add(&format!("{base}.weight"), "BF16", &[n_rows, n_cols]);
    });
    let (_dir, checkpoint) = tensors.open();
    let manifest = bound(&checkpoint, &spec(Family::Qwen3Moe, 4));
    for n_kept in 0..N_EXPERTS {
        let mut go_on = |_| ControlFlow::Continue(());
        let mut n_seen = 0;
        let done = for_each_expert(&manifest, (&checkpoint, None), &mut go_on, &mut |_, _, _| {
            n_seen += 1;
            if n_seen > n_kept { Err(Error::Cancelled) } else { Ok(()) }
        });
        assert!(matches!(done, Err(Error::Cancelled)));
        assert_eq!(n_seen, n_kept + 1);
        let mut n_told = 0;
        let mut stop = |_| {
            n_told += 1;
            if n_told > n_kept { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let done =
            for_each_expert(&manifest, (&checkpoint, None), &mut stop, &mut |_, _, _| Ok(()));
        assert!(matches!(done, Err(Error::Cancelled)));
    }
}
