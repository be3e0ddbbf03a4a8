//! One case of the suite: weights, plans, and sessions whose rows are fed step by step.
//!
//! Values reach buffers as in every model, through tables of embeddings: each token of a case is
//! one row of inputs. Output buffers are filled too, so that columns which an op must not touch are
//! compared as well.

use std::sync::Arc;

use moeflux::provider::ids::{BufferId, ExpertIdx, MatrixId, TokenId, VectorId};
use moeflux::provider::ops::{Embed, Heads, LayerState, Op, Plan, RowSet, StateSpec, Workspace};
use moeflux::provider::weights::{ExpertView, OwnedMatrix, Weights};
use moeflux_kernels::{FloatKind, Matrix, MatrixKind, MatrixLayout};

use crate::matrices::matrix_parts;
use crate::random::Rng;

/// A session of a case: its tokens are `first_token ..` `+ n_tokens`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CaseSession {
    pub(crate) first_token: usize,
    pub(crate) n_tokens: usize,
}

/// Plans to run, their inputs, and the outputs to compare.
#[derive(Debug)]
pub(crate) struct OpCase {
    pub(crate) weights: Arc<Weights>,
    pub(crate) workspace: Workspace,
    pub(crate) state: StateSpec,
    pub(crate) sessions: Vec<CaseSession>,
    /// Position of every session's first token.
    pub(crate) first_position: usize,
    pub(crate) mixer: Plan,
    pub(crate) experts: Option<CaseExperts>,
    /// The ops over the rows whose logits are requested.
    pub(crate) tail: Option<Plan>,
    /// Compared, a row per token.
    pub(crate) outputs: Vec<BufferId>,
    /// Compared, a row per token whose logits are requested.
    pub(crate) tail_outputs: Vec<BufferId>,
}

impl OpCase {
    pub(crate) fn n_tokens(&self) -> usize {
        self.sessions.iter().map(|session| session.n_tokens).sum()
    }

    /// The names of all ops.
    pub(crate) fn op_names(&self) -> Vec<&'static str> {
        let experts = self.experts.iter().flat_map(|experts| match &experts.halves {
            Some(([up, down], _)) => vec![up, down, &experts.combine],
            None => vec![&experts.ffn, &experts.combine],
        });
        let plans = [&self.mixer].into_iter().chain(experts).chain(&self.tail);
        plans.flat_map(|plan| plan.ops()).map(Op::name).collect()
    }
}

/// Routed experts and the plans that run them.
#[derive(Debug)]
pub(crate) struct CaseExperts {
    pub(crate) ffn: Plan,
    /// The plans for up and down, if these are run instead, and the rows of gate and up.
    pub(crate) halves: Option<([Plan; 2], usize)>,
    pub(crate) combine: Plan,
    pub(crate) records: Vec<ExpertRecord>,
}

/// One expert's matrices, unpadded: parts start at any byte.
#[derive(Debug)]
pub(crate) struct ExpertRecord {
    pub(crate) expert: ExpertIdx,
    /// Gate, up and down.
    layouts: [MatrixLayout; 3],
    bytes: Vec<u8>,
    lead_bytes: usize,
    /// Whether rows of gate and up alternate in the record.
    take_turns: bool,
}

impl ExpertRecord {
    pub(crate) fn random(rng: &mut Rng, expert: ExpertIdx, layouts: [MatrixLayout; 3]) -> Self {
        let lead_bytes = rng.below(8);
        let mut bytes = vec![0; lead_bytes];
        for layout in layouts {
            bytes.extend(matrix_parts(rng, layout).concat());
        }
        Self { expert, layouts, bytes, lead_bytes, take_turns: false }
    }

    /// One whose gate and up, of one kind, have rows in turns.
    pub(crate) fn random_turns(
        rng: &mut Rng,
        expert: ExpertIdx,
        layouts: [MatrixLayout; 3],
    ) -> Self {
        let lead_bytes = rng.below(8);
        let mut bytes = vec![0; lead_bytes];
        let both = MatrixLayout { n_rows: 2 * layouts[0].n_rows, ..layouts[0] };
        for layout in [both, layouts[2]] {
            bytes.extend(matrix_parts(rng, layout).concat());
        }
        Self { expert, layouts, bytes, lead_bytes, take_turns: true }
    }

    pub(crate) fn view(&self) -> ExpertView<'_> {
        let mut rest = &self.bytes[self.lead_bytes..];
        if self.take_turns {
            let [layout, _, down] = self.layouts;
            let (codes, after) = rest.split_at(2 * layout.code_bytes());
            let (scales, after) = after.split_at(2 * layout.scale_bytes());
            let rows = |first: usize| {
                let spanned = |bytes: &'_ [u8], n: usize| first * n..bytes.len() - (1 - first) * n;
                let [n_codes, n_scales] = [layout.row_bytes(), layout.scale_row_bytes()];
                let (codes, scales) =
                    (&codes[spanned(codes, n_codes)], &scales[spanned(scales, n_scales)]);
                Matrix::of_every(2, layout, codes, scales)
            };
            let (codes, scales) = after.split_at(down.code_bytes());
            let [gate, up] = [0, 1].map(rows);
            return ExpertView { gate, up, down: Matrix::new(down, codes, scales, &[]) };
        }
        let [gate, up, down] = self.layouts.map(|layout| {
            let mut part = |n_bytes| {
                let (part, after) = rest.split_at(n_bytes);
                rest = after;
                part
            };
            let codes = part(layout.code_bytes());
            let scales = part(layout.scale_bytes());
            Matrix::new(layout, codes, scales, part(layout.bias_bytes()))
        });
        ExpertView { gate, up, down }
    }
}

/// A case in the making.
#[derive(Debug)]
pub(crate) struct CaseBuilder {
    pub(crate) rng: Rng,
    pub(crate) workspace: Workspace,
    pub(crate) state: StateSpec,
    pub(crate) first_position: usize,
    weights: Weights,
    sessions: Vec<CaseSession>,
    embeds: Vec<Op>,
    outputs: Vec<BufferId>,
    tail_outputs: Vec<BufferId>,
}

impl CaseBuilder {
    /// One to three sessions of at most nine tokens.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let lengths: Vec<usize> = (0..rng.between(1, 3)).map(|_| rng.between(1, 9)).collect();
        Self::with_sessions(rng, &lengths)
    }

    /// Begins a case with sessions of these numbers of tokens.
    pub(crate) fn with_sessions(rng: Rng, lengths: &[usize]) -> Self {
        let mut sessions: Vec<CaseSession> = Vec::new();
        let mut first_token = 0;
        for &n_tokens in lengths {
            sessions.push(CaseSession { first_token, n_tokens });
            first_token += n_tokens;
        }
        Self {
            rng,
            workspace: Workspace::default(),
            state: StateSpec::default(),
            first_position: 0,
            weights: Weights::default(),
            sessions,
            embeds: Vec::new(),
            outputs: Vec::new(),
            tail_outputs: Vec::new(),
        }
    }

    pub(crate) fn n_tokens(&self) -> usize {
        self.sessions.iter().map(|session| session.n_tokens).sum()
    }

    /// The layer of an op that keeps `state`: not the first one, which is of another kind.
    pub(crate) fn layer(&mut self, state: LayerState) -> moeflux::provider::ids::LayerIdx {
        let other = match state {
            LayerState::Recurrent { .. } => {
                LayerState::KeyValue { n_heads: 1, k_cols: 3, v_cols: 5 }
            }
            _ => LayerState::Recurrent { conv_values: 3, delta_values: 7 },
        };
        self.state.layers = vec![other, state];
        moeflux::provider::ids::LayerIdx(1)
    }

    /// Adds a buffer of normal values, or of values that `value` creates.
    pub(crate) fn input_of(
        &mut self,
        name: &'static str,
        n_cols: usize,
        mut value: impl FnMut(&mut Rng) -> f32,
    ) -> Heads {
        let n_tokens = self.n_tokens();
        let values: Vec<f32> = (0..n_tokens * n_cols).map(|_| value(&mut self.rng)).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let kind = MatrixKind::Float(FloatKind::F32);
        let table = self.push([bytes, Vec::new(), Vec::new()], layout(kind, n_tokens, n_cols));
        let out = self.workspace.buffer(name, n_cols);
        self.embeds.push(Op::Embed(Embed { table, out }));
        out
    }

    /// Adds a buffer whose row of a session's token `idx` is `row(rng, idx)`.
    pub(crate) fn input_rows(
        &mut self,
        name: &'static str,
        n_cols: usize,
        row: impl Fn(&mut Rng, usize) -> Vec<f32>,
    ) -> Heads {
        let n_tokens = self.sessions.iter().map(|session| session.n_tokens);
        let places: Vec<usize> = n_tokens.flat_map(|n_tokens| 0..n_tokens).collect();
        let rows = places.into_iter().flat_map(|idx| row(&mut self.rng, idx));
        let mut values = rows.collect::<Vec<f32>>().into_iter();
        self.input_of(name, n_cols, |_| values.next().expect("a value per column"))
    }

    /// A row of normal values.
    pub(crate) fn input(&mut self, name: &'static str, n_cols: usize) -> Heads {
        self.input_of(name, n_cols, Rng::normal)
    }

    /// Heads of normal values, with unused columns before and between them.
    pub(crate) fn heads(
        &mut self,
        name: &'static str,
        (n_heads, head_dim): (usize, usize),
    ) -> Heads {
        let first_col = self.rng.pick(&[0, 0, 1, 8]);
        let stride = head_dim + self.rng.pick(&[0, 0, 3, 16]);
        let row = self.input(name, first_col + n_heads * stride);
        Heads { first_col, n_heads, head_dim, stride, ..row }
    }

    /// Heads whose buffer is compared.
    pub(crate) fn output_heads(&mut self, name: &'static str, shape: (usize, usize)) -> Heads {
        let heads = self.heads(name, shape);
        self.compare(heads)
    }

    /// One head whose buffer is compared.
    pub(crate) fn output(&mut self, name: &'static str, n_cols: usize) -> Heads {
        self.output_heads(name, (1, n_cols))
    }

    /// Marks a buffer for comparison.
    pub(crate) fn compare(&mut self, heads: Heads) -> Heads {
        self.outputs.push(heads.buffer);
        heads
    }

    /// A buffer of output rows, compared.
    pub(crate) fn tail_output(&mut self, name: &'static str, n_cols: usize) -> Heads {
        let heads = self.workspace.output_buffer(name, n_cols);
        self.tail_outputs.push(heads.buffer);
        heads
    }

    /// A random resident matrix.
    pub(crate) fn matrix(&mut self, kind: MatrixKind, n_rows: usize, n_cols: usize) -> MatrixId {
        let layout = layout(kind, n_rows, n_cols);
        let parts = matrix_parts(&mut self.rng, layout);
        self.push(parts, layout)
    }

    fn push(&mut self, parts: [Vec<u8>; 3], layout: MatrixLayout) -> MatrixId {
        let mut matrix = OwnedMatrix::zeroed(layout).expect("a small matrix");
        let (codes, scales, biases) = matrix.parts_mut();
        codes.copy_from_slice(&parts[0]);
        scales.copy_from_slice(&parts[1]);
        biases.copy_from_slice(&parts[2]);
        self.weights.push_matrix(matrix)
    }

    /// A resident vector.
    pub(crate) fn vector(&mut self, values: Vec<f32>) -> VectorId {
        self.weights.push_vector(values)
    }

    /// A resident vector of normal values around `mean`.
    pub(crate) fn normal_vector(&mut self, n: usize, mean: f32) -> VectorId {
        let values = self.rng.normals(n, 1.0).iter().map(|value| value + mean).collect();
        self.vector(values)
    }

    /// A case that runs `ops` over every row.
    pub(crate) fn finish(self, ops: Vec<Op>) -> OpCase {
        OpCase {
            weights: Arc::new(self.weights),
            workspace: self.workspace,
            state: self.state,
            sessions: self.sessions,
            first_position: self.first_position,
            mixer: Plan::new(self.embeds.into_iter().chain(ops).collect()),
            experts: None,
            tail: None,
            outputs: self.outputs,
            tail_outputs: self.tail_outputs,
        }
    }

    /// Returns a case that runs `ops` over the rows whose logits are requested.
    pub(crate) fn finish_tail(self, ops: Vec<Op>) -> OpCase {
        OpCase { tail: Some(Plan::over(RowSet::Outputs, ops)), ..self.finish(Vec::new()) }
    }
}

pub(crate) fn layout(kind: MatrixKind, n_rows: usize, n_cols: usize) -> MatrixLayout {
    MatrixLayout::new(kind, n_rows, n_cols).expect("cases have possible shapes")
}

pub(crate) fn token_id(token: usize) -> TokenId {
    TokenId(u32::try_from(token).expect("cases have few tokens"))
}
