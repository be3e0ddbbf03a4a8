//! Binding and loading of tiny checkpoints: kinds, shapes, rows, norms, leftovers, damage.

mod native;

use std::ops::ControlFlow;

use moeflux_kernels::FloatKind;

use super::tests_support::{Tensors, dtype_name, quantised, spec};
use super::*;
use crate::error::{Error, Result};
use crate::format::Checkpoint;
use crate::ids::LayerIdx;
use crate::spec::{Family, ModelSpec, QuantParams};

const FLOATS: [FloatKind; 3] = [FloatKind::F32, FloatKind::F16, FloatKind::Bf16];

fn load_all(manifest: &Manifest, checkpoint: &Checkpoint) -> Result<Weights> {
    load(manifest, checkpoint, (None, PageCaching::Kept), &mut |_| ControlFlow::Continue(()))
}

/// Binds and finishes; returns the error as text.
fn bind_error(
    tensors: &Tensors,
    spec: &ModelSpec,
    bind: impl FnOnce(&mut Binder<'_>) -> Result<()>,
) -> String {
    let (_dir, checkpoint) = tensors.open();
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), spec);
    bind(&mut binder).and_then(|()| binder.finish()).unwrap_err().to_string()
}

fn matrix_error(tensors: &Tensors, spec: &ModelSpec, n_rows: usize, n_cols: usize) -> String {
    bind_error(tensors, spec, |binder| binder.matrix("w", n_rows, n_cols).map(drop))
}

fn check_matrix(
    tensors: &Tensors,
    spec: &ModelSpec,
    parts: [&str; 3],
    (rows, cols): (usize, usize),
) {
    let (_dir, checkpoint) = tensors.open();
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), spec);
    let id = binder.matrix("w", rows, cols).unwrap();
    let manifest = binder.finish().unwrap();
    let weights = load_all(&manifest, &checkpoint).unwrap();
    let matrix = weights.matrix(id);
    let bytes = |part: &str| if part.is_empty() { &[][..] } else { tensors.bytes(part) };
    assert_eq!(matrix.codes(), bytes(parts[0]));
    assert_eq!(matrix.scales(), bytes(parts[1]));
    assert_eq!(matrix.biases(), bytes(parts[2]));
    assert_eq!(manifest.resident_bytes(), matrix.layout().total_bytes() as u64);
}

#[test]
fn plain_floats_are_read_as_stored() {
    for kind in FLOATS {
        let mut tensors = Tensors::default();
        tensors.add("w.weight", dtype_name(kind), &[5, 7]);
        check_matrix(&tensors, &spec(Family::Qwen3Moe, 2), ["w.weight", "", ""], (5, 7));
    }
}

#[test]
fn fp8_blocks_are_read_with_their_scales() {
    for (n_rows, n_cols) in [(1, 1), (128, 128), (129, 300)] {
        let mut tensors = Tensors::default();
        tensors.add_fp8("w", n_rows, n_cols);
        let spec = spec(Family::DeepseekV3, 2);
        check_matrix(&tensors, &spec, ["w.weight", "w.weight_scale_inv", ""], (n_rows, n_cols));
    }
}

#[test]
fn all_affine_kinds_are_read() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for (group, scale) in [32, 64, 128].into_iter().zip(FLOATS) {
            let mut tensors = Tensors::default();
            tensors.add_affine("w", &[3, 256], QuantParams { bits, group }, scale);
            let spec = quantised(Family::Qwen3Moe, bits, group);
            check_matrix(&tensors, &spec, ["w.weight", "w.scales", "w.biases"], (3, 256));
        }
    }
}

#[test]
fn an_override_makes_one_tensor_8_bit_among_4_bit() {
    let mut tensors = Tensors::default();
    let four = QuantParams { bits: 4, group: 64 };
    let eight = QuantParams { bits: 8, group: 64 };
    tensors.add_affine("w", &[4, 128], four, FloatKind::Bf16);
    tensors.add_affine("gate", &[8, 128], eight, FloatKind::Bf16);
    let mut spec = quantised(Family::Qwen35Moe, 4, 64);
    spec.quantisation.overrides.insert("gate".to_owned(), Some(four));
    let bind = |binder: &mut Binder<'_>| {
        binder.matrix("w", 4, 128)?;
        binder.matrix("gate", 8, 128).map(drop)
    };
    assert_eq!(
        bind_error(&tensors, &spec, bind),
        "tensor `gate.weight`: packed width 32 fits 8 bits; config.json says 4 bits in groups of \
         64 for `gate`"
    );
    let (_dir, checkpoint) = tensors.open();
    // Without an entry, the shapes decide: also where the config states something else for all.
    for (params, default) in [(Some(Some(eight)), four), (None, four), (None, eight)] {
        spec.quantisation.default = Some(default);
        spec.quantisation.overrides.clear();
        spec.quantisation.overrides.extend(params.map(|it| ("gate".to_owned(), it)));
        let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
        bind(&mut binder).unwrap();
        let kinds = binder.finish().unwrap().kinds();
        let kinds: Vec<_> = kinds.iter().map(|it| (it.kind.to_string(), it.n_matrices)).collect();
        assert_eq!(kinds, [("q8g64".to_owned(), 1), ("q4g64".to_owned(), 1)]);
    }
}

/// A spec with an entry for `w`.
fn with_entry(bits: u8, group: u8) -> ModelSpec {
    let mut spec = quantised(Family::Qwen3Moe, 4, 64);
    let params = Some(QuantParams { bits, group });
    spec.quantisation.overrides.insert("w".to_owned(), params);
    spec
}

#[test]
fn errors_about_shapes_state_the_expected_ones() {
    let quant = QuantParams { bits: 4, group: 64 };
    let mut tensors = Tensors::default();
    tensors.add_affine("w", &[4, 128], quant, FloatKind::Bf16);
    let error = matrix_error(&tensors, &with_entry(4, 32), 4, 128);
    assert!(error.ends_with("width 2 fits groups of 64; config.json says 32 for `w`"), "{error}");
    let error = matrix_error(&tensors, &quantised(Family::Qwen3Moe, 4, 64), 5, 128);
    assert!(error.contains("packed shape [4, 16], but 4 bits of [5, 128] make [5, 16]"), "{error}");
    let error = matrix_error(&tensors, &spec(Family::Qwen3Moe, 2), 4, 128);
    assert!(error.contains("config.json does not describe its quantisation"), "{error}");
    let error = matrix_error(&tensors, &with_entry(7, 64), 4, 128);
    assert!(error.contains("fits 4 bits; config.json says 7"), "{error}");
    let error = matrix_error(&tensors, &quantised(Family::Qwen3Moe, 4, 64), usize::MAX / 2, 128);
    assert!(error.contains("does not fit in memory"), "{error}");

    let mut tensors = Tensors::default();
    tensors.add("w.weight", "BF16", &[4, 6]);
    let error = matrix_error(&tensors, &spec(Family::Qwen3Moe, 2), 6, 4);
    assert!(error.contains("has shape [4, 6], but config.json requires [6, 4]"), "{error}");
    let error = matrix_error(&tensors, &spec(Family::Qwen3Moe, 2), 4, 0);
    assert!(error.contains("has no values"), "{error}");

    let mut tensors = Tensors::default();
    tensors.add("w.weight", "F8_E4M3", &[200, 100]).add("w.weight_scale_inv", "F32", &[1, 1]);
    let error = matrix_error(&tensors, &spec(Family::DeepseekV3, 2), 200, 100);
    assert!(error.contains("blocks of 128 x 128 of [200, 100] make [2, 1]"), "{error}");
}

#[test]
fn wrong_types_are_refused_by_name() {
    let spec = quantised(Family::Qwen3Moe, 4, 64);
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "I16", &[4, 64]);
    let error = matrix_error(&tensors, &spec, 4, 64);
    assert!(error.starts_with("tensor `w.weight`: has values of type I16"), "{error}");

    let mut tensors = Tensors::default();
    tensors.add("w.weight", "U32", &[4, 8]).add("w.scales", "U8", &[4, 1]);
    tensors.add("w.biases", "BF16", &[4, 1]);
    let error = matrix_error(&tensors, &spec, 4, 64);
    assert!(error.starts_with("tensor `w.scales`: has values of type U8"), "{error}");

    let mut tensors = Tensors::default();
    tensors.add("w.weight", "U32", &[4, 8]).add("w.scales", "BF16", &[4, 1]);
    tensors.add("w.biases", "F16", &[4, 1]);
    let error = matrix_error(&tensors, &spec, 4, 64);
    assert!(error.contains("`w.biases`: is F16 [4, 1], but the scales are BF16 [4, 1]"), "{error}");
}

#[test]
fn missing_and_left_over_tensors_are_named() {
    let spec = quantised(Family::Qwen3Moe, 4, 64);
    let error = matrix_error(Tensors::default().add("x", "F32", &[1]), &spec, 4, 64);
    assert!(error.starts_with("tensor `w.weight`: is missing"), "{error}");

    let mut tensors = Tensors::default();
    tensors.add("w.weight", "U32", &[4, 8]).add("w.biases", "F16", &[4, 1]);
    let error = matrix_error(&tensors, &spec, 4, 64);
    assert!(error.starts_with("tensor `w.scales`: is missing"), "{error}");

    let mut tensors = Tensors::default();
    tensors.add("w.weight", "F16", &[4, 8]).add("model.strange", "F16", &[4, 1]);
    tensors.add("model.strange.too", "F16", &[4, 1]);
    let error = matrix_error(&tensors, &spec, 4, 8);
    let expected = "tensor `model.strange`: in `model.safetensors`, of shape [4, 1], is not part \
                    of the model that config.json describes (1 more like it)";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn vision_mtp_and_derived_tensors_are_skipped_with_their_bytes() {
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "F32", &[1, 1]);
    tensors.add("model.visual.a", "F32", &[3]).add("model.visual.b", "BF16", &[3]);
    tensors.add("vision_tower.a", "F32", &[1]).add("language_model.mtp.fc.weight", "F32", &[2]);
    tensors.add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", &[4]);
    tensors.add("model.layers.2.eh_proj.weight", "F32", &[1, 2]);
    tensors.add("model.layers.2.mlp.gate.weight", "F32", &[1, 2]);
    tensors.add("lm_head.weight", "F32", &[1, 1]);
    let mut spec = spec(Family::DeepseekV3, 2);
    spec.tied_embeddings = true;
    let (_dir, checkpoint) = tensors.open();
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    binder.matrix("w", 1, 1).unwrap();
    let skipped = binder.finish().unwrap().skipped;
    let found: Vec<_> = skipped
        .iter()
        .map(|it| (it.reason, it.pattern.as_str(), it.n_tensors, it.n_bytes))
        .collect();
    let expected = [
        (SkipReason::Vision, "model.visual.*", 2, 18),
        (SkipReason::Vision, "vision_tower.*", 1, 4),
        (SkipReason::Mtp, "model.layers.2.*", 2, 16),
        (SkipReason::Mtp, "mtp.*", 1, 8),
        (SkipReason::Derived, "*.rotary_emb.inv_freq", 1, 16),
        (SkipReason::Derived, "lm_head.*", 1, 4),
    ];
    assert_eq!(found, expected);

    spec.tied_embeddings = false;
    let error = matrix_error(&tensors, &spec, 1, 1);
    assert!(error.contains("`lm_head.weight`"), "{error}");
}

#[test]
fn a_layer_too_many_is_not_taken_for_mtp() {
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "F32", &[1, 1]);
    tensors.add("model.layers.2.mlp.gate.weight", "F32", &[1, 2]);
    let error = matrix_error(&tensors, &spec(Family::DeepseekV3, 2), 1, 1);
    assert!(error.contains("`model.layers.2.mlp.gate.weight`"), "{error}");
}

/// Returns the values that `norm` and `vector` load for a stored 0.5, beside a convolution of this
/// shape.
fn norm_of(mut spec: ModelSpec, conv: &[usize], extra: &str) -> (f32, f32) {
    const CONV: &str = "model.layers.0.linear_attn.conv1d.weight";
    let mut tensors = Tensors::default();
    tensors.add_floats("n.weight", FloatKind::Bf16, &[1], &[0.5]);
    tensors.add_floats("v.weight", FloatKind::Bf16, &[1], &[0.5]);
    if !conv.is_empty() {
        tensors.add(CONV, "BF16", conv);
    }
    if !extra.is_empty() {
        tensors.add(extra, "BF16", &[1]);
    }
    let (_dir, checkpoint) = tensors.open();
    spec.hidden = 1;
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    let norm = binder.norm("n.weight", 1).unwrap();
    let vector = binder.vector("v.weight", 1).unwrap();
    if !conv.is_empty() {
        binder.vector(CONV, conv.iter().product()).unwrap();
    }
    if !extra.is_empty() {
        binder.vector(extra, 1).unwrap();
    }
    let weights = load_all(&binder.finish().unwrap(), &checkpoint).unwrap();
    (weights.vector(norm)[0], weights.vector(vector)[0])
}

#[test]
fn one_is_added_to_zero_centred_norms_exactly_once() {
    use Family::{DeepseekV3, Qwen3Moe, Qwen3Next, Qwen35Moe};
    let check = |spec: ModelSpec, conv: &[usize], extra: &str, expected: f32| {
        let family = spec.family;
        let found = norm_of(spec, conv, extra);
        assert_eq!(found, (expected, 0.5), "{family:?} {conv:?} {extra}");
    };
    for family in [Qwen3Next, Qwen35Moe] {
        check(spec(family, 2), &[8, 1, 4], "", 1.5);
        check(spec(family, 2), &[8, 4, 1], "", 0.5);
        check(spec(family, 2), &[8, 4, 1], "mtp.x", 0.5);
        check(spec(family, 2), &[8, 1, 1], "", 1.5);
        check(spec(family, 2), &[], "", 1.5);
        check(spec(family, 2), &[], "model.layers.0.mlp.switch_mlp.x", 0.5);
        check(quantised(family, 4, 64), &[], "", 0.5);
        check(quantised(family, 4, 64), &[8, 1, 1], "", 0.5);
    }
    for family in [Qwen3Moe, DeepseekV3] {
        check(spec(family, 2), &[], "", 0.5);
        check(spec(family, 2), &[8, 1, 4], "", 0.5);
    }
}

#[test]
fn one_is_added_after_widening() {
    // In bf16, 1 + 0.0078125 * 0.5 would round to 1.
    let mut tensors = Tensors::default();
    tensors.add_floats("n.weight", FloatKind::Bf16, &[2], &[0.003_906_25, -1.0]);
    let (_dir, checkpoint) = tensors.open();
    let spec = spec(Family::Qwen3Next, 2);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    let norm = binder.norm("n.weight", 2).unwrap();
    let weights = load_all(&binder.finish().unwrap(), &checkpoint).unwrap();
    assert_eq!(weights.vector(norm), [1.0 + 0.003_906_25, 0.0]);
}

#[test]
fn vectors_of_any_shape_and_type_are_widened() {
    let values = [0.0, -0.0, 1.0, -2.5, 65_504.0, 6.103_515_6e-5];
    for kind in [FloatKind::F32, FloatKind::F16] {
        let mut tensors = Tensors::default();
        tensors.add_floats("v", kind, &[2, 3, 1], &values);
        let (_dir, checkpoint) = tensors.open();
        let spec = spec(Family::Qwen3Moe, 2);
        let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
        let vector = binder.vector("v", 6).unwrap();
        let constant = binder.constant(vec![3.0]);
        let weights = load_all(&binder.finish().unwrap(), &checkpoint).unwrap();
        assert_eq!(weights.vector(vector), values);
        assert_eq!(weights.vector(constant), [3.0]);
        let error = bind_error(&tensors, &spec, |binder| binder.vector("v", 5).map(drop));
        assert!(error.contains("has shape [2, 3, 1], but config.json requires 5 values"));
    }
}

#[test]
fn stacked_heads_are_one_matrix() {
    let mut tensors = Tensors::default();
    let params = QuantParams { bits: 6, group: 32 };
    tensors.add_affine("q", &[3, 4, 64], params, FloatKind::F16).add(
        "o.weight",
        "BF16",
        &[3, 4, 8],
    );
    let (_dir, checkpoint) = tensors.open();
    let spec = quantised(Family::DeepseekV3, 6, 32);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    let q = binder.stacked("q", 3, 4, 64).unwrap();
    let o = binder.stacked("o", 3, 4, 8).unwrap();
    let weights = load_all(&binder.finish().unwrap(), &checkpoint).unwrap();
    assert_eq!(weights.matrix(q).layout().n_rows, 12);
    assert_eq!(weights.matrix(q).codes(), tensors.bytes("q.weight"));
    assert_eq!(weights.matrix(q).biases(), tensors.bytes("q.biases"));
    assert_eq!(weights.matrix(o).codes(), tensors.bytes("o.weight"));
}

#[test]
fn rows_are_gathered_in_the_requested_order() {
    let mut tensors = Tensors::default();
    let params = QuantParams { bits: 3, group: 32 };
    tensors.add_affine("w", &[8, 64], params, FloatKind::F32);
    let (_dir, checkpoint) = tensors.open();
    let spec = quantised(Family::Qwen3Next, 3, 32);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    let a = binder.matrix_rows("w", 8, 64, vec![6..8, 0..2]).unwrap();
    let b = binder.matrix_rows("w", 8, 64, vec![2..5, 5..6]).unwrap();
    let weights = load_all(&binder.finish().unwrap(), &checkpoint).unwrap();
    let gathered = |part: &str, rows: &[usize]| {
        let bytes = tensors.bytes(part);
        let row_bytes = bytes.len() / 8;
        rows.iter().flat_map(|&row| bytes[row * row_bytes..][..row_bytes].to_vec()).collect()
    };
    for (id, rows) in [(a, [6, 7, 0, 1]), (b, [2, 3, 4, 5])] {
        let matrix = weights.matrix(id);
        let expected: [Vec<u8>; 3] =
            ["w.weight", "w.scales", "w.biases"].map(|part| gathered(part, &rows));
        assert_eq!([matrix.codes(), matrix.scales(), matrix.biases()], expected);
    }
}

#[test]
fn rows_of_fp8_move_in_whole_blocks() {
    let mut tensors = Tensors::default();
    tensors.add_fp8("w", 384, 130);
    let (_dir, checkpoint) = tensors.open();
    let spec = spec(Family::Qwen3Next, 2);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    let a = binder.matrix_rows("w", 384, 130, vec![256..384, 0..128]).unwrap();
    binder.matrix_rows("w", 384, 130, std::iter::once(128..256).collect()).unwrap();
    let weights = load_all(&binder.finish().unwrap(), &checkpoint).unwrap();
    let (codes, scales) = (tensors.bytes("w.weight"), tensors.bytes("w.weight_scale_inv"));
    let (block, block_scales) = (128 * 130, 2 * 4);
    assert_eq!(weights.matrix(a).codes(), [&codes[2 * block..], &codes[..block]].concat());
    let expected = [&scales[2 * block_scales..], &scales[..block_scales]].concat();
    assert_eq!(weights.matrix(a).scales(), expected);

    let error = bind_error(&tensors, &spec, |binder| {
        binder.matrix_rows("w", 384, 130, vec![0..64, 64..128]).map(drop)
    });
    assert!(error.contains("blocks of 128 rows, but rows 0..64 would split a block"), "{error}");
}

#[test]
#[should_panic(expected = "row 1 of `w` is bound twice")]
fn a_row_cannot_be_used_twice() {
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "F32", &[4, 2]);
    let (_dir, checkpoint) = tensors.open();
    let spec = spec(Family::Qwen3Next, 2);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    binder.matrix_rows("w", 4, 2, vec![0..1, 1..2]).unwrap();
    drop(binder.matrix_rows("w", 4, 2, vec![1..2, 2..4]));
}

#[test]
#[should_panic(expected = "`w` that no matrix has")]
fn no_row_is_forgotten() {
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "F32", &[4, 2]);
    let (_dir, checkpoint) = tensors.open();
    let spec = spec(Family::Qwen3Next, 2);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    binder.matrix_rows("w", 4, 2, vec![0..1, 1..3]).unwrap();
    drop(binder.finish());
}

#[test]
fn scales_that_are_not_finite_are_named() {
    let params = QuantParams { bits: 4, group: 32 };
    let spec = quantised(Family::Qwen3Moe, 4, 32);
    for (part, value_idx, value) in [
        ("w.scales", 3, f32::NAN),
        ("w.biases", 0, f32::INFINITY),
        ("w.scales", 7, f32::NEG_INFINITY),
    ] {
        let mut tensors = Tensors::default();
        tensors.add_affine("w", &[4, 64], params, FloatKind::F32);
        tensors.bytes_mut(part)[value_idx * 4..][..4].copy_from_slice(&value.to_le_bytes());
        let (_dir, checkpoint) = tensors.open();
        let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
        binder.matrix_rows("w", 4, 64, vec![2..4, 0..2]).unwrap();
        let error = load_all(&binder.finish().unwrap(), &checkpoint).unwrap_err().to_string();
        let expected = format!("tensor `{part}`: value {value_idx} is NaN or infinite");
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn values_that_are_not_finite_are_found_in_every_type() {
    for kind in FLOATS {
        let with = |value: f32| {
            let mut tensors = Tensors::default();
            tensors.add_floats("v", kind, &[3], &[1.0, 60_000.0, value]);
            FiniteFormat::Floats(kind).first_bad(0, tensors.bytes("v"))
        };
        for value in [0.0, -0.0, 1.5, -60_000.0, 6e-8] {
            assert_eq!(with(value), None, "{kind:?} {value}");
        }
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(with(value), Some(2), "{kind:?} {value}");
        }
    }
}

#[test]
fn a_file_cut_after_its_header_was_read_is_an_error() {
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "F32", &[4, 4]);
    let (dir, checkpoint) = tensors.open();
    let spec = spec(Family::Qwen3Moe, 2);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    binder.matrix("w", 4, 4).unwrap();
    let manifest = binder.finish().unwrap();
    let path = dir.file("model.safetensors");
    let len = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 3).unwrap();
    let error = load_all(&manifest, &checkpoint).unwrap_err().to_string();
    assert!(error.contains(&format!("had {len} bytes and has {} now", len - 3)), "{error}");
    assert!(error.contains("after its header was read"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(load_all(&manifest, &checkpoint), Err(Error::Io { action: "open", .. })));
}

#[test]
fn loading_reports_all_bytes_and_can_be_cancelled() {
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "F32", &[4, 4]).add("v", "F16", &[6]);
    let (_dir, checkpoint) = tensors.open();
    let spec = spec(Family::Qwen3Moe, 2);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    binder.matrix("w", 4, 4).unwrap();
    binder.vector("v", 6).unwrap();
    let manifest = binder.finish().unwrap();
    let mut seen = Vec::new();
    let watch = &mut |progress: Progress| {
        assert_eq!(progress.total_bytes, 76);
        seen.push(progress.done_bytes);
        ControlFlow::Continue(())
    };
    load(&manifest, &checkpoint, (None, PageCaching::Kept), watch).unwrap();
    // Two tensors are read concurrently: either may be first.
    assert!(seen == [0, 64, 76] || seen == [0, 12, 76], "{seen:?}");
    for n_calls in 0..3 {
        let mut n_left = n_calls;
        let watch = &mut |_: Progress| {
            n_left -= 1;
            if n_left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        assert!(
            matches!(
                load(&manifest, &checkpoint, (None, PageCaching::Kept), watch),
                Err(Error::Cancelled)
            ),
            "{n_calls}"
        );
    }
}

#[test]
fn errors_about_memory_state_both_sizes() {
    check_room("the weights", 10, Some(10)).unwrap();
    check_room("the weights", 10, None).unwrap();
    let error = check_room("the weights", 10, Some(9)).unwrap_err().to_string();
    assert!(error.starts_with("the weights: needs 10 bytes; 9 bytes are available;"), "{error}");
}

#[test]
fn experts_must_be_stored_alike_and_be_there() {
    let shape = ExpertShape { n_experts: 4, hidden: 64, inner: 32 };
    let bind = |binder: &mut Binder<'_>| binder.experts(LayerIdx(1), "m", shape);
    let mut tensors = Tensors::default();
    for expert_idx in 0..4 {
        let dtype = if expert_idx == 0 { "F16" } else { "BF16" };
        let base = format!("m.experts.{expert_idx}");
        tensors.add(&format!("{base}.gate_proj.weight"), "BF16", &[32, 64]);
        tensors.add(&format!("{base}.up_proj.weight"), dtype, &[32, 64]);
        tensors.add(&format!("{base}.down_proj.weight"), "BF16", &[64, 32]);
    }
    let spec = spec(Family::Qwen3Moe, 2);
    let error = bind_error(&tensors, &spec, bind);
    assert!(error.starts_with("tensor `m.experts.0.up_proj.weight`: is stored as f16"), "{error}");

    let mut fewer = tensors.clone();
    fewer.0.retain(|tensor| tensor.name != "m.experts.2.gate_proj.weight");
    let error = bind_error(&fewer, &spec, bind);
    assert!(error.starts_with("tensor `m.experts.2.gate_proj.weight`: is missing"), "{error}");

    tensors.0.iter_mut().for_each(|tensor| tensor.dtype = "BF16");
    tensors.add("m.experts.4.gate_proj.weight", "BF16", &[32, 64]);
    let error = bind_error(&tensors, &spec, bind);
    let expected = "`m.experts.4.gate_proj.weight`: in `model.safetensors`, of shape [32, 64], is";
    assert!(error.contains(expected), "{error}");

    let error = bind_error(Tensors::default().add("x", "F32", &[1]), &spec, bind);
    assert!(error.starts_with("tensor `m.experts.0.gate_proj.weight`: is missing"), "{error}");
}
