//! Rows that a program writes to a workspace: plans that follow read them, and none before.

use std::sync::Arc;

use moeflux::provider::backend::Backend;
use moeflux::provider::ids::{BufferId, Position};
use moeflux::provider::ops::{
    Add, Batch, Heads, Op, Plan, Row, RowKind, Segment, StateSpec, Workspace,
};
use moeflux::provider::weights::Weights;

use crate::ops::case::token_id;
use crate::ops::{BackendUnderTest, OpSuite, makers};
use crate::random::Rng;

/// Rows of a step.
const N_ROWS: usize = 5;

/// Checks rows of several widths on each backend that adds values.
pub fn check_written_rows<S: OpSuite>() {
    let adds = |backend: &&BackendUnderTest| {
        makers::<S>().any(|maker| maker.op == "add" && (backend.covers)(maker))
    };
    for backend in S::BACKENDS.iter().filter(adds) {
        // Some are no multiples of what a device aligns.
        for n_cols in [1, 12, 13, 64] {
            check(backend, n_cols);
        }
    }
}

fn check(backend: &BackendUnderTest, n_cols: usize) {
    let mut workspace = Workspace::default();
    let written = workspace.buffer("written", n_cols);
    let outs = ["first", "second"].map(|name| workspace.buffer(name, n_cols));
    let weights = Arc::new(Weights::default());
    let sizes = (&workspace, N_ROWS);
    let mut device = (backend.make)(weights, sizes, moeflux_kernels::best()).expect("a workspace");
    let state = device.states_mut().create_state(&StateSpec::default(), 1).expect("a small state");
    let mut rng = Rng::new(n_cols as u64);
    // Fewer rows come after more.
    for n_rows in [N_ROWS, 2] {
        let row = |it| Row { token: token_id(it), position: Position(it) };
        let rows: Vec<Row> = (0..n_rows).map(row).collect();
        let segments = [Segment::new(state, 0..n_rows, RowKind::Prefill)];
        let batch = Batch { rows: &rows, segments: &segments, outputs: &[] };
        let values = outs.map(|_| rng.units(n_rows * n_cols));
        for (values, out) in values.iter().zip(outs) {
            device.write_rows(written.buffer, values).expect("rows are written");
            device.submit(&doubled(written, out), &batch).expect("values are added");
        }
        for (values, out) in values.iter().zip(outs) {
            for (row_idx, values) in values.chunks(n_cols).enumerate() {
                let expected: Vec<f32> = values.iter().map(|value| value + value).collect();
                let found = read(&mut *device, out.buffer, (row_idx, n_cols));
                assert_eq!(found, expected, "{}: row {row_idx} of {n_cols}", backend.name);
            }
        }
    }
}

fn doubled(x: Heads, out: Heads) -> Plan {
    Plan::new(vec![Op::Add(Add { x, y: x, out })])
}

fn read(device: &mut dyn Backend, buffer: BufferId, (row_idx, n_cols): (usize, usize)) -> Vec<f32> {
    let mut row = vec![0.0; n_cols];
    device.read_row(buffer, row_idx, &mut row).expect("a row is read");
    row
}
