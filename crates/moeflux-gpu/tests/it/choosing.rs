//! The best logits, found on the device, are those of the whole rows.

use std::ops::ControlFlow;

use moeflux::provider::backend::Backend as _;
use moeflux::provider::backend::SessionStates;
use moeflux::provider::forward::Logits;
use moeflux::provider::ids::{Position, TokenId};
use moeflux::provider::ops::{
    Batch, Embed, Op, Plan, Row, RowKind, Segment, StateSpec, TopK, Workspace,
};
use moeflux::provider::session::{Session, StepOutput};
use moeflux::provider::weights::{OwnedMatrix, Weights};
use moeflux_gpu::backend::GpuBackend;
use moeflux_gpu::config::GpuConfig;
use moeflux_kernels::{FloatKind, MatrixKind, MatrixLayout};
use moeflux_testing::cases::GoldenCase;
use moeflux_testing::needs_gpu;

use crate::support::{ExpertsAt, gpu, open};

const N_BEST: usize = 20;

/// The best by a sort: the library's keeps equals in the order of their tokens.
fn best_of(row: &[f32]) -> Vec<(TokenId, f32)> {
    let mut best: Vec<(TokenId, f32)> = (0..).map(TokenId).zip(row.iter().copied()).collect();
    best.sort_by(|left, right| right.1.total_cmp(&left.1));
    best.truncate(N_BEST);
    best
}

fn fed(session: &mut Session, tokens: &[TokenId], n_best: usize) -> Vec<(TokenId, f32)> {
    let mut found = Vec::new();
    let watch = &mut |_| ControlFlow::Continue(());
    let mut output = StepOutput::default();
    session.feed_to_choose(tokens, Some(n_best), watch, &mut output).unwrap();
    match output.last_of(0).unwrap() {
        Logits::Best(best) => found.extend_from_slice(best),
        Logits::All(row) => found.extend(best_of(row)),
    }
    found
}

#[test]
fn the_best_of_an_answer_are_those_of_its_rows() {
    needs_gpu!();
    for experts in [ExpertsAt::Device, ExpertsAt::Files(9)] {
        let case = GoldenCase::load("mlx-qwen3_5_moe-q4-g64-bf16");
        let (prompt, answer) = case.tokens.split_at(case.tokens.len() / 2);
        let engine = open(&case.dir, 16, experts);
        let mut session = engine.session(case.tokens.len()).unwrap();
        let mut rows = vec![session.feed_last(prompt).unwrap()];
        rows.extend(answer.iter().map(|token| session.feed_last(&[*token]).unwrap()));
        session.clear();
        let mut found = vec![fed(&mut session, prompt, N_BEST)];
        found.extend(answer.iter().map(|token| fed(&mut session, &[*token], N_BEST)));
        for (at, (found, row)) in found.iter().zip(&rows).enumerate() {
            assert_eq!(*found, best_of(row), "{experts:?}: token {at} of the answer");
        }
        // More than the device looks for: the whole row comes back.
        session.clear();
        assert_eq!(fed(&mut session, prompt, 1000), best_of(&rows[0]));
    }
}

#[test]
#[expect(clippy::cast_possible_truncation, reason = "whole numbers")]
fn nan_is_found_first() {
    const N_COLS: usize = 2000;
    needs_gpu!();
    let (mut weights, mut workspace) = (Weights::default(), Workspace::default());
    let kind = MatrixKind::Float(FloatKind::F32);
    let layout = MatrixLayout { kind, n_rows: 1, n_cols: N_COLS };
    let mut table = OwnedMatrix::zeroed(layout).unwrap();
    let values = table.parts_mut().0.as_chunks_mut::<4>().0;
    for (at, value) in [(7, f32::INFINITY), (1500, -f32::NAN), (1900, f32::NAN)] {
        values[at] = value.to_le_bytes();
    }
    let table = weights.push_matrix(table);
    let (x, out) = (workspace.buffer("x", N_COLS), workspace.buffer("best", 8));
    let plan = Plan::new(vec![Op::Embed(Embed { table, out: x }), Op::TopK(TopK { x, out })]);
    let mut backend =
        GpuBackend::new(gpu(), &weights, &workspace, 1, GpuConfig::default()).unwrap();
    let state = backend.create_state(&StateSpec { layers: Vec::new() }, 1).unwrap();
    let rows = [Row { token: TokenId(0), position: Position(0) }];
    let segments = [Segment::new(state, 0..1, RowKind::Decode)];
    backend.submit(&plan, &Batch { rows: &rows, segments: &segments, outputs: &[0] }).unwrap();
    let mut found = [0.0; 8];
    backend.read_row(out.buffer, 0, &mut found).unwrap();
    assert!(found[0].is_nan() && found[1].is_nan(), "{found:?}");
    let (values, columns) = found.split_at(4);
    assert!(values[2].is_infinite() && values[3].abs() < f32::MIN_POSITIVE, "{found:?}");
    let columns: Vec<i32> = columns.iter().map(|it| *it as i32).collect();
    assert_eq!(columns, [1500, 1900, 7, 0]);
}
