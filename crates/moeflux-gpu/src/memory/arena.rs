//! Memory of session states: two buffers per layer, divided into pieces for the sessions.
//!
//! A piece is [`PIECE_POSITIONS`] positions of every layer that keeps positions; a copy is one
//! state of every recurrent layer. Keys and values (or latents and rotated keys) are stored as
//! `[position, head, channel]`, with channels padded to a multiple of four. A list per session
//! names its pieces, and kernels read it. **Invariant:** all layers have equally many pieces, and
//! no buffer is larger than a binding. Recorded commands are submitted before buffers change.

use moeflux::provider::error::Result;
use moeflux::provider::ids::LayerIdx;
use moeflux::provider::ops::{KvKind, LayerState, StateSpec};

use crate::device::Gpu;
use crate::memory::STORAGE;
use crate::memory::pieces::Pieces;
use crate::shader::PIECE_POSITIONS;

/// Initial pieces of an arena, if there is enough memory.
const N_PIECES_FIRST: usize = 8;
/// Inverse of the fraction of existing pieces that is allocated in advance.
const SPARE_SHARE: usize = 4;
/// Initial number of session lists.
const N_SEATS_FIRST: usize = 8;

/// Returns the distance between heads in position tables, in values.
#[must_use]
pub(crate) const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(4)
}

/// Layout of the values in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Heads of `head_dim` channels per position.
    Positions { n_heads: usize, head_dim: usize },
    /// A fixed number of values per copy, for any number of positions.
    Whole { n_values: usize },
}

impl Form {
    /// Returns the values of `n_positions` positions in the saved form.
    pub(crate) const fn saved_values(self, n_positions: usize) -> usize {
        match self {
            Self::Positions { n_heads, head_dim } => n_positions * n_heads * head_dim,
            Self::Whole { n_values } => n_values,
        }
    }

    /// Returns the values of `n_positions` positions on the device.
    pub(crate) const fn stored_values(self, n_positions: usize) -> usize {
        match self {
            Self::Positions { n_heads, head_dim } => n_positions * n_heads * padded(head_dim),
            Self::Whole { n_values } => n_values,
        }
    }

    /// Returns the bytes of a piece, or of a copy.
    const fn piece_bytes(self) -> u64 {
        (self.stored_values(PIECE_POSITIONS) * size_of::<f32>()) as u64
    }

    /// Returns the kind of pieces that the table is divided into.
    const fn kind(self) -> Kind {
        match self {
            Self::Positions { .. } => Kind::Positions,
            Self::Whole { .. } => Kind::Copies,
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

    /// Copies heads into padded form.
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

/// Contents of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// [`PIECE_POSITIONS`] positions of all layers that keep positions.
    Positions,
    /// A state of all recurrent layers.
    Copies,
}

/// One of a layer's two buffers.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) form: Form,
}

/// The two buffers of a layer.
#[derive(Debug)]
struct LayerMemory {
    /// Keys, latents, or inputs of the convolution; then values, rotated keys, or the delta state.
    tables: [Table; 2],
    bind_group: wgpu::BindGroup,
}

/// The layer states of some sessions.
///
/// It grows on demand. Allocated in full when a model is opened, it would take all memory that a
/// card has left for other programs, even if that is the CPU's memory or its size is unknown.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) spec: StateSpec,
    layers: Vec<LayerMemory>,
    positions: Pieces,
    copies: Pieces,
    /// The lists of pieces, `n_listed` words per seat.
    lists: wgpu::Buffer,
    n_listed: usize,
    /// Which seats are taken.
    seats: Vec<bool>,
}

impl Arena {
    pub(crate) fn new(gpu: &Gpu, spec: &StateSpec) -> Result<Self> {
        let lists = gpu.buffer("lists of sessions' pieces", 0, STORAGE)?;
        let table = |form| -> Result<Table> {
            Ok(Table { buffer: gpu.buffer("the state of sessions", 0, STORAGE)?, form })
        };
        let layer = |layer: &LayerState| -> Result<LayerMemory> {
            let [first, second] = forms_of(layer);
            let tables = [table(first)?, table(second)?];
            let bind_group = bound(gpu, &tables, &lists);
            Ok(LayerMemory { tables, bind_group })
        };
        let layers = spec.layers.iter().map(layer).collect::<Result<_>>()?;
        let (positions, copies) = (Pieces::default(), Pieces::default());
        let (spec, seats) = (spec.clone(), Vec::new());
        Ok(Self { spec, layers, positions, copies, lists, n_listed: 0, seats })
    }

    /// Returns the upper bound on pieces of a kind: the number that a binding holds for every
    /// layer.
    pub(crate) fn n_pieces_max(gpu: &Gpu, spec: &StateSpec, kind: Kind) -> usize {
        let forms = spec.layers.iter().flat_map(forms_of);
        let bytes = forms.filter(|form| form.kind() == kind).map(Form::piece_bytes);
        let n = bytes.map(|n_bytes| gpu.storage_bytes_max() / n_bytes.max(1)).min();
        usize::try_from(n.unwrap_or(u64::from(u32::MAX))).unwrap_or(usize::MAX)
    }

    /// Returns the bytes to book for a piece; for a piece of positions, only `n_positions` count.
    pub(crate) fn booked_bytes(&self, kind: Kind, n_positions: usize) -> u64 {
        match kind {
            Kind::Positions => self.spec.bytes_per_position(KvKind::F32) * n_positions as u64,
            Kind::Copies => self.spec.fixed_bytes(),
        }
    }

    /// Returns the bind group of a layer.
    pub(crate) fn bind_group(&self, layer: LayerIdx) -> &wgpu::BindGroup {
        &self.layers[layer.0].bind_group
    }

    pub(crate) fn tables(&self, layer: LayerIdx) -> &[Table; 2] {
        &self.layers[layer.0].tables
    }

    pub(crate) const fn pieces(&self, kind: Kind) -> &Pieces {
        match kind {
            Kind::Positions => &self.positions,
            Kind::Copies => &self.copies,
        }
    }

    pub(crate) const fn pieces_mut(&mut self, kind: Kind) -> &mut Pieces {
        match kind {
            Kind::Positions => &mut self.positions,
            Kind::Copies => &mut self.copies,
        }
    }

    /// Ensures `n` free pieces of a kind. Allocates more than needed, within `spare_bytes`, so that
    /// growth has a low amortised cost. A session that takes a spare piece books it.
    pub(crate) fn make_free(
        &mut self,
        gpu: &Gpu,
        (kind, n): (Kind, usize),
        spare_bytes: Option<u64>,
    ) -> Result<()> {
        let (len, n_free) = (self.pieces(kind).len(), self.pieces(kind).n_free());
        if n <= n_free {
            return Ok(());
        }
        let needed = len + n - n_free;
        let n_max = Self::n_pieces_max(gpu, &self.spec, kind);
        let wanted = needed.max(len + len / SPARE_SHARE).max(N_PIECES_FIRST).min(n_max);
        let more_bytes = self.booked_bytes(kind, PIECE_POSITIONS) * (wanted - needed) as u64;
        let has_spare = spare_bytes.is_none_or(|spare_bytes| more_bytes <= spare_bytes);
        if has_spare && wanted > needed && self.resize(gpu, kind, wanted).is_ok() {
            return Ok(());
        }
        self.resize(gpu, kind, needed)
    }

    /// Frees memory if most of it is unused at the end.
    pub(crate) fn trim(&mut self, gpu: &Gpu, kind: Kind) {
        let end = self.pieces(kind).end().max(N_PIECES_FIRST / 2);
        if 4 * end <= self.pieces(kind).len() {
            // If this fails, the buffers stay as they are.
            self.resize(gpu, kind, 2 * end).ok();
        }
    }

    /// Returns whether [`Arena::trim`] changes anything.
    pub(crate) fn is_loose(&self, kind: Kind) -> bool {
        4 * self.pieces(kind).end().max(N_PIECES_FIRST / 2) <= self.pieces(kind).len()
    }

    /// Resizes the buffers of a kind to `n` pieces, layer by layer, so that only one layer at a
    /// time has both old and new buffers. After a failure, some layers' buffers are larger than the
    /// others'.
    fn resize(&mut self, gpu: &Gpu, kind: Kind, n: usize) -> Result<()> {
        let n_kept = n.min(self.pieces(kind).len());
        // Removed pieces must not be handed out, even if only some layers lose them.
        self.pieces_mut(kind).resize(n_kept);
        for layer in &mut self.layers {
            if layer.tables[0].form.kind() != kind {
                continue;
            }
            let made = layer.tables.each_ref().map(|table| {
                let n_bytes = table.form.piece_bytes() * n as u64;
                gpu.buffer("the state of sessions", n_bytes, STORAGE)
            });
            let [first, second] = made;
            let mut encoder = gpu.device().create_command_encoder(&<_>::default());
            for (table, buffer) in layer.tables.iter_mut().zip([first?, second?]) {
                let kept_bytes = table.form.piece_bytes() * n_kept as u64;
                encoder.copy_buffer_to_buffer(&table.buffer, 0, &buffer, 0, kept_bytes);
                table.buffer = buffer;
            }
            gpu.queue().submit([encoder.finish()]);
            layer.bind_group = bound(gpu, &layer.tables, &self.lists);
            if n_kept > 0 {
                gpu.wait()?;
            }
        }
        self.pieces_mut(kind).resize(n);
        gpu.check()
    }

    /// Reserves space for the list of a session of at most `n_listed` pieces. Returns `true` if
    /// existing lists have moved and must be rewritten.
    pub(crate) fn take_seat(&mut self, gpu: &Gpu, n_listed: usize) -> Result<(usize, bool)> {
        let seat = self.seats.iter().position(|is_taken| !is_taken);
        if let Some(seat) = seat.filter(|_| n_listed <= self.n_listed) {
            self.seats[seat] = true;
            return Ok((seat, false));
        }
        let n_listed = n_listed.max(self.n_listed);
        let n_seats = match seat {
            Some(_) => self.seats.len(),
            None => (2 * self.seats.len()).max(N_SEATS_FIRST),
        };
        let n_bytes = (n_seats * n_listed * size_of::<u32>()) as u64;
        self.lists = gpu.buffer("lists of sessions' pieces", n_bytes, STORAGE)?;
        self.n_listed = n_listed;
        let seat = seat.unwrap_or(self.seats.len());
        self.seats.resize(n_seats, false);
        self.seats[seat] = true;
        for layer in &mut self.layers {
            layer.bind_group = bound(gpu, &layer.tables, &self.lists);
        }
        Ok((seat, true))
    }

    pub(crate) fn leave_seat(&mut self, seat: usize) {
        self.seats[seat] = false;
    }

    /// Returns the offset of a seat's list, in words.
    pub(crate) const fn list_at(&self, seat: usize) -> usize {
        seat * self.n_listed
    }

    /// Writes a session's list before all later submissions.
    pub(crate) fn write_list(&self, gpu: &Gpu, seat: usize, pieces: &[u32]) {
        let at_bytes = (self.list_at(seat) * size_of::<u32>()) as u64;
        gpu.write(&self.lists, at_bytes, bytemuck::cast_slice(pieces));
    }

    /// Copies pieces of a kind to others, in all layers.
    pub(crate) fn copy(&self, gpu: &Gpu, kind: Kind, pairs: &[(usize, usize)]) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let mut encoder = gpu.device().create_command_encoder(&<_>::default());
        for table in self.layers.iter().flat_map(|layer| &layer.tables) {
            let n_bytes = table.form.piece_bytes();
            if table.form.kind() != kind || n_bytes == 0 {
                continue;
            }
            for &(from, to) in pairs {
                let [from, to] = [from, to].map(|piece| piece as u64 * n_bytes);
                copy_within(gpu, &mut encoder, &table.buffer, [from, to, n_bytes])?;
            }
        }
        gpu.queue().submit([encoder.finish()]);
        gpu.check()
    }

    /// Zeroes a state of recurrent layers.
    pub(crate) fn clear_copy(&self, encoder: &mut wgpu::CommandEncoder, copy: usize) {
        for table in self.layers.iter().flat_map(|layer| &layer.tables) {
            let n_bytes = table.form.piece_bytes();
            if table.form.kind() == Kind::Copies && n_bytes > 0 {
                encoder.clear_buffer(&table.buffer, copy as u64 * n_bytes, Some(n_bytes));
            }
        }
    }
}

/// Copies within a buffer through a temporary one, since a command cannot copy within a buffer.
fn copy_within(
    gpu: &Gpu,
    encoder: &mut wgpu::CommandEncoder,
    buffer: &wgpu::Buffer,
    [from, to, n_bytes]: [u64; 3],
) -> Result<()> {
    let between = gpu.buffer("a piece that is copied", n_bytes, STORAGE)?;
    encoder.copy_buffer_to_buffer(buffer, from, &between, 0, n_bytes);
    encoder.copy_buffer_to_buffer(&between, 0, buffer, to, n_bytes);
    Ok(())
}

fn forms_of(layer: &LayerState) -> [Form; 2] {
    let positions = |n_heads, head_dim| Form::Positions { n_heads, head_dim };
    match *layer {
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
    }
}

fn bound(gpu: &Gpu, tables: &[Table; 2], lists: &wgpu::Buffer) -> wgpu::BindGroup {
    let buffers = [&tables[0].buffer, &tables[1].buffer, lists];
    let entries: Vec<_> = (0..)
        .zip(buffers)
        .map(|(binding, it)| wgpu::BindGroupEntry { binding, resource: it.as_entire_binding() })
        .collect();
    gpu.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &gpu.layouts().state,
        entries: &entries,
    })
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
