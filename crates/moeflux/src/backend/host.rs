//! Buffers and states in host memory: what the reference and the CPU backend share.
//!
//! **Invariant:** sized at creation; nothing here computes.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use bytemuck::{cast_slice, cast_slice_mut};
use moeflux_io::AlignedBytes;

use crate::backend::StatePart;
use crate::error::{Error, Result};
use crate::ids::{BufferId, LayerIdx, StateId};
use crate::ops::{Heads, LayerState, StateSpec, Workspace};

/// The activation buffers of a model, `n_rows_max` rows each.
#[derive(Debug)]
pub struct Buffers {
    buffers: Vec<Buffer>,
}

/// One activation buffer.
#[derive(Debug, Default)]
pub struct Buffer {
    /// Columns of a row.
    pub n_cols: usize,
    /// Row after row.
    pub values: Vec<f32>,
}

impl Buffer {
    /// One row.
    #[must_use]
    pub fn row(&self, row_idx: usize) -> &[f32] {
        &self.values[row_idx * self.n_cols..][..self.n_cols]
    }

    /// One row, to write.
    pub fn row_mut(&mut self, row_idx: usize) -> &mut [f32] {
        &mut self.values[row_idx * self.n_cols..][..self.n_cols]
    }
}

impl Buffers {
    /// Zeroed buffers for steps of at most `n_rows_max` rows.
    #[must_use]
    pub fn new(workspace: &Workspace, n_rows_max: usize) -> Self {
        let buffers = workspace.buffers().iter().map(|spec| Buffer {
            n_cols: spec.n_cols,
            values: vec![0.0; spec.n_cols * spec.n_rows(n_rows_max)],
        });
        Self { buffers: buffers.collect() }
    }

    /// A buffer.
    #[must_use]
    pub fn get(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// A buffer, to write.
    pub fn get_mut(&mut self, id: BufferId) -> &mut Buffer {
        &mut self.buffers[id.0]
    }

    /// The values of one head of one row.
    #[must_use]
    pub fn head(&self, heads: &Heads, row_idx: usize, head_idx: usize) -> &[f32] {
        &self.get(heads.buffer).row(row_idx)[heads.cols(head_idx)]
    }

    /// The values of one head of one row, to write.
    pub fn head_mut(&mut self, heads: &Heads, row_idx: usize, head_idx: usize) -> &mut [f32] {
        &mut self.get_mut(heads.buffer).row_mut(row_idx)[heads.cols(head_idx)]
    }

    /// Takes a buffer out so that it can be written while others are read; give it back with
    /// [`Buffers::put`].
    #[must_use]
    pub fn take(&mut self, id: BufferId) -> Buffer {
        let buffer = &mut self.buffers[id.0];
        Buffer { n_cols: buffer.n_cols, values: std::mem::take(&mut buffer.values) }
    }

    /// Gives a buffer back.
    pub fn put(&mut self, id: BufferId, buffer: Buffer) {
        self.buffers[id.0] = buffer;
    }
}

/// Zeroed values whose pages the system hands out when they are first written: a long context costs
/// nothing until it is used.
#[derive(Debug)]
pub struct Floats(AlignedBytes);

impl Floats {
    /// `n_values` zeros, or `None` if there is no room.
    #[must_use]
    pub fn zeroed(n_values: usize) -> Option<Self> {
        n_values.checked_mul(size_of::<f32>()).and_then(AlignedBytes::zeroed).map(Self)
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        cast_slice(&self.0)
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        cast_slice_mut(&mut self.0)
    }
}

/// What one layer remembers of one session.
#[derive(Debug)]
pub enum LayerMemory {
    /// Two values-per-position tables: keys and values, or latents and rotated keys.
    Positions {
        /// Columns of `first`.
        first_cols: usize,
        /// `[context, first_cols]`: keys or latents.
        first: Floats,
        /// Columns of `second`.
        second_cols: usize,
        /// `[context, second_cols]`: values or rotated keys.
        second: Floats,
    },
    /// Folded history.
    Recurrent {
        /// `[taps - 1, channels]`, oldest first.
        conv: Floats,
        /// Head after head, each as [`crate::ops::DeltaShape`] says.
        delta: Floats,
    },
}

/// The states of all sessions.
#[derive(Debug, Default)]
pub struct States {
    n_created: u64,
    states: HashMap<StateId, Vec<LayerMemory>>,
}

impl States {
    /// Zeroed room for a session.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory for `context` positions cannot be had.
    pub fn create(&mut self, spec: &StateSpec, context: usize) -> Result<StateId> {
        let needed_bytes =
            spec.fixed_bytes().saturating_add(spec.bytes_per_position() * context as u64);
        let no_room = || Error::NoRoom {
            what: format!("a session of {context} positions"),
            needed_bytes,
            advice: "a shorter context needs less".to_owned(),
        };
        let mut layers = Vec::with_capacity(spec.layers.len());
        for layer in &spec.layers {
            layers.push(match *layer {
                LayerState::KeyValue { k_cols: first_cols, v_cols: second_cols }
                | LayerState::Latent { latent_cols: first_cols, rope_cols: second_cols } => {
                    LayerMemory::Positions {
                        first_cols,
                        first: zeroed(first_cols, context).ok_or_else(no_room)?,
                        second_cols,
                        second: zeroed(second_cols, context).ok_or_else(no_room)?,
                    }
                }
                LayerState::Recurrent { conv_rows, conv_cols, delta_values } => {
                    LayerMemory::Recurrent {
                        conv: zeroed(conv_rows, conv_cols).ok_or_else(no_room)?,
                        delta: zeroed(delta_values, 1).ok_or_else(no_room)?,
                    }
                }
            });
        }
        self.n_created += 1;
        let id = StateId(self.n_created);
        self.states.insert(id, layers);
        Ok(id)
    }

    /// Gives a session's room back.
    pub fn remove(&mut self, id: StateId) {
        self.states.remove(&id);
    }

    /// Zeroes the recurrent layers.
    pub fn reset(&mut self, id: StateId) {
        for layer in self.layers_mut(id) {
            if let LayerMemory::Recurrent { conv, delta } = layer {
                conv.fill(0.0);
                delta.fill(0.0);
            }
        }
    }

    /// One layer of a session.
    #[must_use]
    pub fn layer(&self, id: StateId, layer: LayerIdx) -> &LayerMemory {
        &self.states.get(&id).expect("a state lives as long as its session")[layer.0]
    }

    /// One layer of a session, to write.
    pub fn layer_mut(&mut self, id: StateId, layer: LayerIdx) -> &mut LayerMemory {
        &mut self.layers_mut(id)[layer.0]
    }

    fn layers_mut(&mut self, id: StateId) -> &mut Vec<LayerMemory> {
        self.states.get_mut(&id).expect("a state lives as long as its session")
    }

    /// Bytes of a part.
    #[must_use]
    pub fn part_bytes(&self, id: StateId, part: StatePart) -> usize {
        let values = match (part, self.layer(id, part.layer())) {
            (
                StatePart::Positions { n, .. },
                LayerMemory::Positions { first_cols, second_cols, .. },
            ) => n * (first_cols + second_cols),
            (StatePart::Recurrent { .. }, LayerMemory::Recurrent { conv, delta }) => {
                conv.len() + delta.len()
            }
            _ => 0,
        };
        values * size_of::<f32>()
    }

    /// Copies a part out.
    pub fn read(&self, id: StateId, part: StatePart, target: &mut [u8]) {
        match (part, self.layer(id, part.layer())) {
            (
                StatePart::Positions { first: at, n, .. },
                LayerMemory::Positions { first_cols, first, second_cols, second },
            ) => {
                let firsts = &first[at * first_cols..][..n * first_cols];
                let (head, tail) = target.split_at_mut(size_of_val(firsts));
                head.copy_from_slice(cast_slice(firsts));
                tail.copy_from_slice(cast_slice(&second[at * second_cols..][..n * second_cols]));
            }
            (StatePart::Recurrent { .. }, LayerMemory::Recurrent { conv, delta }) => {
                let (head, tail) = target.split_at_mut(size_of_val::<[f32]>(conv));
                head.copy_from_slice(cast_slice::<f32, u8>(conv));
                tail.copy_from_slice(cast_slice::<f32, u8>(delta));
            }
            _ => assert!(target.is_empty(), "a layer has only its own kind of state"),
        }
    }

    /// Overwrites a part.
    pub fn write(&mut self, id: StateId, part: StatePart, source: &[u8]) {
        match (part, self.layer_mut(id, part.layer())) {
            (
                StatePart::Positions { first: at, n, .. },
                LayerMemory::Positions { first_cols, first, second_cols, second },
            ) => {
                let firsts = &mut first[at * *first_cols..][..n * *first_cols];
                let (head, tail) = source.split_at(size_of_val(firsts));
                cast_slice_mut(firsts).copy_from_slice(head);
                let seconds = &mut second[at * *second_cols..][..n * *second_cols];
                cast_slice_mut(seconds).copy_from_slice(tail);
            }
            (StatePart::Recurrent { .. }, LayerMemory::Recurrent { conv, delta }) => {
                let (head, tail) = source.split_at(size_of_val::<[f32]>(conv));
                cast_slice_mut::<f32, u8>(conv).copy_from_slice(head);
                cast_slice_mut::<f32, u8>(delta).copy_from_slice(tail);
            }
            _ => assert!(source.is_empty(), "a layer has only its own kind of state"),
        }
    }
}

impl StatePart {
    /// Whose part.
    #[must_use]
    pub const fn layer(self) -> LayerIdx {
        match self {
            Self::Positions { layer, .. } | Self::Recurrent { layer } => layer,
        }
    }
}

fn zeroed(n_rows: usize, n_cols: usize) -> Option<Floats> {
    n_rows.checked_mul(n_cols).and_then(Floats::zeroed)
}
