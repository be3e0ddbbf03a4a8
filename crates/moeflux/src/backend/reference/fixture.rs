//! Shared fixture of the reference's unit tests: rows in, one op, rows out.
//!
//! Inputs reach buffers as in every model, through an embedding table: token = row.

use std::sync::Arc;

use moeflux_kernels::{FloatKind, MatrixKind, MatrixLayout};

use super::ReferenceBackend;
use crate::backend::{Backend, SessionStates};
use crate::ids::{MatrixId, Position, StateId, TokenId, VectorId};
use crate::ops::{Batch, Embed, Heads, Op, Plan, Row, RowKind, Segment, StateSpec, Workspace};
use crate::weights::{OwnedMatrix, Weights};

#[derive(Debug, Default)]
pub(super) struct Fixture {
    weights: Arc<Weights>,
    pub(super) workspace: Workspace,
    pub(super) state: StateSpec,
    /// Position of the first row.
    first_position: usize,
    embeds: Vec<Op>,
    n_rows: usize,
}

impl Fixture {
    /// Creates a fixture whose first row is at this position.
    pub(super) fn at(first_position: usize) -> Self {
        Self { first_position, ..Self::default() }
    }

    /// Adds a buffer that holds these rows when the op runs.
    pub(super) fn input<R: AsRef<[f32]>>(&mut self, name: &'static str, rows: &[R]) -> Heads {
        let rows: Vec<&[f32]> = rows.iter().map(AsRef::as_ref).collect();
        let table = self.matrix(&rows);
        let out = self.workspace.buffer(name, rows[0].len());
        self.embeds.push(Op::Embed(Embed { table, out }));
        self.n_rows = rows.len();
        out
    }

    /// Adds a resident matrix.
    pub(super) fn matrix(&mut self, rows: &[&[f32]]) -> MatrixId {
        let kind = MatrixKind::Float(FloatKind::F32);
        let layout = MatrixLayout::new(kind, rows.len(), rows[0].len()).unwrap();
        let mut matrix = OwnedMatrix::zeroed(layout).unwrap();
        let bytes: Vec<u8> = rows.concat().iter().flat_map(|value| value.to_le_bytes()).collect();
        matrix.parts_mut().0.copy_from_slice(&bytes);
        self.weights_mut().push_matrix(matrix)
    }

    /// Adds a resident vector.
    pub(super) fn vector(&mut self, values: &[f32]) -> VectorId {
        self.weights_mut().push_vector(values.to_vec())
    }

    fn weights_mut(&mut self) -> &mut Weights {
        Arc::get_mut(&mut self.weights).expect("no backend lives while weights are added")
    }

    /// Returns the rows of `out` after one step over all rows, in a new session.
    pub(super) fn run(&self, op: Op, out: Heads) -> Vec<Vec<f32>> {
        self.run_all(vec![op], out)
    }

    /// As [`Fixture::run`], with several operations.
    pub(super) fn run_all(&self, ops: Vec<Op>, out: Heads) -> Vec<Vec<f32>> {
        let (mut backend, state) = self.backend();
        self.step_all(&mut backend, state, ops);
        (0..self.n_rows).map(|row_idx| read(&mut backend, out, row_idx)).collect()
    }

    /// Creates the backend, with all weights so far, and a session.
    pub(super) fn backend(&self) -> (ReferenceBackend, StateId) {
        let weights = Arc::clone(&self.weights);
        let mut backend = ReferenceBackend::new(weights, &self.workspace, self.n_rows).unwrap();
        let context = self.first_position + self.n_rows;
        let state = backend.create_state(&self.state, context).unwrap();
        (backend, state)
    }

    /// Embeds the inputs and runs `op` over all rows in one step.
    pub(super) fn step(&self, backend: &mut ReferenceBackend, state: StateId, op: Op) {
        self.step_all(backend, state, vec![op]);
    }

    fn step_all(&self, backend: &mut ReferenceBackend, state: StateId, ops: Vec<Op>) {
        let rows: Vec<Row> = (0..self.n_rows)
            .map(|row_idx| Row {
                token: TokenId(u32::try_from(row_idx).unwrap()),
                position: Position(self.first_position + row_idx),
            })
            .collect();
        let end = self.first_position + self.n_rows;
        backend.reserve_positions(state, &(self.first_position..end)).unwrap();
        let segments = [Segment::new(state, 0..rows.len(), RowKind::Prefill)];
        let batch = Batch { rows: &rows, segments: &segments, outputs: &[] };
        let ops = self.embeds.iter().cloned().chain(ops).collect();
        backend.submit(&Plan::new(ops), &batch).unwrap();
        backend.commit_state(state);
    }
}

/// Returns one row of a view of one head.
pub(super) fn read(backend: &mut ReferenceBackend, out: Heads, row_idx: usize) -> Vec<f32> {
    let mut row = vec![0.0; out.end_col()];
    backend.read_row(out.buffer, row_idx, &mut row).unwrap();
    row[out.first_col..].to_vec()
}

/// Compares with values computed by hand, to six digits.
pub(super) fn assert_close(values: &[f32], expected: &[f64]) {
    assert_eq!(values.len(), expected.len());
    let is_close = |(&value, &expected): (&f32, &f64)| {
        (f64::from(value) - expected).abs() <= 1e-6 * expected.abs().max(1.0)
    };
    assert!(values.iter().zip(expected).all(is_close), "{values:?}, not {expected:?}");
}
