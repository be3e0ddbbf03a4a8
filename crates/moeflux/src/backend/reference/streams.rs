//! Functions of values, and sums over residual streams.
//!
//! **Invariant:** all streams are read before one is written, so outputs may be inputs.

use moeflux_kernels::{ScaledFunction, ValueFunction};

use super::{ReferenceBackend, dot, sigmoid, silu};
use crate::ops::{Activate, HeadDot, Heads, StreamBase, StreamRead, StreamWeights, StreamWrite};

impl ReferenceBackend {
    pub(super) fn activate(&mut self, op: &Activate, n_rows: usize) {
        for row_idx in 0..n_rows {
            for head_idx in 0..op.x.n_heads {
                let x = self.head(&op.x, row_idx, head_idx);
                let out: Vec<f64> = x.into_iter().map(|x| value_of(&op.function, x)).collect();
                self.set_head(&op.out, row_idx, head_idx, &out);
            }
        }
    }

    pub(super) fn head_dot(&mut self, op: &HeadDot, n_rows: usize) {
        assert_eq!(op.x.n_heads, op.out.head_dim, "a value per head");
        for row_idx in 0..n_rows {
            let product = |head_idx| {
                let [x, y] = [&op.x, &op.y].map(|heads| self.head(heads, row_idx, head_idx));
                dot(&x, &y) * f64::from(op.factor)
            };
            let out: Vec<f64> = (0..op.x.n_heads).map(product).collect();
            self.set_head(&op.out, row_idx, 0, &out);
        }
    }

    pub(super) fn stream_read(&mut self, op: &StreamRead, n_rows: usize) {
        for row_idx in 0..n_rows {
            let mut sum = vec![0.0; op.out.head_dim];
            for (stream_idx, stream) in self.streams(&op.streams, row_idx).iter().enumerate() {
                let weights = match &op.weights {
                    StreamWeights::PerValue(weights) => self.head(weights, row_idx, stream_idx),
                    StreamWeights::PerStream(weights) => {
                        vec![self.head(weights, row_idx, 0)[stream_idx]; stream.len()]
                    }
                };
                for ((sum, weight), value) in sum.iter_mut().zip(&weights).zip(stream) {
                    *sum += weight * value;
                }
            }
            self.set_head(&op.out, row_idx, 0, &sum);
        }
    }

    pub(super) fn stream_write(&mut self, op: &StreamWrite, n_rows: usize) {
        for row_idx in 0..n_rows {
            let mut streams = match &op.base {
                StreamBase::Nothing => vec![vec![0.0; op.out.head_dim]; op.out.n_heads],
                StreamBase::Streams(streams) => self.streams(streams, row_idx),
                StreamBase::Mixed { streams, mix } => {
                    mixed(&self.streams(streams, row_idx), &self.streams(mix, row_idx))
                }
            };
            let x = self.head(&op.x, row_idx, 0);
            let beta = self.head(&op.beta, row_idx, 0);
            assert_eq!(beta.len(), streams.len(), "a factor per stream");
            for (stream_idx, (stream, beta)) in streams.iter_mut().zip(&beta).enumerate() {
                stream.iter_mut().zip(&x).for_each(|(value, x)| *value += beta * x);
                self.set_head(&op.out, row_idx, stream_idx, stream);
            }
        }
    }

    /// Returns all heads of a row.
    fn streams(&self, heads: &Heads, row_idx: usize) -> Vec<Vec<f64>> {
        (0..heads.n_heads).map(|head_idx| self.head(heads, row_idx, head_idx)).collect()
    }
}

/// Returns the sums of the streams, each with its column of `mix` as weights.
fn mixed(streams: &[Vec<f64>], mix: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut sums = vec![vec![0.0; streams[0].len()]; streams.len()];
    for (stream, weights) in streams.iter().zip(mix) {
        for (sum, weight) in sums.iter_mut().zip(weights) {
            sum.iter_mut().zip(stream).for_each(|(sum, value)| *sum += weight * value);
        }
    }
    sums
}

fn value_of(op: &ScaledFunction, x: f64) -> f64 {
    let x = x * f64::from(op.before);
    let value = match op.function {
        ValueFunction::Silu => silu(x),
        ValueFunction::Sigmoid => sigmoid(x),
        ValueFunction::SignedRoot { floor } => {
            // `max` would lose NaN, and the sign of 0 is 0 here.
            let size = if x.abs() < f64::from(floor) { f64::from(floor) } else { x.abs() };
            if x < 0.0 {
                -size.sqrt()
            } else if x > 0.0 {
                size.sqrt()
            } else {
                x
            }
        }
    };
    value * f64::from(op.after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::reference::fixture::{Fixture, assert_close};
    use crate::ops::Op;

    #[test]
    fn functions_at_hand_checked_points() {
        let mut fixture = Fixture::default();
        let x = fixture.input("x", &[&[4.0, -4.0, 0.0, 0.4]]);
        let run = |function| {
            let function = ScaledFunction { function, before: 0.25, after: 2.0 };
            fixture.run(Op::Activate(Activate { x, function, out: x }), x).remove(0)
        };
        assert_close(&run(ValueFunction::Silu), &[1.462_117, -0.537_883, 0.0, 0.104_996]);
        assert_close(&run(ValueFunction::Sigmoid), &[1.462_117, 0.537_883, 1.0, 1.049_958]);
        // 0.1 lies below the floor, whose root is 0.5.
        let root = ValueFunction::SignedRoot { floor: 0.25 };
        assert_close(&run(root), &[2.0, -2.0, 0.0, 1.0]);
    }

    #[test]
    fn dots_of_heads_are_one_row() {
        let mut fixture = Fixture::default();
        let x = fixture.input("x", &[&[1.0, 2.0, 3.0, 4.0]]).split(2);
        let y = fixture.input("y", &[&[10.0, 1.0, -1.0, 1.0]]).split(2);
        let out = fixture.workspace.buffer("out", 2);
        let rows = fixture.run(Op::HeadDot(HeadDot { x, y, factor: 0.5, out }), out);
        assert_eq!(rows, [[6.0, 0.5]]);
    }

    #[test]
    fn streams_are_weighed_by_value_or_whole() {
        let mut fixture = Fixture::default();
        let streams = fixture.input("streams", &[&[1.0, 2.0, 3.0, 4.0]]).split(2);
        let each = fixture.input("each", &[&[1.0, 0.5, 2.0, 0.25]]).split(2);
        let whole = fixture.input("whole", &[&[10.0, -1.0]]);
        let out = fixture.workspace.buffer("out", 2);
        let run = |weights| {
            fixture.run(Op::StreamRead(StreamRead { streams, weights, out }), out).remove(0)
        };
        assert_eq!(run(StreamWeights::PerValue(each)), [7.0, 2.0]);
        assert_eq!(run(StreamWeights::PerStream(whole)), [7.0, 16.0]);
    }

    #[test]
    fn an_output_goes_to_every_stream() {
        let mut fixture = Fixture::default();
        let streams = fixture.input("streams", &[&[1.0, 2.0, 3.0, 4.0]]).split(2);
        // Stream 0 goes to stream 1 only, stream 1 to both: the matrix is not symmetric.
        let mix = fixture.input("mix", &[&[0.0, 1.0, 10.0, 100.0]]).split(2);
        let beta = fixture.input("beta", &[&[1.0, -2.0]]);
        let x = fixture.input("x", &[&[0.5, 1.0]]);
        let run = |base| {
            let op = StreamWrite { base, beta, x, out: streams };
            fixture.run(Op::StreamWrite(op), streams).remove(0)
        };
        assert_eq!(run(StreamBase::Nothing), [0.5, 1.0, -1.0, -2.0]);
        assert_eq!(run(StreamBase::Streams(streams)), [1.5, 3.0, 2.0, 2.0]);
        let mixed = run(StreamBase::Mixed { streams, mix });
        assert_eq!(mixed, [30.5, 41.0, 300.0, 400.0]);
    }
}
