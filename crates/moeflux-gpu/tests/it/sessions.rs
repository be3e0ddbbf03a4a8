//! Sessions that share buffers on a device: rows of many in one dispatch, pages that forks share,
//! growth, and refusals with numbers.

use std::ops::Range;

use moeflux::provider::backend::{Backend as _, SessionStates, StatePart};
use moeflux::provider::error::Error;
use moeflux::provider::ids::{LayerIdx, Position, StateId, TokenId, VectorId};
use moeflux::provider::ops::{
    Attention, Batch, CausalConv, DeltaGates, Embed, Gain, GatedDelta, Heads, KeptInputs, KvKind,
    L2Norm, LayerState, MlaAttention, NormGate, Op, Plan, RmsNorm, Row, RowKind, Segment,
    StateSpec, Workspace,
};
use moeflux::provider::spec::{GateFunction, HeadOrder};
use moeflux::provider::weights::{OwnedMatrix, Weights};
use moeflux_gpu::backend::GpuBackend;
use moeflux_gpu::config::GpuConfig;
use moeflux_kernels::{FloatKind, MatrixKind, MatrixLayout};
use moeflux_testing::needs_gpu;
use moeflux_testing::random::Rng;

use crate::support::gpu;

const N_TOKENS: usize = 64;
const N_ROWS_MAX: usize = 700;
const CONTEXT: usize = 700;
/// Positions of a page.
const PAGE: usize = 256;

/// Layers of each kind, whose inputs are a token's row of a table.
struct Mixers {
    backend: GpuBackend,
    spec: StateSpec,
    plan: Plan,
    outs: [Heads; 3],
}

/// A row of an answer: its session, position and token.
type AnswerRow = (StateId, usize, usize);

impl Mixers {
    fn new(fuses: bool) -> Self {
        let (mut rng, mut weights) = (Rng::new(7), Weights::default());
        let mut workspace = Workspace::default();
        let widths = [128, 64, 64, 320, 160, 16, 8, 128, 4, 4, 64];
        let x = workspace.buffer("x", widths.iter().sum());
        let mut first = 0;
        let [q, k, v, q_latent, q_rope, latent, k_rope, qkv, a, b, gate] = widths.map(|width| {
            first += width;
            x.narrow(first - width, width)
        });
        let outs = [("attended", 128), ("latent", 320), ("delta", 64)]
            .map(|(name, width)| workspace.buffer(name, width));
        let layout = MatrixLayout {
            kind: MatrixKind::Float(FloatKind::F32),
            n_rows: N_TOKENS,
            n_cols: x.head_dim,
        };
        let mut table = OwnedMatrix::zeroed(layout).unwrap();
        for value in table.parts_mut().0.as_chunks_mut::<4>().0 {
            *value = rng.normal().to_le_bytes();
        }
        let mut ops = vec![Op::Embed(Embed { table: weights.push_matrix(table), out: x })];
        ops.push(Op::Attention(Attention {
            layer: LayerIdx(0),
            q: q.split(4),
            k: k.split(2),
            v: v.split(2),
            gate: None,
            out: outs[0].split(4),
            scale: 0.2,
            window: None,
            sinks: None,
        }));
        ops.push(Op::MlaAttention(MlaAttention {
            layer: LayerIdx(1),
            q_latent: q_latent.split(20),
            q_rope: q_rope.split(20),
            latent,
            k_rope,
            out: outs[1].split(20),
            scale: 0.2,
            chosen: None,
        }));
        let mut vector = |n: usize| weights.push_vector(rng.normals(n, 0.3));
        ops.extend(delta(&mut vector, &mut workspace, [qkv, a, b, gate, outs[2]]));
        let spec = StateSpec {
            layers: vec![
                LayerState::KeyValue { n_heads: 2, k_cols: 64, v_cols: 64 },
                LayerState::Latent { latent_cols: 16, rope_cols: 8, index_cols: 0 },
                LayerState::Recurrent { conv_values: 3 * 128, delta_values: 4 * 16 * 16 },
            ],
        };
        let config = GpuConfig { fuses, ..GpuConfig::default() };
        let backend = GpuBackend::new(gpu(), &weights, &workspace, N_ROWS_MAX, config).unwrap();
        Self { backend, spec, plan: Plan::new(ops), outs }
    }

    /// A session of which a binding holds one, and not two.
    fn long_session(&mut self) -> StateId {
        const POSITION_BYTES: u64 = 64 * 4;
        let context = gpu().facts().binding_bytes_max / POSITION_BYTES * 6 / 10;
        let context = usize::try_from(context).unwrap();
        self.backend.create_state(&self.spec, context).unwrap()
    }

    fn session(&mut self) -> StateId {
        self.backend.create_state(&self.spec, CONTEXT).unwrap()
    }

    /// A session that has read `n` positions, all together.
    fn session_at(&mut self, n: usize) -> StateId {
        let state = self.session();
        self.read(state, 0..n);
        state
    }

    fn reserve(&mut self, state: StateId, positions: Range<usize>) {
        self.backend.reserve_positions(state, &positions).unwrap();
    }

    fn read(&mut self, state: StateId, positions: Range<usize>) {
        self.reserve(state, positions.clone());
        let rows: Vec<Row> = positions.clone().map(|at| row(at, at * 7 % N_TOKENS)).collect();
        let segments = [Segment::new(state, 0..positions.len(), RowKind::Prefill)];
        self.submit(&rows, &segments);
        self.backend.commit_state(state);
    }

    fn submit(&mut self, rows: &[Row], segments: &[Segment]) {
        let batch = Batch { rows, segments, outputs: &[] };
        self.backend.submit(&self.plan, &batch).unwrap();
    }

    /// Runs one step of answers. Returns the output of each, and the number of dispatches of all.
    fn answer(&mut self, answers: &[AnswerRow]) -> (Vec<Vec<f32>>, u64) {
        for &(state, at, _) in answers {
            self.reserve(state, at..at + 1);
        }
        let rows: Vec<Row> = answers.iter().map(|&(_, at, token)| row(at, token)).collect();
        let own = |(idx, answer): (usize, &AnswerRow)| {
            Segment::new(answer.0, idx..idx + 1, RowKind::Decode)
        };
        let segments: Vec<Segment> = answers.iter().enumerate().map(own).collect();
        let n_before = self.backend.n_dispatches();
        self.submit(&rows, &segments);
        let n_dispatches = self.backend.n_dispatches() - n_before;
        let rows = (0..answers.len()).map(|row_idx| self.outputs(row_idx)).collect();
        answers.iter().for_each(|answer| self.backend.commit_state(answer.0));
        (rows, n_dispatches)
    }

    fn outputs(&mut self, row_idx: usize) -> Vec<f32> {
        let mut all = Vec::new();
        for out in self.outs {
            let mut row = vec![f32::NAN; out.head_dim];
            self.backend.read_row(out.buffer, row_idx, &mut row).unwrap();
            all.extend(row);
        }
        assert!(all.iter().all(|it| it.is_finite()) && all.iter().any(|it| *it != 0.0));
        all
    }

    fn booked_bytes(&self) -> u64 {
        self.backend.budget().booked_bytes()
    }

    /// Bytes of the given number of positions.
    fn bytes_of(&self, n: usize) -> u64 {
        self.spec.bytes_per_position(KvKind::F32) * n as u64
    }

    fn state_bytes(&mut self, state: StateId, part: StatePart) -> Vec<u8> {
        let mut bytes = vec![0; self.backend.state_part_bytes(state, part)];
        self.backend.read_state(state, part, &mut bytes).unwrap();
        bytes
    }
}

/// A layer of gated `DeltaNet`, as models have it.
fn delta(
    vector: &mut dyn FnMut(usize) -> VectorId,
    workspace: &mut Workspace,
    [qkv, a, b, gate, out]: [Heads; 5],
) -> Vec<Op> {
    let layer = LayerIdx(2);
    let mixed = workspace.buffer("conv", 128);
    let (q, k) = (mixed.narrow(0, 32).split(2), mixed.narrow(32, 32).split(2));
    let (v, heads) = (mixed.narrow(64, 64).split(4), out.split(4));
    let norm = |x| Op::L2Norm(L2Norm { x, epsilon: 1e-6, factor: 0.5 });
    let (a_log, dt_bias, gain) = (vector(4), vector(4), vector(16));
    vec![
        Op::CausalConv(CausalConv {
            layer,
            x: qkv,
            weight: vector(128 * 4),
            n_taps: 4,
            dilation: 1,
            kept: KeptInputs::alone(3 * 128),
            out: mixed,
        }),
        norm(q),
        norm(k),
        Op::DeltaGates(DeltaGates { a, b, a_log, dt_bias, decay: a, beta: b }),
        Op::GatedDelta(GatedDelta {
            layer,
            q,
            k,
            v,
            decay: a,
            beta: b,
            out: heads,
            order: HeadOrder::Tiled,
        }),
        Op::RmsNorm(RmsNorm {
            x: heads,
            gain: Gain::Shared(gain),
            gate: Some(NormGate { x: gate.split(4), function: GateFunction::Silu }),
            out: heads,
            epsilon: 1e-6,
        }),
    ]
}

fn row(position: usize, token: usize) -> Row {
    let token = TokenId(u32::try_from(token).expect("a small token"));
    Row { token, position: Position(position) }
}

#[test]
fn an_answer_gets_the_same_bits_and_dispatches_in_any_company() {
    needs_gpu!();
    for fuses in [true, false] {
        let mut it = Mixers::new(fuses);
        // Few positions and many, on both sides of a page's end.
        let places = [1, 3, 127, 255, 256, 64, 300, 511, 2, 600];
        let alone = places.map(|n| it.session_at(n));
        let shared = alone.map(|state| it.backend.fork_state(state).unwrap());
        let mut counts = Vec::new();
        for n_done in 0..3 {
            let answers = |states: &[StateId]| -> Vec<AnswerRow> {
                let of = |(idx, (state, at)): (usize, (&StateId, &usize))| {
                    (*state, at + n_done, (idx * 5 + n_done) % N_TOKENS)
                };
                states.iter().zip(&places).enumerate().map(of).collect()
            };
            let mut expected = Vec::new();
            for answer in answers(&alone) {
                let (rows, n_dispatches) = it.answer(&[answer]);
                expected.extend(rows);
                counts.push((answer.1, n_dispatches));
            }
            let (together, n_dispatches) = it.answer(&answers(&shared));
            for (idx, expected) in expected.iter().enumerate() {
                assert!(together[idx] == *expected, "{fuses}: session {idx}, step {n_done}");
            }
            // As many as the one that sees most positions needs alone.
            let most = counts.iter().map(|(_, n)| *n).max();
            println!("{} sessions: {n_dispatches}, alone: {counts:?}", places.len());
            assert_eq!(Some(n_dispatches), most, "{fuses}: step {n_done}");
        }
    }
}

#[test]
fn prompts_and_answers_share_a_step() {
    needs_gpu!();
    let mut it = Mixers::new(true);
    let begin = [5, 140, 0, 300, 7];
    let n_rows = [1, 20, 5, 1, 70];
    let mut alone = Vec::new();
    for (begin, n) in begin.into_iter().zip(n_rows) {
        let state = it.session_at(begin);
        it.read(state, begin..begin + n);
        let rows: Vec<_> = (0..n).map(|row_idx| it.outputs(row_idx)).collect();
        alone.push((state, rows));
    }
    let states = begin.map(|begin| it.session_at(begin));
    let (mut rows, mut segments) = (Vec::new(), Vec::new());
    for ((state, begin), n) in states.into_iter().zip(begin).zip(n_rows) {
        it.reserve(state, begin..begin + n);
        let first = rows.len();
        rows.extend((begin..begin + n).map(|at| row(at, at * 7 % N_TOKENS)));
        segments.push(Segment::new(state, first..rows.len(), RowKind::Prefill));
    }
    // The recurrent state of this one is kept inside the step.
    segments[4].marks = vec![1, 40];
    it.backend.set_marks(states[4], 2).unwrap();
    it.submit(&rows, &segments);
    for (segment, (_, expected)) in segments.iter().zip(&alone) {
        for (row_idx, expected) in segment.rows.clone().zip(expected) {
            // Rows between marks may use other kernels.
            let limit = if segment.marks.is_empty() { 0.0 } else { 1e-4 };
            let found = it.outputs(row_idx);
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= limit * (1.0 + a.abs());
            assert!(found.iter().zip(expected).all(is_near), "row {row_idx}");
        }
    }
    states.iter().for_each(|state| it.backend.commit_state(*state));
    for ((state, (other, _)), n) in states.into_iter().zip(alone).zip([6, 160, 5, 301, 77]) {
        let [(first, _), (second, _)] = [state, other].map(|state| it.answer(&[(state, n, 9)]));
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * (1.0 + a.abs());
        assert!(first[0].iter().zip(&second[0]).all(is_near), "after {n}");
    }
}

#[test]
fn forks_share_pages_until_one_of_them_writes() {
    needs_gpu!();
    let mut it = Mixers::new(true);
    let state = it.session_at(600);
    let fixed_bytes = 2 * it.spec.fixed_bytes();
    // The last page is booked up to the end of the context.
    assert_eq!(it.booked_bytes(), fixed_bytes + it.bytes_of(CONTEXT));
    let fork = it.backend.fork_state(state).unwrap();
    assert_eq!(it.booked_bytes(), 2 * fixed_bytes + it.bytes_of(CONTEXT));
    let other = it.session_at(600);
    let booked_bytes = it.booked_bytes();
    // Only pages that are written are copied, once.
    let (forked, _) = it.answer(&[(fork, 600, 3)]);
    assert_eq!(it.booked_bytes() - booked_bytes, it.bytes_of(CONTEXT - 2 * PAGE));
    let (original, _) = it.answer(&[(state, 600, 4)]);
    assert_eq!(it.booked_bytes() - booked_bytes, it.bytes_of(CONTEXT - 2 * PAGE));
    let second = it.backend.fork_state(other).unwrap();
    assert!(it.answer(&[(other, 600, 4)]).0 == original);
    assert!(it.answer(&[(second, 600, 3)]).0 == forked);
    // Each goes on with its own past, also in one step.
    let (rows, _) = it.answer(&[(state, 601, 5), (fork, 601, 5), (other, 601, 5)]);
    assert!(rows[0] == rows[2] && rows[0] != rows[1]);
    // Shared pages stay until the last of their sessions is dropped.
    it.backend.drop_state(state);
    it.backend.drop_state(other);
    assert!(it.answer(&[(second, 601, 5)]).0[0] == rows[1]);
    it.answer(&[(fork, 602, 6)]);
    it.backend.drop_state(fork);
    it.backend.drop_state(second);
    assert_eq!(it.booked_bytes(), 0);
}

#[test]
fn sessions_grow_by_pages_and_are_refused_with_numbers() {
    needs_gpu!();
    let mut it = Mixers::new(true);
    let state = it.session();
    let fixed_bytes = 2 * it.spec.fixed_bytes();
    for (end, n_booked) in [(0, 0), (1, PAGE), (256, PAGE), (257, 2 * PAGE), (513, CONTEXT)] {
        it.reserve(state, end.max(1) - 1..end);
        assert_eq!(it.booked_bytes(), fixed_bytes + it.bytes_of(n_booked), "{end} positions");
    }
    let limit_bytes = it.booked_bytes() + fixed_bytes + it.bytes_of(PAGE + 5);
    it.backend.budget().set_limit(Some(limit_bytes));
    let second = it.session_at(PAGE);
    let booked_bytes = it.booked_bytes();
    let error = it.backend.reserve_positions(second, &(PAGE..PAGE + 1)).unwrap_err();
    let Error::NoRoom { needed_bytes, available_bytes, .. } = error else { panic!("{error}") };
    assert_eq!((needed_bytes, available_bytes), (it.bytes_of(PAGE), Some(it.bytes_of(5))));
    let text = error.to_string();
    assert!(text.starts_with("positions 256 to 257 of a session on "), "{text}");
    let error = it.backend.create_state(&it.spec, CONTEXT).unwrap_err().to_string();
    assert!(error.starts_with("2 copies of a session's recurrent state on "), "{error}");
    assert!(it.backend.fork_state(second).is_err() && it.backend.set_marks(second, 1).is_err());
    // A refused request changes nothing.
    assert_eq!(it.booked_bytes(), booked_bytes);
    it.backend.drop_state(state);
    let (grown, _) = it.answer(&[(second, PAGE, 1)]);
    it.backend.budget().set_limit(None);
    let fresh = it.session_at(PAGE);
    assert!(it.answer(&[(fresh, PAGE, 1)]).0 == grown);
    it.backend.drop_state(fresh);
    it.backend.drop_state(second);
    assert_eq!(it.booked_bytes(), 0);
}

#[test]
fn saved_states_do_not_depend_on_pages() {
    needs_gpu!();
    let mut it = Mixers::new(true);
    // Others take every second page.
    let (first, other) = (it.session_at(10), it.session_at(10));
    it.read(first, 10..300);
    it.read(other, 10..300);
    it.read(first, 300..600);
    let copy = it.session();
    it.reserve(copy, 0..600);
    for layer in [0, 1, 2].map(LayerIdx) {
        for part in
            [StatePart::Positions { layer, first: 3, n: 597 }, StatePart::Recurrent { layer }]
        {
            let saved = it.state_bytes(first, part);
            it.backend.write_state(copy, part, &saved).unwrap();
        }
        let part = StatePart::Positions { layer, first: 0, n: 3 };
        let saved = it.state_bytes(first, part);
        it.backend.write_state(copy, part, &saved).unwrap();
    }
    it.backend.commit_state(copy);
    let part = StatePart::Positions { layer: LayerIdx(0), first: 0, n: 600 };
    assert!(it.state_bytes(first, part) == it.state_bytes(copy, part));
    let (rows, _) = it.answer(&[(first, 600, 8), (other, 300, 1), (copy, 600, 8)]);
    assert!(rows[0] == rows[2]);
}

#[test]
fn sessions_that_share_no_buffers_share_a_step() {
    needs_gpu!();
    let mut it = Mixers::new(true);
    let alone = [2, 140].map(|n| it.session_at(n));
    let states = [2, 140].map(|n| {
        let state = it.long_session();
        it.read(state, 0..n);
        state
    });
    let (first, n_first) = it.answer(&[(alone[0], 2, 5)]);
    let (second, n_second) = it.answer(&[(alone[1], 140, 6)]);
    let (rows, n_dispatches) = it.answer(&[(states[0], 2, 5), (states[1], 140, 6)]);
    assert!(rows[0] == first[0] && rows[1] == second[0]);
    // The embedding, the only op that is not over states, is one dispatch for both.
    assert_eq!(n_dispatches, n_first + n_second - 1);
}

#[test]
fn freeing_memory_moves_nothing_in_use() {
    needs_gpu!();
    let mut it = Mixers::new(true);
    let states: Vec<StateId> = (0..24).map(|_| it.session_at(3)).collect();
    let (first, rest) = (states[0], &states[1..]);
    let (expected, _) = it.answer(&[(rest[0], 3, 1)]);
    rest.iter().for_each(|state| it.backend.drop_state(*state));
    assert!(it.answer(&[(first, 3, 1)]).0 == expected);
    let again: Vec<StateId> = (0..24).map(|_| it.session_at(3)).collect();
    let answers: Vec<AnswerRow> = again.iter().map(|state| (*state, 3, 1)).collect();
    assert!(it.answer(&answers).0.iter().all(|row| *row == expected[0]));
}
