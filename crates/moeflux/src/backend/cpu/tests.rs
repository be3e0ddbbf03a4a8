//! Results are bit-identical regardless of the division of rows into steps, of work among threads
//! and of sessions into batches.
//!
//! One small model with every kind of mixer runs the same text in many ways. Other tests check the
//! meaning of ops against the reference.

use std::sync::Arc;

use moeflux_kernels::{Affine, FloatKind, MatrixKind, MatrixLayout, available, by_name};
use moeflux_testing::random::Rng;

use crate::backend::cpu::CpuBackend;
use crate::backend::{Arithmetic, Backend, SessionStates};
use crate::experts::{Arrived, ArrivedExpert};
use crate::ids::{ExpertIdx, LayerIdx, MatrixId, Position, StateId, TokenId, VectorId};
use crate::ops::{
    Add, Attention, Batch, CausalConv, Combine, DeltaGates, Embed, ExpertFfn, Gain, GatedDelta,
    HeadMatMul, Heads, KeptInputs, L2Norm, LayerState, MatMul, MlaAttention, Op, Orientation, Plan,
    Purpose, RmsNorm, Rope, Route, RouterKind, Row, RowKind, RowSet, Segment, SelectRows,
    StateSpec, Workspace,
};
use crate::spec::{HeadOrder, Pairing};
use crate::weights::{ExpertLayout, ExpertView, OwnedMatrix, Weights};

const VOCAB: usize = 64;
const N_TOKENS: u32 = 64;
const HIDDEN: usize = 128;
const INNER: usize = 64;
const N_EXPERTS: usize = 6;
const TOP_K: usize = 2;

/// Longer than a block of attention.
const TEXT_LEN: usize = 75;

const Q4: MatrixKind = MatrixKind::Affine(Affine::new(4, 64, FloatKind::Bf16));
const Q8: MatrixKind = MatrixKind::Affine(Affine::new(8, 32, FloatKind::F16));
const F32: MatrixKind = MatrixKind::Float(FloatKind::F32);

fn random_matrix(rng: &mut Rng, kind: MatrixKind, n_rows: usize, n_cols: usize) -> OwnedMatrix {
    let layout = MatrixLayout::new(kind, n_rows, n_cols).unwrap();
    let mut matrix = OwnedMatrix::zeroed(layout).unwrap();
    fill(rng, kind, matrix.parts_mut());
    matrix
}

fn fill(
    rng: &mut Rng,
    kind: MatrixKind,
    (codes, scales, biases): (&mut [u8], &mut [u8], &mut [u8]),
) {
    match kind {
        MatrixKind::Float(_) => {
            for value in codes.chunks_exact_mut(4) {
                value.copy_from_slice(&(rng.unit() * 0.1).to_le_bytes());
            }
        }
        _ => {
            codes.iter_mut().for_each(|it| *it = rng.byte());
            // Scales are 2^-10 in f16 and 2^-6 in bf16; biases are negative.
            let (scale, bias) =
                if kind == Q8 { (0x1400_u16, 0xac00_u16) } else { (0x3c80, 0xbdf0) };
            scales.chunks_exact_mut(2).for_each(|it| it.copy_from_slice(&scale.to_le_bytes()));
            biases.chunks_exact_mut(2).for_each(|it| it.copy_from_slice(&bias.to_le_bytes()));
        }
    }
}

/// Weights, plans and experts.
struct TestModel {
    weights: Arc<Weights>,
    workspace: Workspace,
    state: StateSpec,
    mixer: Plan,
    expert: Plan,
    combine: Plan,
    output: Plan,
    hidden: Heads,
    logits: Heads,
    layout: ExpertLayout,
    experts: Vec<Vec<u8>>,
}

/// Adds weights and ops one by one.
struct TestModelBuilder {
    rng: Rng,
    weights: Weights,
    workspace: Workspace,
    ops: Vec<Op>,
}

impl TestModelBuilder {
    fn matrix(&mut self, kind: MatrixKind, n_rows: usize, n_cols: usize) -> MatrixId {
        let matrix = random_matrix(&mut self.rng, kind, n_rows, n_cols);
        self.weights.push_matrix(matrix)
    }

    fn vector(&mut self, len: usize) -> VectorId {
        let values = (0..len).map(|_| 1.0 + 0.3 * self.rng.unit()).collect();
        self.weights.push_vector(values)
    }

    fn matmul(&mut self, kind: MatrixKind, x: Heads, name: &'static str, n_rows: usize) -> Heads {
        let (weight, out) =
            (self.matrix(kind, n_rows, x.head_dim), self.workspace.buffer(name, n_rows));
        let bias = Some(self.vector(n_rows));
        self.ops.push(Op::MatMul(MatMul { weight, bias, x, out }));
        out
    }

    fn norm(&mut self, x: Heads, out: Heads) {
        let gain = Gain::Shared(self.vector(x.head_dim));
        self.ops.push(Op::RmsNorm(RmsNorm { x, gain, gate: None, out, epsilon: 1e-6 }));
    }

    fn rope(&mut self, x: Heads) {
        let frequencies = self.vector(x.head_dim / 2);
        let op = Rope { x, frequencies, pairing: Pairing::Halves, amplitude: 1.0 };
        self.ops.push(Op::Rope(op));
    }

    fn add(&mut self, x: Heads, y: Heads) {
        self.ops.push(Op::Add(Add { x, y, out: x }));
    }

    fn attention(&mut self, x: Heads, hidden: Heads) -> LayerState {
        let q = self.matmul(Q4, x, "q", 128).split(4);
        let k = self.matmul(Q8, x, "k", 64).split(2);
        let v = self.matmul(Q4, x, "v", 64).split(2);
        let gate = self.matmul(Q4, x, "gate", 128).split(4);
        self.norm(q, q);
        self.rope(q.narrow(0, 16));
        self.rope(k.narrow(0, 16));
        let out = self.workspace.buffer("attended", 128);
        let sinks = Some(self.vector(4));
        self.ops.push(Op::Attention(Attention {
            layer: LayerIdx(0),
            q,
            k,
            v,
            gate: Some(gate),
            out: out.split(4),
            scale: 0.2,
            window: Some(70),
            sinks,
        }));
        let out = self.matmul(F32, out, "mixed", HIDDEN);
        self.add(hidden, out);
        LayerState::KeyValue { n_heads: 2, k_cols: 64, v_cols: 64 }
    }

    fn mla(&mut self, x: Heads, hidden: Heads) -> LayerState {
        let q = self.matmul(Q4, x, "q", 160).split(4);
        let latent = self.matmul(Q4, x, "latent", 80);
        let weight = self.matrix(Q4, 4 * 48, 64);
        let (q_latent, out) =
            (self.workspace.buffer("q latent", 256), self.workspace.buffer("mla out", 256));
        let head_product = |orientation, first_row, n_rows, x, out| {
            let row_stride = 48;
            Op::HeadMatMul(HeadMatMul {
                weight,
                first_row,
                row_stride,
                n_rows,
                orientation,
                x,
                out,
            })
        };
        let (from_in, to_out) = (Orientation::RowsFromIn, Orientation::RowsToOut);
        self.ops.push(head_product(from_in, 0, 24, q.narrow(0, 24), q_latent.split(4)));
        self.rope(q.narrow(24, 16));
        self.rope(latent.narrow(64, 16));
        self.ops.push(Op::MlaAttention(MlaAttention {
            layer: LayerIdx(1),
            q_latent: q_latent.split(4),
            q_rope: q.narrow(24, 16),
            latent: latent.narrow(0, 64),
            k_rope: latent.narrow(64, 16),
            out: out.split(4),
            scale: 0.1,
            chosen: None,
        }));
        let values = self.workspace.buffer("mla values", 96);
        self.ops.push(head_product(to_out, 24, 24, out.split(4), values.split(4)));
        let out = self.matmul(F32, values, "mixed", HIDDEN);
        self.add(hidden, out);
        LayerState::Latent { latent_cols: 64, rope_cols: 16, index_cols: 0 }
    }

    fn delta(&mut self, x: Heads, hidden: Heads) -> LayerState {
        let qkv = self.matmul(Q4, x, "qkv", 32 + 32 + 64);
        let (a, b) = (self.matmul(F32, x, "a", 4), self.matmul(F32, x, "b", 4));
        let mixed = self.workspace.buffer("conv", 128);
        let weight = self.vector(128 * 4);
        let layer = LayerIdx(2);
        self.ops.push(Op::CausalConv(CausalConv {
            layer,
            kept: KeptInputs::alone(3 * 128),
            x: qkv,
            weight,
            n_taps: 4,
            dilation: 1,
            out: mixed,
        }));
        let (q, k) = (mixed.narrow(0, 32).split(2), mixed.narrow(32, 32).split(2));
        for x in [q, k] {
            self.ops.push(Op::L2Norm(L2Norm { x, epsilon: 1e-6, factor: 0.5 }));
        }
        let (a_log, dt_bias) = (self.vector(4), self.vector(4));
        let gates = DeltaGates { a, b, a_log, dt_bias, decay: a, beta: b };
        self.ops.push(Op::DeltaGates(gates));
        let v = mixed.narrow(64, 64).split(4);
        let out = self.workspace.buffer("delta out", 64);
        let heads = out.split(4);
        self.ops.push(Op::GatedDelta(GatedDelta {
            layer,
            q,
            k,
            v,
            decay: a,
            beta: b,
            out: heads,
            order: HeadOrder::Tiled,
        }));
        self.norm(heads, heads);
        let out = self.matmul(F32, out, "mixed", HIDDEN);
        self.add(hidden, out);
        LayerState::Recurrent { conv_values: 3 * 128, delta_values: 4 * 16 * 16 }
    }
}

fn model() -> TestModel {
    let mut builder = TestModelBuilder {
        rng: Rng::new(1),
        weights: Weights::default(),
        workspace: Workspace::default(),
        ops: Vec::new(),
    };
    let hidden = builder.workspace.buffer("hidden", HIDDEN);
    let x = builder.workspace.buffer("normed", HIDDEN);
    let table = builder.matrix(Q8, VOCAB, HIDDEN);
    builder.ops.push(Op::Embed(Embed { table, out: hidden }));
    let mixers = [TestModelBuilder::attention, TestModelBuilder::mla, TestModelBuilder::delta];
    let mut layers = Vec::new();
    for mixer in mixers {
        builder.norm(hidden, x);
        layers.push(mixer(&mut builder, x, hidden));
    }
    builder.norm(hidden, x);
    let logits = builder.matmul(F32, x, "router", N_EXPERTS);
    let kind = RouterKind::Softmax { renormalise: true };
    builder.ops.push(Op::Route(Route { logits, kind, top_k: TOP_K, purpose: Purpose::Compute }));
    let mixer = Plan::new(std::mem::take(&mut builder.ops));

    let sum = builder.workspace.buffer("sum", HIDDEN);
    let expert = ExpertFfn { layer: LayerIdx(0), x, sum, limit: None, biases: None };
    let expert = Plan::new(vec![Op::ExpertFfn(expert)]);
    let combine = Combine {
        sum,
        shared: Some(x),
        shared_gate: Some(logits.narrow(0, 1)),
        residual: Some(hidden),
        out: hidden,
    };
    let chosen = builder.workspace.buffer("chosen", HIDDEN);
    builder.ops.push(Op::SelectRows(SelectRows { x: hidden, out: chosen }));
    let logits = builder.matmul(Q4, chosen, "logits", VOCAB);
    let output = Plan::over(RowSet::Outputs, builder.ops);

    let layout = |n_rows, n_cols| MatrixLayout::new(Q4, n_rows, n_cols).unwrap();
    let layout =
        ExpertLayout::new(layout(INNER, HIDDEN), layout(INNER, HIDDEN), layout(HIDDEN, INNER));
    let mut rng = builder.rng;
    let experts = (0..N_EXPERTS).map(|_| {
        let mut record = vec![0; layout.record_bytes()];
        for span in [layout.gate, layout.up, layout.down] {
            let (head, biases) = record.split_at_mut(span.biases_at);
            let (codes, scales) = head.split_at_mut(span.scales_at);
            let codes = &mut codes[span.codes_at..][..span.layout.code_bytes()];
            let scales = &mut scales[..span.layout.scale_bytes()];
            fill(&mut rng, Q4, (codes, scales, &mut biases[..span.layout.bias_bytes()]));
        }
        record
    });
    TestModel {
        experts: experts.collect(),
        weights: Arc::new(builder.weights),
        workspace: builder.workspace,
        state: StateSpec { layers },
        mixer,
        expert,
        combine: Plan::new(vec![Op::Combine(combine)]),
        output,
        hidden,
        logits,
        layout,
    }
}

impl TestModel {
    fn backend(&self, n_threads: usize) -> CpuBackend {
        CpuBackend::new(self.weights.clone(), &self.workspace, TEXT_LEN, n_threads).unwrap()
    }

    /// Runs one step. Returns each row's hidden values, with the last row's logits appended.
    fn step(&self, backend: &mut CpuBackend, parts: &[(StateId, &[Row])]) -> Vec<Vec<f32>> {
        let rows: Vec<Row> = parts.iter().flat_map(|(_, rows)| rows.to_vec()).collect();
        let mut segments = Vec::new();
        for (state, part) in parts {
            if let (Some(first), Some(last)) = (part.first(), part.last()) {
                let positions = first.position.0..last.position.0 + 1;
                backend.reserve_positions(*state, &positions).unwrap();
            }
            let first = segments.last().map_or(0, |segment: &Segment| segment.rows.end);
            segments.push(Segment::new(*state, first..first + part.len(), RowKind::Prefill));
        }
        let outputs = [rows.len() - 1];
        let batch = Batch { rows: &rows, segments: &segments, outputs: &outputs };
        backend.submit(&self.mixer, &batch).unwrap();
        // Experts arrive one by one, in descending order.
        let mut union = backend.routes(Purpose::Compute).unwrap().experts.clone();
        union.sort_unstable();
        union.dedup();
        for &expert in union.iter().rev() {
            let view: ExpertView<'_> = self.layout.view(&self.experts[expert.0]);
            let one = [ArrivedExpert { expert, view }];
            backend.submit_experts(&self.expert, &Arrived::in_any_order(&one)).unwrap();
        }
        if union.len() == 3 {
            // Submitting all at once gives the same result.
            let all: Vec<_> = (0..N_EXPERTS)
                .map(|i| ArrivedExpert {
                    expert: ExpertIdx(i),
                    view: self.layout.view(&self.experts[i]),
                })
                .collect();
            backend.submit_experts(&self.expert, &Arrived::ascending(&all)).unwrap();
        }
        backend.submit(&self.combine, &batch).unwrap();
        backend.submit(&self.output, &batch).unwrap();
        for (state, _) in parts {
            backend.commit_state(*state);
        }
        let mut results: Vec<Vec<f32>> = (0..rows.len())
            .map(|row_idx| {
                let mut values = vec![0.0; HIDDEN];
                backend.read_row(self.hidden.buffer, row_idx, &mut values).unwrap();
                values
            })
            .collect();
        let mut logits = vec![0.0; VOCAB];
        backend.read_row(self.logits.buffer, 0, &mut logits).unwrap();
        results.last_mut().unwrap().extend(logits);
        results
    }

    /// Runs a text in steps of `chunk` rows. Returns hidden values of every row and the last
    /// logits.
    fn run(&self, backend: &mut CpuBackend, text: &[Row], chunk: usize) -> Vec<Vec<f32>> {
        let state = backend.create_state(&self.state, TEXT_LEN).unwrap();
        let chunks = text.chunks(chunk);
        let mut results: Vec<Vec<f32>> =
            chunks.flat_map(|rows| self.step(backend, &[(state, rows)])).collect();
        backend.drop_state(state);
        let last = results.len() - 1;
        results[..last].iter_mut().for_each(|values| values.truncate(HIDDEN));
        results
    }
}

fn text(seed: u32, len: usize) -> Vec<Row> {
    let mut rng = Rng::new(seed.into());
    let mut token = || TokenId(u32::try_from(rng.bits() % u64::from(N_TOKENS)).unwrap());
    (0..len).map(|i| Row { token: token(), position: Position(i) }).collect()
}

fn bits(results: &[Vec<f32>]) -> Vec<Vec<u32>> {
    results.iter().map(|values| values.iter().map(|value| value.to_bits()).collect()).collect()
}

#[test]
fn steps_and_threads_change_nothing() {
    let model = model();
    let text = text(7, TEXT_LEN);
    let expected = model.run(&mut model.backend(1), &text, 1);
    assert!(expected.iter().flatten().all(|it| it.is_finite()));
    assert!(expected[70][..HIDDEN] != expected[71][..HIDDEN], "rows differ");
    for n_threads in [1, 2, 3] {
        let mut backend = model.backend(n_threads);
        for chunk in [1, 7, TEXT_LEN] {
            let actual = model.run(&mut backend, &text, chunk);
            assert_eq!(bits(&actual), bits(&expected), "{n_threads} threads, chunks of {chunk}");
        }
    }
}

#[test]
fn instruction_sets_change_nothing() {
    let model = model();
    let text = text(8, 9);
    let scalar = by_name("scalar").unwrap();
    for arithmetic in [Arithmetic::F32, Arithmetic::Int8] {
        let run = |table, n_threads| {
            let backend = model.backend(n_threads).with_kernels(table);
            model.run(&mut backend.with_arithmetic(arithmetic), &text, 4)
        };
        let expected = run(scalar, 1);
        for table in available() {
            assert_eq!(bits(&run(table, 2)), bits(&expected), "{} {arithmetic:?}", table.name());
        }
    }
}

#[test]
fn company_changes_nothing() {
    let model = model();
    let texts = [text(1, 20), text(2, 31), text(3, 8)];
    let mut backend = model.backend(2);
    let alone: Vec<_> = texts.iter().map(|text| model.run(&mut backend, text, 20)).collect();
    let states: Vec<_> =
        texts.iter().map(|_| backend.create_state(&model.state, 40).unwrap()).collect();
    // Steps of 5, 3 and 1 rows, until the texts end one after another.
    for step_idx in 0..20 {
        let mut parts = Vec::new();
        for (text_idx, chunk) in [5, 3, 1].into_iter().enumerate() {
            if let Some(rows) = texts[text_idx].chunks(chunk).nth(step_idx) {
                parts.push((text_idx, rows));
            }
        }
        let named: Vec<_> = parts.iter().map(|&(idx, rows)| (states[idx], rows)).collect();
        if named.is_empty() {
            continue;
        }
        let results = model.step(&mut backend, &named);
        let places = parts.iter().flat_map(|&(idx, rows)| rows.iter().map(move |row| (idx, row)));
        for ((text_idx, row), values) in places.zip(&results) {
            let expected = &alone[text_idx][row.position.0][..HIDDEN];
            let actual = &values[..HIDDEN];
            assert_eq!(
                bits(&[actual.to_vec()]),
                bits(&[expected.to_vec()]),
                "text {text_idx}, {row:?}"
            );
        }
    }
}

#[test]
fn a_cleared_state_is_as_new() {
    let model = model();
    let mut backend = model.backend(2);
    let state = backend.create_state(&model.state, TEXT_LEN).unwrap();
    let text = text(5, 12);
    let first = model.step(&mut backend, &[(state, &text)]);
    backend.reset_state(state);
    let second = model.step(&mut backend, &[(state, &text)]);
    assert_eq!(bits(&first), bits(&second));
}

#[test]
fn absurd_numbers_of_threads_are_refused() {
    for n_threads in [0, 1_000_000] {
        let workspace = Workspace::default();
        let error = CpuBackend::new(Arc::default(), &workspace, 1, n_threads).unwrap_err();
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
