//! What layers remember of sessions, in two buffers per layer and session.
//!
//! Keys and values (or latents and rotated keys) lie as `[position, head, channel]`, with channels
//! padded to a multiple of four; recurrent layers as on the host, twice: a step reads one
//! copy and writes the other, and further copies at its marks. **Invariant:** what is read out has
//! the host backends' form, without padding: `[position, head, channel]` of each table in turn.

use std::collections::HashMap;
use std::sync::Arc;

use moeflux::provider::backend::StatePart;
use moeflux::provider::backend::room::{Booking, Room};
use moeflux::provider::error::{Error, Remedy, Result};
use moeflux::provider::ids::{LayerIdx, StateId};
use moeflux::provider::ops::{KvKind, LayerState, StateSpec};

use crate::device::Gpu;
use crate::memory::STORAGE;

/// Values from one head to the next in tables of positions.
#[must_use]
pub(crate) const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(4)
}

/// One of a layer's two buffers.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) form: Form,
}

impl Table {
    /// One copy of what is kept whatever the number of positions.
    const fn copy(&self, copy_idx: usize, n_values: usize) -> Stretch<'_> {
        let first_stored = copy_idx * n_values;
        Stretch { table: self, first_stored, n_stored: n_values, n_saved: n_values }
    }

    /// Whether it is no table of positions.
    pub(crate) const fn is_whole(&self) -> bool {
        matches!(self.form, Form::Whole { .. })
    }
}

/// How values lie in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Per position: heads of so many channels.
    Positions { n_heads: usize, head_dim: usize },
    /// So many values in each copy, whatever the number of positions.
    Whole { n_values: usize },
}

impl Form {
    /// Values of so many positions as saved.
    const fn saved_values(self, n_positions: usize) -> usize {
        match self {
            Self::Positions { n_heads, head_dim } => n_positions * n_heads * head_dim,
            Self::Whole { n_values } => n_values,
        }
    }

    /// Values of so many positions on the device.
    pub(crate) const fn stored_values(self, n_positions: usize) -> usize {
        match self {
            Self::Positions { n_heads, head_dim } => n_positions * n_heads * padded(head_dim),
            Self::Whole { n_values } => n_values,
        }
    }

    /// Values of a buffer with room for so many positions and marks.
    const fn buffer_values(self, n_positions: usize, n_marks: usize) -> usize {
        match self {
            Self::Positions { .. } => self.stored_values(n_positions),
            Self::Whole { n_values } => (2 + n_marks) * n_values,
        }
    }

    /// Copies heads without their padding.
    pub(crate) fn pack(self, stored: &[f32], saved: &mut [f32]) {
        match self {
            Self::Positions { head_dim, .. } => {
                let heads = stored.chunks_exact(padded(head_dim));
                for (saved, stored) in saved.chunks_exact_mut(head_dim).zip(heads) {
                    saved.copy_from_slice(&stored[..head_dim]);
                }
            }
            Self::Whole { .. } => saved.copy_from_slice(stored),
        }
    }

    /// Copies heads to where padding follows each.
    pub(crate) fn unpack(self, saved: &[f32], stored: &mut [f32]) {
        match self {
            Self::Positions { head_dim, .. } => {
                let heads = stored.chunks_exact_mut(padded(head_dim));
                for (saved, stored) in saved.chunks_exact(head_dim).zip(heads) {
                    stored[..head_dim].copy_from_slice(saved);
                }
            }
            Self::Whole { .. } => stored.copy_from_slice(saved),
        }
    }
}

/// What one layer remembers of one session.
#[derive(Debug)]
pub(crate) struct LayerMemory {
    /// Keys, latents, or inputs of the convolution; then values, rotated keys, or the delta state.
    pub(crate) tables: [Table; 2],
    pub(crate) bind_group: wgpu::BindGroup,
}

impl LayerMemory {
    /// Whether it is a recurrent layer's.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.tables[0].is_whole()
    }
}

/// A stretch of a table, as it is saved and as it lies on the device, in values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch<'a> {
    pub(crate) table: &'a Table,
    pub(crate) first_stored: usize,
    pub(crate) n_stored: usize,
    pub(crate) n_saved: usize,
}

/// The states of all sessions.
#[derive(Debug, Default)]
pub(crate) struct States {
    room: Arc<Room>,
    n_created: u64,
    states: HashMap<StateId, State>,
}

/// What all layers remember of one session.
#[derive(Debug)]
struct State {
    spec: StateSpec,
    context: usize,
    layers: Vec<LayerMemory>,
    /// Which of the first two copies in recurrent layers' buffers is the state.
    half: u32,
    /// Copies behind those.
    n_marks: usize,
    _booking: Booking,
    marks_booking: Option<Booking>,
}

impl States {
    /// What all of them are booked from.
    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Zeroed room for a session.
    pub(crate) fn create(
        &mut self,
        gpu: &Gpu,
        spec: &StateSpec,
        context: usize,
    ) -> Result<StateId> {
        let needed_bytes =
            2 * spec.fixed_bytes() + spec.bytes_per_position(KvKind::F32) * context as u64;
        let what = || format!("a session of {context} positions on {}", gpu.facts().name);
        let booking = self.room.book(needed_bytes, &what)?;
        let layers = spec.layers.iter().map(|layer| memory_of(gpu, layer, (context, 0)));
        let layers = layers.collect::<Result<Vec<_>>>().map_err(|error| match error {
            Error::NoRoom { .. } => Error::no_room(what(), needed_bytes, Remedy::ShorterContext),
            other => other,
        })?;
        self.n_created += 1;
        let id = StateId(self.n_created);
        let spec = spec.clone();
        let (half, n_marks, marks_booking) = (0, 0, None);
        let _booking = booking;
        let state = State { spec, context, layers, half, n_marks, _booking, marks_booking };
        self.states.insert(id, state);
        Ok(id)
    }

    /// Makes room for so many marks; what the first two copies hold stays.
    pub(crate) fn set_marks(
        &mut self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        (id, n_marks): (StateId, usize),
    ) -> Result<()> {
        let room = Arc::clone(&self.room);
        let State { spec, context, layers, n_marks: n_before, marks_booking, .. } =
            self.states.get_mut(&id).expect("a state lives as long as its session");
        if n_marks == *n_before || !spec.is_recurrent() {
            return Ok(());
        }
        drop(marks_booking.take());
        let what = || format!("{n_marks} copies of a session's recurrent state");
        let booking = room.book(n_marks as u64 * spec.fixed_bytes(), &what)?;
        for (layer, memory) in spec.layers.iter().zip(layers).filter(|it| it.0.is_recurrent()) {
            let made = memory_of(gpu, layer, (*context, n_marks))?;
            for (from, to) in memory.tables.iter().zip(&made.tables) {
                let n_bytes = from.buffer.size().min(to.buffer.size());
                encoder.copy_buffer_to_buffer(&from.buffer, 0, &to.buffer, 0, n_bytes);
            }
            *memory = made;
        }
        (*n_before, *marks_booking) = (n_marks, Some(booking));
        Ok(())
    }

    /// Room for a session like another, and the commands that copy its memory there.
    pub(crate) fn fork(
        &mut self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        id: StateId,
    ) -> Result<StateId> {
        let State { spec, context, half, .. } = self.state(id);
        let (spec, context, half) = (spec.clone(), *context, *half);
        let fork = self.create(gpu, &spec, context)?;
        for (from, to) in self.layers(id).iter().zip(self.layers(fork)) {
            for (from, to) in from.tables.iter().zip(&to.tables) {
                let n_bytes = from.buffer.size().min(to.buffer.size());
                encoder.copy_buffer_to_buffer(&from.buffer, 0, &to.buffer, 0, n_bytes);
            }
        }
        self.states.get_mut(&fork).expect("it was made just now").half = half;
        Ok(fork)
    }

    pub(crate) fn remove(&mut self, id: StateId) {
        self.states.remove(&id);
    }

    pub(crate) fn layers(&self, id: StateId) -> &[LayerMemory] {
        &self.state(id).layers
    }

    /// Which of the first two copies in recurrent layers' buffers is the state.
    pub(crate) fn half(&self, id: StateId) -> u32 {
        self.state(id).half
    }

    /// Copies of recurrent layers' states that a step may leave behind its marks.
    pub(crate) fn n_marks(&self, id: StateId) -> usize {
        self.state(id).n_marks
    }

    /// Makes what a step wrote the state.
    pub(crate) fn commit(&mut self, id: StateId) {
        let state = self.states.get_mut(&id).expect("a state lives as long as its session");
        state.half = 1 - state.half;
    }

    fn state(&self, id: StateId) -> &State {
        self.states.get(&id).expect("a state lives as long as its session")
    }

    pub(crate) fn layer(&self, id: StateId, layer: LayerIdx) -> &LayerMemory {
        &self.layers(id)[layer.0]
    }

    /// Where a part lies: none of a layer of another kind.
    pub(crate) fn stretches(&self, id: StateId, part: StatePart) -> Vec<Stretch<'_>> {
        self.stretches_in(self.half(id), id, part)
    }

    /// Where a part goes: of recurrent layers what becomes the state.
    pub(crate) fn targets(&self, id: StateId, part: StatePart) -> Vec<Stretch<'_>> {
        self.stretches_in(1 - self.half(id), id, part)
    }

    fn stretches_in(&self, half: u32, id: StateId, part: StatePart) -> Vec<Stretch<'_>> {
        let tables = &self.layer(id, part.layer()).tables;
        let stretches = tables.iter().filter_map(|table| match (part, table.form) {
            (StatePart::Positions { first, n, .. }, Form::Positions { .. }) => Some(Stretch {
                table,
                first_stored: table.form.stored_values(first),
                n_stored: table.form.stored_values(n),
                n_saved: table.form.saved_values(n),
            }),
            (StatePart::Recurrent { .. }, Form::Whole { n_values }) => {
                Some(table.copy(half as usize, n_values))
            }
            (StatePart::Marked { mark_idx, .. }, Form::Whole { n_values }) => {
                Some(table.copy(2 + mark_idx, n_values))
            }
            _ => None,
        });
        stretches.collect()
    }
}

fn memory_of(
    gpu: &Gpu,
    layer: &LayerState,
    (context, n_marks): (usize, usize),
) -> Result<LayerMemory> {
    let positions = |n_heads, head_dim| Form::Positions { n_heads, head_dim };
    let forms = match *layer {
        LayerState::KeyValue { n_heads, k_cols, v_cols } => {
            [positions(n_heads, k_cols / n_heads), positions(n_heads, v_cols / n_heads)]
        }
        LayerState::Latent { latent_cols, rope_cols } => {
            [positions(1, latent_cols), positions(1, rope_cols)]
        }
        LayerState::Recurrent { conv_rows, conv_cols, delta_values } => {
            let whole = |n_values| Form::Whole { n_values };
            [whole(conv_rows * conv_cols), whole(delta_values)]
        }
    };
    let table = |form: Form| -> Result<Table> {
        let n_bytes = (form.buffer_values(context, n_marks) * size_of::<f32>()) as u64;
        Ok(Table { buffer: gpu.buffer("the state of a session", n_bytes, STORAGE)?, form })
    };
    let tables = [table(forms[0])?, table(forms[1])?];
    let entries = [0, 1].map(|binding| wgpu::BindGroupEntry {
        binding,
        resource: tables[if binding == 0 { 0 } else { 1 }].buffer.as_entire_binding(),
    });
    let bind_group = gpu.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &gpu.layouts().state,
        entries: &entries,
    });
    Ok(LayerMemory { tables, bind_group })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_not_saved() {
        let form = Form::Positions { n_heads: 2, head_dim: 3 };
        assert_eq!((form.saved_values(2), form.stored_values(2)), (12, 16));
        let stored: Vec<f32> = (0_u8..16).map(f32::from).collect();
        let mut saved = vec![0.0; 12];
        form.pack(&stored, &mut saved);
        assert_eq!(saved, [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0, 12.0, 13.0, 14.0]);
        let mut back = vec![-1.0; 16];
        form.unpack(&saved, &mut back);
        assert_eq!(back[..8], [0.0, 1.0, 2.0, -1.0, 4.0, 5.0, 6.0, -1.0]);
    }
}
