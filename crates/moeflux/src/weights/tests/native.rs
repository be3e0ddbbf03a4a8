//! Binding and loading of published formats, in every variant.

use std::ops::ControlFlow;

use moeflux_kernels::{BlockKind, Fp8Spread, MatrixKind, decode_row};

use crate::error::{Error, Result};
use crate::ids::{ExpertIdx, LayerIdx, MatrixId};
use crate::spec::{Family, ModelSpec, NativeFormat, QuantParams, Quantisation};
use crate::weights::tests_support::{Tensors, spec};
use crate::weights::*;

const MXFP4: MatrixKind = MatrixKind::Block(BlockKind::MXFP4_APART);

/// Binds and loads `w`; returns its kind and decoded values.
fn loaded(tensors: &Tensors, (n_rows, n_cols): (usize, usize)) -> Result<(MatrixKind, Vec<f32>)> {
    let (_dir, checkpoint) = tensors.open();
    let spec = spec(Family::Qwen3Moe, 2);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    let id = binder.matrix("w", n_rows, n_cols)?;
    let manifest = binder.finish()?;
    let progress = &mut |_| ControlFlow::Continue(());
    let weights = load(&manifest, &checkpoint, (None, PageCaching::Kept), progress)?;
    let matrix = weights.matrix(id);
    let mut values = vec![0.0; n_rows * n_cols];
    for (row_idx, row) in values.chunks_mut(n_cols).enumerate() {
        decode_row(&matrix, row_idx, row);
    }
    Ok((matrix.layout().kind, values))
}

fn refused(tensors: &Tensors, shape: (usize, usize), expected: &str) {
    let error = loaded(tensors, shape).unwrap_err().to_string();
    assert!(error.contains(expected) && !error.contains('\n'), "{error}");
}

/// Names and types of codes and scales, and the number of codes in one value of the first tensor.
const MXFP4_SPELLINGS: [([&str; 2], [&str; 2], usize); 3] = [
    (["w.weight_packed", "w.weight_scale"], ["U8", "U8"], 2),
    (["w.weight", "w.scale"], ["I8", "F8_E8M0"], 2),
    (["w.weight", "w.scales"], ["U32", "U8"], 8),
];

#[test]
fn mxfp4_is_the_same_in_every_spelling() {
    let codes: Vec<u8> = (0_u8..144).map(|i| i.wrapping_mul(37)).collect();
    let scales = [126_u8, 127, 0, 1, 254, 128, 120, 3, 130];
    let mut all = Vec::new();
    for (names, types, n_packed) in MXFP4_SPELLINGS {
        let mut tensors = Tensors::default();
        tensors.add_bytes(names[0], types[0], &[3, 96 / n_packed], codes.clone());
        tensors.add_bytes(names[1], types[1], &[3, 3], scales.to_vec());
        let (kind, values) = loaded(&tensors, (3, 96)).unwrap();
        assert_eq!(kind, MXFP4, "{names:?}");
        all.push(values.iter().map(|it| it.to_bits()).collect::<Vec<_>>());

        // The exponent that encodes NaN.
        tensors.bytes_mut(names[1])[7] = 255;
        refused(&tensors, (3, 96), &format!("`{}`: value 7 is NaN or infinite", names[1]));
        tensors.bytes_mut(names[1])[7] = 254;
        refused(&tensors, (3, 64), "has shape");
    }
    assert!(all.iter().all(|it| it == &all[0]));
    // The halves of the first byte are codes 0 and 0, those of the second 5 and 2: 3 and 1.
    let first = [0.0_f32, 0.0, 3.0 / 2.0, 1.0 / 2.0].map(f32::to_bits);
    assert_eq!(all[0][..4], first);
}

#[test]
fn other_4_bit_floats_are_refused_by_their_tensors() {
    // NVFP4 of compressed-tensors and of MLX, and MXFP8 of MLX.
    for (names, types, shapes) in [
        (["w.weight_packed", "w.weight_scale"], ["U8", "F8_E4M3"], [[4, 32], [4, 4]]),
        (["w.weight", "w.scales"], ["U32", "U8"], [[4, 8], [4, 4]]),
    ] {
        let mut tensors = Tensors::default();
        for ((name, dtype), shape) in names.iter().zip(types).zip(shapes) {
            tensors.add(name, dtype, &shape);
        }
        refused(&tensors, (4, 64), "MXFP4");
    }
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "U32", &[4, 16]).add("w.scales", "U8", &[4, 2]);
    refused(&tensors, (4, 64), "has shape [4, 16]");
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "I8", &[4, 64]);
    refused(&tensors, (4, 64), "has values of type I8 without a `scale`");
}

/// Creates INT4 or INT8 as compressed-tensors packs it: each code is its value plus the middle
/// code.
fn packed_ints(bits: usize, scale: (&'static str, usize)) -> Tensors {
    let mut tensors = Tensors::default();
    tensors.add("w.weight_packed", "I32", &[3, 64 * bits / 32]);
    tensors.add("w.weight_scale", scale.0, &[3, 2]);
    tensors.add_bytes("w.weight_shape", "I64", &[2], [3_i64, 64].map(i64::to_le_bytes).concat());
    tensors
}

fn ints_spec(bits: u8, group: u8) -> ModelSpec {
    let native = Some(NativeFormat::Ints(QuantParams { bits, group }));
    let quantisation = Quantisation { native, ..Quantisation::default() };
    ModelSpec { quantisation, ..spec(Family::KimiK2, 2) }
}

fn ints_error(tensors: &Tensors, spec: &ModelSpec) -> String {
    let (_dir, checkpoint) = tensors.open();
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), spec);
    let bound = binder.matrix("w", 3, 64).and_then(|_| binder.finish());
    let error = bound.unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn integers_are_codes_whose_middle_one_is_zero() {
    for (bits, scale) in [(4, ("BF16", 2)), (8, ("F16", 2)), (4, ("F32", 4))] {
        let tensors = packed_ints(bits, scale);
        let (_dir, checkpoint) = tensors.open();
        let bits = u8::try_from(bits).unwrap();
        let spec = ints_spec(bits, 32);
        let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
        let id = binder.matrix("w", 3, 64).unwrap();
        let manifest = binder.finish().unwrap();
        let progress = &mut |_| ControlFlow::Continue(());
        let weights = load(&manifest, &checkpoint, (None, PageCaching::Kept), progress).unwrap();
        let matrix = weights.matrix(id);
        assert_eq!(matrix.layout().kind.to_string(), format!("int{bits}g32"));
        assert_eq!(matrix.codes(), tensors.bytes("w.weight_packed"));
        assert_eq!(matrix.scales(), tensors.bytes("w.weight_scale"));
        let mut row = vec![0.0; 64];
        decode_row(&matrix, 1, &mut row);
        let codes = &tensors.bytes("w.weight_packed")[8 * usize::from(bits)..];
        let first =
            if bits == 4 { f32::from(codes[0] & 15) - 8.0 } else { f32::from(codes[0]) - 128.0 };
        let scale = row.iter().map(|it| it.abs()).fold(0.0, f32::max);
        assert!(scale > 0.0 && (first == 0.0) == (row[0] == 0.0), "{row:?}");
    }
}

#[test]
fn integers_of_other_kinds_are_refused_with_a_way_out() {
    let spec = ints_spec(4, 32);
    for (part, dtype) in [("weight_zero_point", "I32"), ("weight_g_idx", "I32")] {
        let mut tensors = packed_ints(4, ("BF16", 2));
        tensors.add(&format!("w.{part}"), dtype, &[3, 2]);
        let error = ints_error(&tensors, &spec);
        assert!(error.contains(part) && error.contains("use the published bf16 files"), "{error}");
    }
    let tensors = packed_ints(4, ("BF16", 2));
    let spec_without = tests_support::spec(Family::KimiK2, 2);
    for (spec, expected) in [
        (ints_spec(8, 32), "has packed shape [3, 8], but 8 bits of [3, 64] make [3, 16]"),
        (ints_spec(4, 64), "has shape [3, 2], but groups of 64, as config.json says, make [3, 1]"),
        (spec_without, "does not describe its integers"),
    ] {
        let error = ints_error(&tensors, &spec);
        assert!(error.contains(expected), "{error}");
    }
    let mut tensors = packed_ints(4, ("U8", 1));
    let error = ints_error(&tensors, &spec);
    assert!(error.contains("`w.weight_scale`: has values of type U8"), "{error}");
    tensors = packed_ints(4, ("BF16", 2));
    tensors.0[2].shape = vec![1, 2];
    let error = ints_error(&tensors, &spec);
    assert!(error.contains("`w.weight_shape`: is I64 [1, 2]"), "{error}");
    tensors = packed_ints(4, ("BF16", 2));
    tensors.bytes_mut("w.weight_scale")[6..8].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    let (_dir, checkpoint) = tensors.open();
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    binder.matrix("w", 3, 64).unwrap();
    let progress = &mut |_| ControlFlow::Continue(());
    let manifest = binder.finish().unwrap();
    let error = load(&manifest, &checkpoint, (None, PageCaching::Kept), progress).unwrap_err();
    assert!(error.to_string().contains("`w.weight_scale`: value 3 is NaN"), "{error}");
}

/// Scales of FP8: their name, type and shape; the spread in the config; the name of the kind.
#[test]
fn fp8_scales_follow_the_config() {
    let block = |n_rows, n_cols| Fp8Spread::Block { n_rows, n_cols };
    for (part, dtype, shape, spread, name) in [
        ("weight_scale_inv", "F32", &[2, 1][..], block(128, 128), "fp8"),
        ("weight_scale_inv", "BF16", &[5, 4], block(32, 32), "fp8-32x32-bf16"),
        ("scale", "F8_E8M0", &[2, 1], block(128, 128), "fp8-e8m0"),
        ("scale", "F8_E8M0", &[5, 2], block(32, 64), "fp8-32x64-e8m0"),
        ("weight_scale", "F32", &[130, 1], Fp8Spread::Row, "fp8-row"),
        ("weight_scale", "BF16", &[130], Fp8Spread::Row, "fp8-row-bf16"),
        ("weight_scale", "F32", &[1], Fp8Spread::Matrix, "fp8-matrix"),
        ("weight_scale", "F16", &[], Fp8Spread::Matrix, "fp8-matrix-f16"),
    ] {
        let mut tensors = Tensors::default();
        tensors.add("w.weight", "F8_E4M3", &[130, 100]);
        let part = format!("w.{part}");
        tensors.add(&part, dtype, shape);
        let native = Some(NativeFormat::Fp8(spread));
        let quantisation = Quantisation { native, ..Quantisation::default() };
        let spec = ModelSpec { quantisation, ..spec(Family::DeepseekV3, 2) };
        let bind = |tensors: &Tensors, n_rows: usize| {
            let (dir, checkpoint) = tensors.open();
            let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
            binder.matrix("w", n_rows, 100)?;
            let manifest = binder.finish()?;
            let progress = &mut |_| ControlFlow::Continue(());
            let weights = load(&manifest, &checkpoint, (None, PageCaching::Kept), progress)?;
            drop(dir);
            Ok::<_, Error>((manifest.matrices[0].layout.kind, weights))
        };
        let (kind, weights) = bind(&tensors, 130).unwrap();
        assert_eq!(kind.to_string(), name);
        let matrix = weights.matrix(MatrixId(0));
        assert_eq!(matrix.scales(), tensors.bytes(&part), "{name}");
        tensors.bytes_mut(&part).fill(0xff);
        let error = bind(&tensors, 130).unwrap_err().to_string();
        assert!(error.contains(&format!("`{part}`: value 0 is NaN")), "{error}");
        tensors.0[1].shape = vec![7, 7];
        tensors.0[1].bytes.resize(49 * if dtype == "F32" { 4 } else { 2 }, 0);
        if dtype == "F8_E8M0" {
            tensors.0[1].bytes.truncate(49);
        }
        let error = bind(&tensors, 130).unwrap_err().to_string();
        assert!(error.contains("has shape [7, 7], but"), "{error}");
    }
    let mut tensors = Tensors::default();
    tensors.add("w.weight", "F8_E4M3", &[4, 4]).add("w.weight_scale", "U8", &[1, 1]);
    refused(&tensors, (4, 4), "FP8 scales are F32, F16, BF16 or F8_E8M0");
}

/// Creates experts as gpt-oss stores them: `m.experts.gate_up_proj_blocks` and so on.
fn take_turns(n_experts: usize, hidden: usize, inner: usize) -> Tensors {
    let mut tensors = Tensors::default();
    for (name, n_rows, n_cols) in
        [("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)]
    {
        let base = format!("m.experts.{name}");
        tensors.add(&format!("{base}_blocks"), "U8", &[n_experts, n_rows, n_cols / 32, 16]);
        tensors.add(&format!("{base}_scales"), "U8", &[n_experts, n_rows, n_cols / 32]);
    }
    tensors
}

#[test]
fn rows_of_gate_and_up_take_turns() {
    let shape = ExpertShape { n_experts: 3, hidden: 96, inner: 32 };
    let tensors = take_turns(3, 96, 32);
    let (_dir, checkpoint) = tensors.open();
    let spec = spec(Family::Qwen3Moe, 2);
    let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    binder.experts(LayerIdx(0), "m", shape).unwrap();
    let manifest = binder.finish().unwrap();
    let bank = &manifest.banks[0];
    let names: Vec<_> = bank.parts.iter().map(|part| part.name.as_str()).collect();
    let expected =
        ["gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks", "down_proj_scales"];
    assert_eq!(names, expected, "one read each");
    let n_bytes: usize = tensors.0.iter().map(|tensor| tensor.bytes.len()).sum();
    assert_eq!(bank.stored_bytes(), n_bytes as u64);

    let file = std::fs::read(&checkpoint.files[0].path).unwrap();
    let mut record = vec![0; bank.record_bytes()];
    for part in &bank.parts {
        let extent = part.extent(ExpertIdx(1));
        let bytes = &file[usize::try_from(extent.offset_bytes).unwrap()..][..part.len_bytes];
        record[part.record_at..][..part.len_bytes].copy_from_slice(bytes);
        let tensor = tensors.bytes(&format!("m.experts.{}", part.name));
        assert_eq!(bytes, &tensor[part.len_bytes..][..part.len_bytes], "{}", part.name);
    }
    let view = bank.layout.view(&record);
    let blocks = &tensors.bytes("m.experts.gate_up_proj_blocks")[64 * 48..];
    let scales = &tensors.bytes("m.experts.gate_up_proj_scales")[64 * 3..];
    for row in 0..32 {
        for (matrix, row_of_both) in [(view.gate, 2 * row), (view.up, 2 * row + 1)] {
            assert_eq!(matrix.layout().n_rows, 32);
            assert_eq!(matrix.row(row), &blocks[row_of_both * 48..][..48], "row {row}");
            let scale = &matrix.scales()[2 * row * 3..][..3];
            assert_eq!(scale, &scales[row_of_both * 3..][..3], "row {row}");
        }
    }
    assert_eq!(view.down.codes().len(), 96 * 16);

    // The error about a damaged scale names its tensor.
    let part = &bank.parts[1];
    let mut bytes = record[part.record_at..][..part.len_bytes].to_vec();
    bank.check_finite(part, (ExpertIdx(1), 0), &bytes).unwrap();
    bytes[5] = 255;
    let error = bank.check_finite(part, (ExpertIdx(1), 0), &bytes).unwrap_err().to_string();
    let expected = format!("`m.experts.gate_up_proj_scales`: value {}", 64 * 3 + 5);
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn experts_that_take_turns_must_have_the_shapes_of_the_config() {
    let spec = spec(Family::Qwen3Moe, 2);
    for (sizes, expected) in [
        ((4, 96, 32), "requires [3, 64, 3, 16]"),
        ((3, 64, 32), "requires [3, 64, 3, 16]"),
        ((3, 96, 64), "requires [3, 64, 3, 16]"),
    ] {
        let tensors = take_turns(sizes.0, sizes.1, sizes.2);
        let (_dir, checkpoint) = tensors.open();
        let mut binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
        let shape = ExpertShape { n_experts: 3, hidden: 96, inner: 32 };
        let error = binder.experts(LayerIdx(0), "m", shape).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_record_whose_rows_take_turns_can_move() {
    let layout = |n_rows, n_cols| moeflux_kernels::MatrixLayout { kind: MXFP4, n_rows, n_cols };
    let record = ExpertLayout::interleaved(layout(64, 96), layout(96, 32));
    let parts: Vec<_> = record.parts().collect();
    assert_eq!(parts.len(), 4);
    let starts = [7000, 1000, 0, 5000];
    let moved = record.moved(&mut starts.into_iter());
    let places: Vec<_> = moved.parts().collect();
    for ((place, part), start) in places.iter().zip(parts).zip(starts) {
        assert_eq!((place.start, place.len()), (start, part.len()));
    }
    assert_eq!((moved.gate.codes_at, moved.up.codes_at), (7000, 7000));
    assert_eq!((moved.gate.rows, moved.up.rows), (RowStride::EVEN, RowStride::ODD));
    assert_eq!(moved.stored_bytes(), record.stored_bytes());
}
