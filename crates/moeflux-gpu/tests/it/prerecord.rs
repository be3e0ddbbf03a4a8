//! A backend that records an answer's next step ahead of time, and then gets another request.

use moeflux::provider::backend::Backend as _;
use moeflux::provider::backend::SessionStates;
use moeflux::provider::ids::{Position, StateId, TokenId};
use moeflux::provider::ops::{
    Add, Batch, Embed, Heads, Op, Plan, Row, RowKind, Segment, StateSpec, Workspace,
};
use moeflux::provider::weights::{OwnedMatrix, Weights};
use moeflux_gpu::backend::GpuBackend;
use moeflux_gpu::config::GpuConfig;
use moeflux_kernels::{FloatKind, MatrixKind, MatrixLayout};
use moeflux_testing::needs_gpu;

use crate::support::gpu;

const N_TOKENS: usize = 8;
const N_COLS: usize = 4;

/// Token `t` is a row of `t`; plans that double it, and double that twice.
struct Doubling {
    backend: GpuBackend,
    state: StateId,
    plans: [Plan; 3],
    x: Heads,
}

impl Doubling {
    fn new() -> Self {
        let (mut weights, mut workspace) = (Weights::default(), Workspace::default());
        let kind = MatrixKind::Float(FloatKind::F32);
        let layout = MatrixLayout { kind, n_rows: N_TOKENS, n_cols: N_COLS };
        let mut table = OwnedMatrix::zeroed(layout).unwrap();
        for (at, value) in table.parts_mut().0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *value = f32::from(u8::try_from(at / N_COLS).unwrap()).to_le_bytes();
        }
        let table = weights.push_matrix(table);
        let x = workspace.buffer("x", N_COLS);
        let double = || Op::Add(Add { x, y: x, out: x });
        let embed = Op::Embed(Embed { table, out: x });
        let plans = [vec![embed], vec![double()], vec![double(), double()]].map(Plan::new);
        let config = GpuConfig::default();
        let mut backend = GpuBackend::new(gpu(), &weights, &workspace, 1, config).unwrap();
        let state = backend.create_state(&StateSpec { layers: Vec::new() }, 16).unwrap();
        Self { backend, state, plans, x }
    }

    /// Asks for the first few plans of a step.
    fn ask(&mut self, n_plans: usize, (token, position): (u32, usize)) {
        for plan_idx in 0..n_plans {
            self.ask_for(plan_idx, (token, position));
        }
    }

    fn ask_for(&mut self, plan_idx: usize, (token, position): (u32, usize)) {
        if plan_idx == 0 && position > 0 {
            self.backend.commit_state(self.state);
        }
        let rows = [Row { token: TokenId(token), position: Position(position) }];
        let segments = [Segment::new(self.state, 0..1, RowKind::Decode)];
        let batch = Batch { rows: &rows, segments: &segments, outputs: &[0] };
        self.backend.submit(&self.plans[plan_idx], &batch).unwrap();
    }

    /// Reads the row and compares it.
    fn finds(&mut self, expected: f32, what: &str) {
        let mut row = [f32::NAN; N_COLS];
        self.backend.read_row(self.x.buffer, 0, &mut row).unwrap();
        assert!(row.iter().all(|it| it.total_cmp(&expected).is_eq()), "{what}: {row:?}");
    }
}

#[test]
fn steps_of_an_answer_follow_each_other() {
    needs_gpu!();
    let mut it = Doubling::new();
    for (position, (token, expected)) in [(3, 24.0), (5, 40.0), (2, 16.0)].into_iter().enumerate() {
        it.ask(3, (token, position));
        it.finds(expected, "step by step");
    }
}

#[test]
fn a_step_may_be_read_before_its_end() {
    needs_gpu!();
    for (n_plans, expected) in [(1, 5.0), (2, 10.0), (3, 40.0)] {
        let mut it = Doubling::new();
        it.ask(3, (3, 0));
        it.finds(24.0, "the step before");
        it.ask(n_plans, (5, 1));
        it.finds(expected, "the first plans");
        it.ask_for(1, (5, 1));
        it.finds(2.0 * expected, "and one more");
    }
}

#[test]
fn a_step_may_be_another_than_the_one_before() {
    needs_gpu!();
    let mut it = Doubling::new();
    it.ask(3, (3, 0));
    it.finds(24.0, "the first step");
    it.ask_for(0, (5, 1));
    it.ask_for(2, (5, 1));
    it.finds(20.0, "other plans");
    it.ask(3, (7, 2));
    it.finds(56.0, "the first plans again");
    it.ask(3, (6, 9));
    it.finds(48.0, "another position");
    it.ask(2, (1, 10));
    it.ask(3, (2, 11));
    it.finds(16.0, "after a step whose output is not read");
}
