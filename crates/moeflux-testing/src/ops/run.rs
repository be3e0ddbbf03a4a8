//! Runs a case on a backend, with the tokens divided into steps, and compares the results.

use std::collections::BTreeMap;
use std::ops::Range;

use moeflux::provider::backend::{Backend, StatePart};
use moeflux::provider::experts::{Arrived, ArrivedExpert};
use moeflux::provider::ids::{BufferId, ExpertIdx, LayerIdx, Position, StateId};
use moeflux::provider::ops::{
    Batch, LayerState, N_OUTPUTS_MAX, Plan, Purpose, Routes, Row, RowKind, Segment,
};

use crate::ops::case::{CaseExperts, OpCase, token_id};
use crate::random::Rng;

/// How a case's tokens are cut into steps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Schedule {
    /// All tokens of all sessions in one step.
    AtOnce,
    /// Steps of one token of one session.
    OneByOne,
    /// Steps of some tokens of some sessions, in any order.
    Random(u64),
}

/// Everything that a run of a case computed, for comparison.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CaseOutcome {
    /// By name, then by token.
    pub(crate) values: BTreeMap<String, BTreeMap<usize, Vec<f32>>>,
    /// By token.
    pub(crate) experts: BTreeMap<usize, Vec<ExpertIdx>>,
    /// By session and layer.
    pub(crate) states: BTreeMap<(usize, usize), Vec<u8>>,
}

/// A session and a range of its tokens, counted from its first.
type SessionTokens = (usize, Range<usize>);

/// Sessions of a case on a backend.
#[derive(Debug)]
pub(crate) struct CaseRun<'a> {
    case: &'a OpCase,
    backend: &'a mut dyn Backend,
    states: Vec<StateId>,
    outcome: CaseOutcome,
    rng: Rng,
}

impl<'a> CaseRun<'a> {
    /// Makes a session's state for each session of the case.
    pub(crate) fn new(case: &'a OpCase, backend: &'a mut dyn Backend) -> Self {
        let states = case
            .sessions
            .iter()
            .map(|session| {
                let context = case.first_position + session.n_tokens;
                // Ops without state may stand at any position without room for it.
                let context = if case.state.layers.is_empty() { 1 } else { context };
                let state =
                    backend.states_mut().create_state(&case.state, context).expect("a small state");
                backend
                    .states_mut()
                    .reserve_positions(state, &(0..context))
                    .expect("a small state");
                state
            })
            .collect();
        Self { case, backend, states, outcome: CaseOutcome::default(), rng: Rng::new(7) }
    }

    /// Runs all tokens and drops the sessions.
    pub(crate) fn whole(
        case: &'a OpCase,
        backend: &'a mut dyn Backend,
        schedule: Schedule,
    ) -> CaseOutcome {
        let mut run = Self::new(case, backend);
        for spans in steps(case, schedule) {
            run.step(&spans);
        }
        run.finish()
    }

    /// Reads the states and drops the sessions.
    pub(crate) fn finish(mut self) -> CaseOutcome {
        for session_idx in 0..self.states.len() {
            for (part, bytes) in self.save(session_idx) {
                self.outcome.states.insert((session_idx, part.layer().0), bytes);
            }
        }
        for state in self.states {
            self.backend.states_mut().drop_state(state);
        }
        self.outcome
    }

    /// Every part of a session's state.
    pub(crate) fn save(&mut self, session_idx: usize) -> Vec<(StatePart, Vec<u8>)> {
        let state = self.states[session_idx];
        let n = self.case.sessions[session_idx].n_tokens;
        let mut parts = Vec::new();
        for (layer_idx, layer) in self.case.state.layers.iter().enumerate() {
            let layer_idx = LayerIdx(layer_idx);
            let part = match layer {
                LayerState::Recurrent { .. } => StatePart::Recurrent { layer: layer_idx },
                _ => StatePart::Positions { layer: layer_idx, first: 0, n },
            };
            let mut bytes = vec![0; self.backend.states().state_part_bytes(state, part)];
            self.backend
                .states_mut()
                .read_state(state, part, &mut bytes)
                .expect("a state is readable");
            parts.push((part, bytes));
        }
        parts
    }

    /// Replaces a session's state by a fresh one with these parts.
    pub(crate) fn restore(&mut self, session_idx: usize, parts: &[(StatePart, Vec<u8>)]) {
        let context = self.case.first_position + self.case.sessions[session_idx].n_tokens;
        let state = self
            .backend
            .states_mut()
            .create_state(&self.case.state, context)
            .expect("a small state");
        self.backend.states_mut().drop_state(self.states[session_idx]);
        self.states[session_idx] = state;
        self.backend.states_mut().reserve_positions(state, &(0..context)).expect("a small state");
        for (part, bytes) in parts {
            self.backend
                .states_mut()
                .write_state(state, *part, bytes)
                .expect("a state is writable");
        }
        self.backend.states_mut().commit_state(state);
    }

    /// Resets the sessions without freeing their memory.
    pub(crate) fn reset(&mut self) {
        for &state in &self.states {
            self.backend.states_mut().reset_state(state);
        }
    }

    /// Runs one step.
    pub(crate) fn step(&mut self, spans: &[SessionTokens]) {
        let (mut rows, mut tokens, mut segments) = (Vec::new(), Vec::new(), Vec::new());
        for (session_idx, span) in spans {
            let first_row = rows.len();
            for idx in span.clone() {
                let token = self.case.sessions[*session_idx].first_token + idx;
                let position = Position(self.case.first_position + idx);
                rows.push(Row { token: token_id(token), position });
                tokens.push(token);
            }
            let state = self.states[*session_idx];
            let mut segment = Segment::new(state, first_row..rows.len(), RowKind::Prefill);
            segment.marks.extend((1..span.len()).filter(|n| self.is_kept(span.start + n)));
            self.backend.states_mut().set_marks(state, segment.marks.len()).expect("a few copies");
            segments.push(segment);
        }
        let wanted: Vec<usize> = (0..rows.len()).filter(|&row| is_wanted(tokens[row])).collect();
        let batch = Batch { rows: &rows, segments: &segments, outputs: &wanted };
        self.backend.submit(&self.case.mixer, &batch).expect("the mixer plan runs");
        if let Some(experts) = &self.case.experts {
            self.run_experts(experts, &tokens);
            self.backend.submit(&experts.combine, &batch).expect("the combine plan runs");
        }
        if self.case.mixer.ops().iter().any(|op| op.name() == "route") {
            self.keep_routes(&tokens);
        }
        for &buffer in &self.case.outputs {
            self.keep_rows(buffer, &tokens);
        }
        self.run_tail((&batch, &wanted), &tokens);
        for (span, segment) in spans.iter().zip(&segments).filter(|it| !it.1.rows.is_empty()) {
            self.keep_marked(span, segment);
        }
    }

    /// Returns whether the states after the first `n_tokens` tokens of a session are compared.
    fn is_kept(&self, n_tokens: usize) -> bool {
        let is_recurrent = self.case.state.layers.iter().any(LayerState::is_recurrent);
        is_recurrent && n_tokens.is_multiple_of(5)
    }

    /// Commits a segment, and keeps its states after some of its tokens: at marks, and at its end.
    fn keep_marked(&mut self, (session_idx, span): &SessionTokens, segment: &Segment) {
        let first_token = self.case.sessions[*session_idx].first_token + span.start;
        let marks = segment.marks.iter().enumerate();
        for (mark_idx, n_rows) in marks {
            self.keep_states(first_token + n_rows, segment.state, |layer| StatePart::Marked {
                layer,
                mark_idx,
            });
        }
        self.backend.states_mut().commit_state(segment.state);
        if self.is_kept(span.end) {
            let end = first_token + span.len();
            self.keep_states(end, segment.state, |layer| StatePart::Recurrent { layer });
        }
    }

    fn keep_states(
        &mut self,
        token: usize,
        state: StateId,
        part_of: impl Fn(LayerIdx) -> StatePart,
    ) {
        for (layer_idx, layer) in self.case.state.layers.iter().enumerate() {
            if !layer.is_recurrent() {
                continue;
            }
            let part = part_of(LayerIdx(layer_idx));
            let mut bytes = vec![0; self.backend.states().state_part_bytes(state, part)];
            self.backend
                .states_mut()
                .read_state(state, part, &mut bytes)
                .expect("a state is readable");
            let values = bytemuck::pod_collect_to_vec::<u8, f32>(&bytes);
            let name = format!("state of layer {layer_idx}");
            self.outcome.values.entry(name).or_default().insert(token, values);
        }
    }

    /// Computes the ops over the rows whose logits are requested.
    fn run_tail(&mut self, (batch, wanted): (&Batch<'_>, &[usize]), tokens: &[usize]) {
        let Some(tail) = &self.case.tail else { return };
        for outputs in wanted.chunks(N_OUTPUTS_MAX) {
            let batch = Batch { outputs, ..*batch };
            self.backend.submit(tail, &batch).expect("the tail plan runs");
            let tokens: Vec<usize> = outputs.iter().map(|&row| tokens[row]).collect();
            for &buffer in &self.case.tail_outputs {
                self.keep_rows(buffer, &tokens);
            }
        }
    }

    /// Feeds the chosen experts a few at a time, in the order of the sum or in any other.
    fn run_experts(&mut self, experts: &CaseExperts, tokens: &[usize]) {
        let mut chosen = self.routes().experts.clone();
        chosen.sort_unstable();
        assert!(tokens.is_empty() || !chosen.is_empty(), "every row chooses");
        let is_chosen = |expert: &ExpertIdx| chosen.binary_search(expert).is_ok();
        let records = experts.records.iter().filter(|record| is_chosen(&record.expert));
        let mut arrived: Vec<ArrivedExpert<'_>> = records
            .map(|record| ArrivedExpert { expert: record.expert, view: record.view() })
            .collect();
        if let Some((halves, n_inner)) = &experts.halves {
            return self.run_halves((halves, *n_inner), arrived);
        }
        let is_ascending = self.rng.coin();
        if is_ascending {
            arrived.sort_by_key(|arrived| arrived.expert);
        } else {
            self.rng.shuffle(&mut arrived);
        }
        let n_arrived = arrived.len().max(1);
        let group_len = if self.rng.coin() { n_arrived } else { self.rng.between(1, n_arrived) };
        for group in arrived.chunks(group_len) {
            let group =
                if is_ascending { Arrived::ascending(group) } else { Arrived::in_any_order(group) };
            self.backend.submit_experts(&experts.ffn, &group).expect("the expert plan runs");
        }
    }

    /// Feeds them in ascending chunks, twice: to up a few at a time, in any order, then all of a
    /// chunk to down.
    fn run_halves(
        &mut self,
        ([up, down], n_inner): (&[Plan; 2], usize),
        mut arrived: Vec<ArrivedExpert<'_>>,
    ) {
        arrived.sort_by_key(|arrived| arrived.expert);
        let n_chunk_experts = self.rng.between(1, arrived.len().max(1));
        for chunk in arrived.chunks(n_chunk_experts) {
            let experts: Vec<ExpertIdx> = chunk.iter().map(|arrived| arrived.expert).collect();
            self.backend
                .sharding()
                .expect("it computes halves")
                .begin_chunk(&experts, n_inner)
                .expect("a wave begins");
            let mut shuffled = chunk.to_vec();
            self.rng.shuffle(&mut shuffled);
            for group in shuffled.chunks(self.rng.between(1, n_chunk_experts)) {
                let group = Arrived::in_any_order(group);
                self.backend.submit_experts(up, &group).expect("the first half runs");
            }
            let chunk = Arrived::ascending(chunk);
            self.backend.submit_experts(down, &chunk).expect("the second half runs");
        }
    }

    fn routes(&mut self) -> &Routes {
        self.backend.routes(Purpose::Compute).expect("routes are readable")
    }

    fn keep_routes(&mut self, tokens: &[usize]) {
        let routes = self.routes().clone();
        assert_eq!(routes.experts.len(), tokens.len() * routes.top_k, "all rows are routed");
        let weights = self.outcome.values.entry("route weights".to_owned()).or_default();
        for (row_idx, &token) in tokens.iter().enumerate() {
            let range = row_idx * routes.top_k..(row_idx + 1) * routes.top_k;
            weights.insert(token, routes.weights[range.clone()].to_vec());
            self.outcome.experts.insert(token, routes.experts[range].to_vec());
        }
    }

    fn keep_rows(&mut self, buffer: BufferId, tokens: &[usize]) {
        let spec = &self.case.workspace.buffers()[buffer.0];
        let rows = self.outcome.values.entry(spec.name.to_owned()).or_default();
        for (row_idx, &token) in tokens.iter().enumerate() {
            let mut row = vec![0.0; spec.n_cols];
            self.backend.read_row(buffer, row_idx, &mut row).expect("a row is readable");
            rows.insert(token, row);
        }
    }
}

/// Returns whether a token's logits are requested: those of about two of three are.
fn is_wanted(token: usize) -> bool {
    token % 3 != 1
}

/// The steps of a schedule.
pub(crate) fn steps(case: &OpCase, schedule: Schedule) -> Vec<Vec<SessionTokens>> {
    let lengths: Vec<usize> = case.sessions.iter().map(|session| session.n_tokens).collect();
    match schedule {
        Schedule::AtOnce => {
            vec![lengths.iter().enumerate().map(|(idx, &n)| (idx, 0..n)).collect()]
        }
        Schedule::OneByOne => {
            let longest = lengths.iter().copied().max().unwrap_or(0);
            let places = (0..longest).flat_map(|at| (0..lengths.len()).map(move |idx| (idx, at)));
            let places = places.filter(|&(session_idx, at)| at < lengths[session_idx]);
            places.map(|(session_idx, at)| vec![(session_idx, at..at + 1)]).collect()
        }
        Schedule::Random(seed) => random_steps(&lengths, &mut Rng::new(seed)),
    }
}

fn random_steps(lengths: &[usize], rng: &mut Rng) -> Vec<Vec<SessionTokens>> {
    let mut done = vec![0; lengths.len()];
    let mut steps = Vec::new();
    while done != lengths {
        let mut spans = Vec::new();
        for (session_idx, &length) in lengths.iter().enumerate() {
            let n = rng.between(0, (length - done[session_idx]).min(17));
            if n > 0 {
                spans.push((session_idx, done[session_idx]..done[session_idx] + n));
                done[session_idx] += n;
            }
        }
        rng.shuffle(&mut spans);
        if !spans.is_empty() {
            steps.push(spans);
        }
    }
    steps
}

/// Returns the squared difference divided by the square of the expected values; infinite if one
/// side is not finite and the other differs.
pub(crate) fn nmse<'a>(
    values: impl Iterator<Item = &'a f32>,
    expected: impl Iterator<Item = &'a f32>,
) -> f64 {
    let (mut difference, mut square) = (0.0, 0.0);
    for (&value, &expected) in values.zip(expected) {
        if value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan() {
            square += if expected.is_finite() { f64::from(expected).powi(2) } else { 0.0 };
            continue;
        }
        difference += (f64::from(value) - f64::from(expected)).powi(2);
        square += f64::from(expected).powi(2);
    }
    match (difference.is_nan(), difference > 0.0) {
        (true, _) => f64::INFINITY,
        (_, true) => difference / square,
        _ => 0.0,
    }
}
