//! Affine codes without biases: the same bits as with the biases that their scales imply stored.

use half::{bf16, f16};
use moeflux_testing::random::Rng;

use super::strided::same_matrices;
use super::{EncodedMatrix, float_at, push, symmetric_kinds};
use crate::{Affine, Biases, FloatKind, Matrix, MatrixKind, MatrixLayout};

/// Returns the same matrix with its biases stored.
fn with_biases(stored: &EncodedMatrix, affine: Affine) -> EncodedMatrix {
    let kind = MatrixKind::Affine(Affine { biases: Biases::Stored, ..affine });
    let layout = MatrixLayout { kind, ..stored.layout };
    let middle = f32::from(1_u16 << (affine.bits - 1));
    let mut biases = vec![0];
    for place in 0..layout.scale_bytes() / affine.scale.bytes() {
        let bias = -middle * float_at(&stored.scales[1..], affine.scale, place);
        push(&mut biases, affine.scale, bias);
    }
    EncodedMatrix { layout, codes: stored.codes.clone(), scales: stored.scales.clone(), biases }
}

#[test]
fn implied_biases_are_those_that_could_be_stored() {
    let mut rng = Rng::new(50);
    for affine in symmetric_kinds() {
        let group = usize::from(affine.group);
        let sizes = [(1, 1, 1), (5, 3, 1), (37, 5, 1), (33, 9, 3), (17, 11, 19)];
        for (n_rows, n_groups, n_picks) in sizes {
            let n_cols = n_groups * group;
            let kind = MatrixKind::Affine(affine);
            let mut stored = EncodedMatrix::random(kind, n_rows, n_cols, &mut rng);
            extreme_scales(&mut stored, affine.scale);
            assert_eq!(stored.layout.bias_bytes(), 0);
            let whole = with_biases(&stored, affine);
            let (implied, whole) = (matrix(&stored), whole.matrix());
            let x: Vec<_> = (0..n_picks).map(|_| rng.units(n_cols)).collect();
            let what = format!("{kind} {:?} {n_rows} x {n_cols}, {n_picks} rows", affine.scale);
            same_matrices(implied, whole, &x, &what);
        }
    }
}

fn matrix(stored: &EncodedMatrix) -> Matrix<'_> {
    Matrix::new(stored.layout, &stored.codes[1..], &stored.scales[1..], &[])
}

/// Sets zeros of either sign, the smallest number, and one whose bias is nearly the largest.
fn extreme_scales(stored: &mut EncodedMatrix, kind: FloatKind) {
    let large = 500.0;
    let edges: [Vec<u8>; 4] = match kind {
        FloatKind::F32 => {
            [0.0_f32, -0.0, f32::from_bits(1), large].map(|it| it.to_le_bytes().into())
        }
        FloatKind::F16 => [f16::ZERO, f16::NEG_ZERO, f16::from_bits(1), f16::from_f32(large)]
            .map(|it| it.to_le_bytes().into()),
        FloatKind::Bf16 => [bf16::ZERO, bf16::NEG_ZERO, bf16::from_bits(1), bf16::from_f32(large)]
            .map(|it| it.to_le_bytes().into()),
    };
    let scales = stored.scales[1..].chunks_exact_mut(kind.bytes()).step_by(3);
    scales.zip(edges.iter().cycle()).for_each(|(it, edge)| it.copy_from_slice(edge));
}

#[test]
fn symmetric_kinds_have_names_of_their_own() {
    let kind = MatrixKind::Affine(Affine::symmetric(4, 32, FloatKind::Bf16));
    assert_eq!(kind.to_string(), "int4g32");
}
