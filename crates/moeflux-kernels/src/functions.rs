//! Functions and products of values, in place.
//!
//! **Invariant:** each value depends on those at its own place alone, by operations that round
//! once; NaN stays NaN.

use crate::lanes::Simd;
use crate::lanes::gates::{sigmoid, silu};

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueFunction {
    /// `x * sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `sign(x) * sqrt(max(|x|, floor))`, and 0 for 0.
    SignedRoot {
        /// Minimum under the root.
        floor: f32,
    },
}

/// `x = after * f(before * x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaledFunction {
    /// The function `f`.
    pub function: ValueFunction,
    /// Factor of its input.
    pub before: f32,
    /// Factor of its result.
    pub after: f32,
}

impl ScaledFunction {
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(self, simd: S, values: &mut [f32]) {
        let Self { function, before, after } = self;
        match function {
            ValueFunction::Silu => each(values, |x| after * silu(simd, before * x)),
            ValueFunction::Sigmoid => each(values, |x| after * sigmoid(simd, before * x)),
            ValueFunction::SignedRoot { floor } => {
                each(values, |x| after * signed_root(before * x, floor));
            }
        }
    }
}

/// `x = fma(first, second, x)`, value by value.
#[derive(Clone, Copy, Debug)]
pub struct AddedProducts<'a> {
    /// One per value.
    pub first: &'a [f32],
    /// One per value.
    pub second: &'a [f32],
}

impl AddedProducts<'_> {
    pub(crate) fn check(&self, n: usize) {
        assert_eq!((self.first.len(), self.second.len()), (n, n), "factors of the products");
    }

    #[inline(always)]
    pub(crate) fn apply<S: Simd>(self, simd: S, values: &mut [f32]) {
        for ((value, &first), &second) in values.iter_mut().zip(self.first).zip(self.second) {
            *value = simd.fma1(first, second, *value);
        }
    }
}

#[inline(always)]
fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    for value in values {
        *value = f(*value);
    }
}

#[inline(always)]
fn signed_root(x: f32, floor: f32) -> f32 {
    let size = x.abs();
    let root = if size < floor { floor } else { size }.sqrt();
    let positive = if x > 0.0 { root } else { x };
    if x < 0.0 { -root } else { positive }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::random::Rng;

    use super::*;
    use crate::lanes::fused::FusedMultiplyAdd as _;
    use crate::tests::{same_bits, scalar};
    use crate::{RowOp, available};

    const LENGTHS: [usize; 8] = [1, 7, 16, 17, 64, 65, 200, 513];

    fn check(op: &RowOp<'_>, values: &[f32], expected: &[f32]) {
        for table in available() {
            let mut out = values.to_vec();
            table.apply(op, &mut out);
            same_bits(&out, expected, &format!("{}, {} values", table.name(), values.len()));
        }
    }

    #[test]
    fn functions_are_those_of_the_gates_between_two_factors() {
        let mut rng = Rng::new(30);
        for n in LENGTHS {
            let x = rng.units(n);
            let one = vec![1.0; n];
            let scaled: Vec<f32> = x.iter().map(|x| 0.25 * x).collect();
            let gates = [
                (ValueFunction::Silu, RowOp::SwiGlu { up: &one, limit: None }),
                (ValueFunction::Sigmoid, RowOp::Sigmoid),
            ];
            for (function, gate) in gates {
                let mut stated = scaled.clone();
                scalar().apply(&gate, &mut stated);
                stated.iter_mut().for_each(|value| *value *= 2.0);
                let op = ScaledFunction { function, before: 0.25, after: 2.0 };
                check(&RowOp::Function(op), &x, &stated);
            }
        }
    }

    #[test]
    fn a_signed_root_has_the_sign_of_its_input() {
        let function = ValueFunction::SignedRoot { floor: 0.25 };
        let op = RowOp::Function(ScaledFunction { function, before: 0.5, after: 3.0 });
        let x = [8.0, -8.0, 0.1, -0.1, 0.0, f32::INFINITY];
        check(&op, &x, &[6.0, -6.0, 1.5, -1.5, 0.0, f32::INFINITY]);
        let mut broken = [f32::NAN];
        scalar().apply(&op, &mut broken);
        assert!(broken[0].is_nan(), "{broken:?}");
    }

    #[test]
    fn products_are_added_with_one_rounding() {
        let mut rng = Rng::new(31);
        for n in LENGTHS {
            let [x, first, second] = [(); 3].map(|()| rng.units(n));
            let stated = (0..n).map(|i| first[i].fused(second[i], x[i])).collect::<Vec<_>>();
            let op = AddedProducts { first: &first, second: &second };
            check(&RowOp::AddProducts(op), &x, &stated);
        }
    }
}
