//! The state of sessions, layer by layer, in host memory.
//!
//! **Invariant:** all memory is booked; a recurrent layer's state changes only when it is
//! committed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};

use crate::backend::StatePart;
use crate::backend::host::buffers::Floats;
use crate::backend::kv::KvTable;
use crate::backend::session_budget::{Booking, SessionBudget};
use crate::error::{Error, Remedy, Result};
use crate::ids::{LayerIdx, StateId};
use crate::ops::{KvKind, LayerState, StateSpec};

/// State of one layer in one session.
#[derive(Debug)]
pub(crate) enum HostLayerState {
    /// Tables of values per position: keys and values, or latents and rotated keys.
    Positions {
        /// Keys or latents.
        first: KvTable,
        /// Values or rotated keys.
        second: KvTable,
        /// Index keys, if the layer chooses positions.
        index: Option<Box<KvTable>>,
    },
    /// Folded history, double-buffered: each commit swaps the state and the result of a step.
    Recurrent {
        /// The state and the result of the next step.
        halves: Box<[RecurrentState; 2]>,
        /// State stored at the marks of the last step.
        marks: Vec<RecurrentState>,
    },
}

/// Folded history of a recurrent layer at one moment.
#[derive(Debug)]
pub(crate) struct RecurrentState {
    /// The inputs kept for each convolution in turn, `[kept, channels]`, oldest first.
    pub conv: Floats,
    /// Head after head, in the layout of [`crate::ops::DeltaShape`].
    pub delta: Floats,
    _booking: Booking,
}

impl RecurrentState {
    /// Allocates zeroed state. Returns `None` if memory is short; callers check that beforehand.
    fn zeroed(state: &LayerState, budget: &Arc<SessionBudget>) -> Option<Self> {
        let LayerState::Recurrent { conv_values, delta_values } = *state else {
            unreachable!("only recurrent layers fold their history")
        };
        let booking = budget.book(state.fixed_bytes(), &String::new).ok()?;
        let (conv, delta) = (Floats::zeroed(conv_values)?, Floats::zeroed(delta_values)?);
        Some(Self { conv, delta, _booking: booking })
    }

    fn n_bytes(&self) -> usize {
        size_of_val::<[f32]>(&self.conv) + size_of_val::<[f32]>(&self.delta)
    }

    fn read(&self, target: &mut [u8]) {
        let (head, tail) = target.split_at_mut(size_of_val::<[f32]>(&self.conv));
        head.copy_from_slice(cast_slice::<f32, u8>(&self.conv));
        tail.copy_from_slice(cast_slice::<f32, u8>(&self.delta));
    }

    fn write(&mut self, source: &[u8]) {
        let (head, tail) = source.split_at(size_of_val::<[f32]>(&self.conv));
        cast_slice_mut::<f32, u8>(&mut self.conv).copy_from_slice(head);
        cast_slice_mut::<f32, u8>(&mut self.delta).copy_from_slice(tail);
    }
}

impl HostLayerState {
    /// Returns the bytes to allocate for these positions.
    fn missing_bytes(&self, positions: &Range<usize>) -> usize {
        match self {
            Self::Positions { first, second, index } => {
                let tables = [Some(first), Some(second), index.as_deref()];
                tables.into_iter().flatten().map(|table| table.missing_bytes(positions)).sum()
            }
            Self::Recurrent { .. } => 0,
        }
    }

    /// Returns the index keys of a layer that chooses positions.
    ///
    /// # Panics
    ///
    /// If the layer chooses none.
    #[must_use]
    pub(crate) fn index_keys(&self) -> &KvTable {
        let Self::Positions { index: Some(index), .. } = self else {
            unreachable!("this layer chooses no positions")
        };
        index
    }

    /// Returns the index keys, mutably.
    ///
    /// # Panics
    ///
    /// As [`HostLayerState::index_keys`].
    pub(crate) fn index_keys_mut(&mut self) -> &mut KvTable {
        let Self::Positions { index: Some(index), .. } = self else {
            unreachable!("this layer chooses no positions")
        };
        index
    }
}

/// State of all layers in one session.
#[derive(Debug)]
struct SessionState {
    spec: StateSpec,
    layers: Vec<HostLayerState>,
    /// Index of the half of recurrent layers that is the state.
    current: usize,
}

/// The states of all sessions.
#[derive(Debug, Default)]
pub(crate) struct HostStates {
    budget: Arc<SessionBudget>,
    n_created: u64,
    states: HashMap<StateId, SessionState>,
}

impl HostStates {
    /// Returns the budget from which all states are booked.
    #[must_use]
    pub(crate) fn budget(&self) -> &Arc<SessionBudget> {
        &self.budget
    }

    /// Creates a session of at most `context` positions, with keys and values stored as `kind`.
    /// Recurrent layers are zeroed; [`HostStates::reserve`] allocates positions.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory for recurrent layers is short.
    pub(crate) fn create(
        &mut self,
        spec: &StateSpec,
        kind: KvKind,
        context: usize,
    ) -> Result<StateId> {
        let table = |n_heads: usize, n_cols: usize| {
            KvTable::new(kind, (n_heads, n_cols / n_heads), context)
        };
        check_fixed(&self.budget, spec, 2)?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for layer in &spec.layers {
            layers.push(match *layer {
                LayerState::KeyValue { n_heads, k_cols, v_cols } => HostLayerState::Positions {
                    first: table(n_heads, k_cols),
                    second: table(n_heads, v_cols),
                    index: None,
                },
                LayerState::Latent { latent_cols, rope_cols, index_cols } => {
                    let index =
                        || Box::new(KvTable::new(kind.of_index_keys(), (1, index_cols), context));
                    HostLayerState::Positions {
                        first: table(1, latent_cols),
                        second: table(1, rope_cols),
                        index: (index_cols > 0).then(index),
                    }
                }
                LayerState::Recurrent { .. } => {
                    let half = || {
                        RecurrentState::zeroed(layer, &self.budget)
                            .ok_or_else(|| allocation_error(spec, 2))
                    };
                    let halves = Box::new([half()?, half()?]);
                    HostLayerState::Recurrent { halves, marks: Vec::new() }
                }
            });
        }
        Ok(self.insert(SessionState { spec: spec.clone(), layers, current: 0 }))
    }

    /// Creates a session with the same history. Both share the memory of positions until one of
    /// them writes there.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory for recurrent layers is short.
    pub(crate) fn fork(&mut self, id: StateId) -> Result<StateId> {
        let SessionState { spec, layers, current } = self.state(id);
        check_fixed(&self.budget, spec, 2)?;
        let budget = &self.budget;
        let fork = |(state, layer): (&LayerState, &HostLayerState)| match layer {
            HostLayerState::Positions { first, second, index } => {
                let index = index.as_ref().map(|index| Box::new(index.fork()));
                let (first, second) = (first.fork(), second.fork());
                Some(HostLayerState::Positions { first, second, index })
            }
            HostLayerState::Recurrent { halves, .. } => {
                let mut copy = RecurrentState::zeroed(state, budget)?;
                copy.conv.copy_from_slice(&halves[*current].conv);
                copy.delta.copy_from_slice(&halves[*current].delta);
                let halves = Box::new([copy, RecurrentState::zeroed(state, budget)?]);
                Some(HostLayerState::Recurrent { halves, marks: Vec::new() })
            }
        };
        let layers: Option<_> = spec.layers.iter().zip(layers).map(fork).collect();
        let layers = layers.ok_or_else(|| allocation_error(spec, 2))?;
        let state = SessionState { layers, spec: spec.clone(), current: 0 };
        Ok(self.insert(state))
    }

    fn insert(&mut self, state: SessionState) -> StateId {
        self.n_created += 1;
        let id = StateId(self.n_created);
        self.states.insert(id, state);
        id
    }

    /// Allocates memory for these positions, which are written next.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short; existing contents are kept.
    pub(crate) fn reserve(&mut self, id: StateId, positions: &Range<usize>) -> Result<()> {
        let budget = Arc::clone(&self.budget);
        let SessionState { layers, .. } = self.state_mut(id);
        let n_bytes: usize = layers.iter().map(|layer| layer.missing_bytes(positions)).sum();
        if n_bytes == 0 {
            return Ok(());
        }
        let what = || format!("positions {} to {} of a session", positions.start, positions.end);
        budget.check(n_bytes as u64, &what)?;
        check_available(n_bytes as u64, &what)?;
        let has_room = layers.iter_mut().all(|layer| match layer {
            HostLayerState::Positions { first, second, index } => [Some(first), Some(second)]
                .into_iter()
                .chain([index.as_deref_mut()])
                .flatten()
                .all(|table| table.reserve(positions, &budget)),
            HostLayerState::Recurrent { .. } => true,
        });
        if has_room { Ok(()) } else { Err(allocation_error_of(what(), n_bytes as u64)) }
    }

    /// Frees a session's memory.
    pub(crate) fn remove(&mut self, id: StateId) {
        self.states.remove(&id);
    }

    /// Zeroes the recurrent layers.
    pub(crate) fn reset(&mut self, id: StateId) {
        let SessionState { layers, current, .. } = self.state_mut(id);
        for layer in layers {
            if let HostLayerState::Recurrent { halves, .. } = layer {
                halves[*current].conv.fill(0.0);
                halves[*current].delta.fill(0.0);
            }
        }
    }

    /// Commits the recurrent state that a step wrote.
    pub(crate) fn commit(&mut self, id: StateId) {
        let state = self.state_mut(id);
        state.current = 1 - state.current;
    }

    /// Allocates memory for `n_marks` marks and discards earlier ones.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short; earlier marks are then lost as well.
    pub(crate) fn set_marks(&mut self, id: StateId, n_marks: usize) -> Result<()> {
        let budget = Arc::clone(&self.budget);
        let SessionState { spec, layers, .. } = self.state_mut(id);
        for layer in &mut *layers {
            if let HostLayerState::Recurrent { marks, .. } = layer {
                marks.clear();
            }
        }
        if n_marks == 0 {
            return Ok(());
        }
        check_fixed(&budget, spec, n_marks)?;
        for (state, layer) in spec.layers.iter().zip(layers) {
            let HostLayerState::Recurrent { marks, .. } = layer else { continue };
            for _ in 0..n_marks {
                let mark = RecurrentState::zeroed(state, &budget);
                marks.push(mark.ok_or_else(|| allocation_error(spec, n_marks))?);
            }
        }
        Ok(())
    }

    /// Returns one layer of a session.
    #[must_use]
    pub(crate) fn layer(&self, id: StateId, layer: LayerIdx) -> &HostLayerState {
        &self.state(id).layers[layer.0]
    }

    /// Returns one layer of a session, mutably.
    pub(crate) fn layer_mut(&mut self, id: StateId, layer: LayerIdx) -> &mut HostLayerState {
        &mut self.state_mut(id).layers[layer.0]
    }

    /// Returns the folded history of a recurrent layer.
    ///
    /// # Panics
    ///
    /// If the layer is not recurrent.
    #[must_use]
    pub(crate) fn recurrent(&self, id: StateId, layer: LayerIdx) -> &RecurrentState {
        let SessionState { layers, current, .. } = self.state(id);
        let HostLayerState::Recurrent { halves, .. } = &layers[layer.0] else {
            unreachable!("this layer folds no history")
        };
        &halves[*current]
    }

    /// Returns the folded history that a part of a step starts from, and the memory for its result.
    /// The first part starts from the state, each other part from the preceding mark; the last part
    /// writes the state to be committed, each other part its mark.
    ///
    /// # Panics
    ///
    /// If the layer is not recurrent, or if there is memory for fewer marks.
    pub(crate) fn state_before_and_after(
        &mut self,
        id: StateId,
        layer: LayerIdx,
        (part_idx, n_marks): (usize, usize),
    ) -> (&RecurrentState, &mut RecurrentState) {
        let SessionState { layers, current, .. } = self.state_mut(id);
        let HostLayerState::Recurrent { halves, marks } = &mut layers[layer.0] else {
            unreachable!("this layer folds no history")
        };
        assert!(n_marks <= marks.len(), "{n_marks} marks, and room for {}", marks.len());
        let [first, second] = &mut **halves;
        let (state, next) = if *current == 0 { (first, second) } else { (second, first) };
        let (before, after) = marks[..n_marks].split_at_mut(part_idx);
        (before.last().unwrap_or(state), after.first_mut().unwrap_or(next))
    }

    /// Returns the bytes of the folded history of all layers.
    #[must_use]
    pub(crate) fn fixed_bytes(&self, id: StateId) -> u64 {
        self.state(id).spec.fixed_bytes()
    }

    fn state(&self, id: StateId) -> &SessionState {
        self.states.get(&id).expect("a state lives as long as its session")
    }

    fn state_mut(&mut self, id: StateId) -> &mut SessionState {
        self.states.get_mut(&id).expect("a state lives as long as its session")
    }

    /// Returns the folded history that `part` denotes, if any.
    fn folded(&self, id: StateId, part: StatePart) -> Option<&RecurrentState> {
        let SessionState { layers, current, .. } = self.state(id);
        match (part, &layers[part.layer().0]) {
            (StatePart::Recurrent { .. }, HostLayerState::Recurrent { halves, .. }) => {
                Some(&halves[*current])
            }
            (StatePart::Marked { mark_idx, .. }, HostLayerState::Recurrent { marks, .. }) => {
                Some(&marks[mark_idx])
            }
            _ => None,
        }
    }

    /// Returns the bytes of a part.
    #[must_use]
    pub(crate) fn part_bytes(&self, id: StateId, part: StatePart) -> usize {
        match (part, self.layer(id, part.layer())) {
            (
                StatePart::Positions { n, .. },
                HostLayerState::Positions { first, second, index },
            ) => {
                let of_index = index.as_ref().map_or(0, |index| index.n_bytes(n));
                first.n_bytes(n) + second.n_bytes(n) + of_index
            }
            _ => self.folded(id, part).map_or(0, RecurrentState::n_bytes),
        }
    }

    /// Copies a part to `target`.
    pub(crate) fn read(&self, id: StateId, part: StatePart, target: &mut [u8]) {
        match (part, self.layer(id, part.layer())) {
            (
                StatePart::Positions { first: at, n, .. },
                HostLayerState::Positions { first, second, index },
            ) => {
                let (head, tail) = target.split_at_mut(first.n_bytes(n));
                let (middle, tail) = tail.split_at_mut(second.n_bytes(n));
                first.read((at, n), head);
                second.read((at, n), middle);
                if let Some(index) = index {
                    index.read((at, n), tail);
                }
            }
            _ => match self.folded(id, part) {
                Some(folded) => folded.read(target),
                None => assert!(target.is_empty(), "a layer has only its own kind of state"),
            },
        }
    }

    /// Overwrites a part. Data of recurrent layers becomes their state with [`HostStates::commit`].
    pub(crate) fn write(&mut self, id: StateId, part: StatePart, source: &[u8]) {
        let SessionState { layers, current, .. } = self.state_mut(id);
        match (part, &mut layers[part.layer().0]) {
            (
                StatePart::Positions { first: at, n, .. },
                HostLayerState::Positions { first, second, index },
            ) => {
                let (head, tail) = source.split_at(first.n_bytes(n));
                let (middle, tail) = tail.split_at(second.n_bytes(n));
                first.write((at, n), head);
                second.write((at, n), middle);
                if let Some(index) = index {
                    index.write((at, n), tail);
                }
            }
            (StatePart::Recurrent { .. }, HostLayerState::Recurrent { halves, .. }) => {
                halves[1 - *current].write(source);
            }
            _ => assert!(source.is_empty(), "a layer has only its own kind of state"),
        }
    }
}

impl StatePart {
    /// Returns the layer of the part.
    #[must_use]
    pub const fn layer(self) -> LayerIdx {
        match self {
            Self::Positions { layer, .. }
            | Self::Recurrent { layer }
            | Self::Marked { layer, .. } => layer,
        }
    }
}

/// Fails if there is no memory for `n_copies` copies of recurrent state.
fn check_fixed(budget: &SessionBudget, spec: &StateSpec, n_copies: usize) -> Result<()> {
    let n_bytes = spec.fixed_bytes().saturating_mul(n_copies as u64);
    let what = || name_of_copies(n_copies);
    budget.check(n_bytes, &what)?;
    check_available(n_bytes, &what)
}

fn name_of_copies(n_copies: usize) -> String {
    format!("{n_copies} copies of a session's recurrent state")
}

/// Fails if the system lacks the memory. With overcommit, a shortage shows only on the first write,
/// too late for an error.
fn check_available(n_bytes: u64, what: &dyn Fn() -> String) -> Result<()> {
    match moeflux_io::available_memory_bytes() {
        Some(available_bytes) if n_bytes > available_bytes => {
            Err(Error::no_room_in(available_bytes, what(), n_bytes, Remedy::FreeMemory))
        }
        _ => Ok(()),
    }
}

/// Returns the error for memory that the system did not provide although it seemed available.
fn allocation_error(spec: &StateSpec, n_copies: usize) -> Error {
    let n_bytes = spec.fixed_bytes().saturating_mul(n_copies as u64);
    allocation_error_of(name_of_copies(n_copies), n_bytes)
}

fn allocation_error_of(what: String, needed_bytes: u64) -> Error {
    Error::no_room(what, needed_bytes, Remedy::FreeMemory)
}
