//! Memory of session states: two buffers per layer, divided into pages for the sessions.
//!
//! A page is [`PAGE_POSITIONS`] positions of every layer that keeps positions; a copy is one
//! state of every recurrent layer. Keys and values (or latents and rotated keys) are stored as
//! `[position, head, channel]`, with channels padded to a multiple of four. A list per session
//! names its pages, and kernels read it. **Invariant:** all layers have equally many pages, and
//! no buffer is larger than a binding. Recorded commands are submitted before buffers change.

use moeflux::provider::error::Result;
use moeflux::provider::ids::LayerIdx;
use moeflux::provider::ops::{KvKind, LayerState, StateSpec};

use crate::device::Gpu;
use crate::memory::STORAGE;
use crate::memory::pages::PageAllocator;
use crate::shader::PAGE_POSITIONS;

/// Initial pages of an arena, if there is enough memory.
const N_PAGES_FIRST: usize = 8;
/// Inverse of the fraction of existing pages that is allocated in advance.
const SPARE_SHARE: usize = 4;
/// Initial number of session lists.
const N_LISTS_FIRST: usize = 8;

/// Returns the distance between heads in position tables, in values.
#[must_use]
pub(crate) const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(4)
}

/// Layout of the values in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableLayout {
    /// Heads of `head_dim` channels per position.
    Positions { n_heads: usize, head_dim: usize },
    /// A fixed number of values per copy, for any number of positions.
    Whole { n_values: usize },
}

impl TableLayout {
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

    /// Returns the bytes of a page, or of a copy.
    const fn page_bytes(self) -> u64 {
        (self.stored_values(PAGE_POSITIONS) * size_of::<f32>()) as u64
    }

    /// Returns the kind of pages that the table is divided into.
    const fn kind(self) -> PageKind {
        match self {
            Self::Positions { .. } => PageKind::Positions,
            Self::Whole { .. } => PageKind::Copies,
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

/// Contents of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// [`PAGE_POSITIONS`] positions of all layers that keep positions.
    Positions,
    /// A state of all recurrent layers.
    Copies,
}

/// One of the buffers that hold a layer's states.
#[derive(Debug)]
pub(crate) struct StateTable {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) layout: TableLayout,
}

/// The buffers of a layer.
#[derive(Debug)]
struct LayerStateBuffers {
    /// Keys, latents, or inputs of the convolution; then values, rotated keys, or the delta state;
    /// then index keys.
    tables: [StateTable; N_TABLES],
    groups: StateGroups,
}

/// The bind groups of a layer. Kernels bind no more than two tables, so that few buffers suffice.
#[derive(Debug)]
struct StateGroups {
    /// The first two tables.
    plain: wgpu::BindGroup,
    /// The index keys as the first table.
    index: wgpu::BindGroup,
}

/// Tables of a layer.
pub(crate) const N_TABLES: usize = 3;

/// The layer states of some sessions.
///
/// It grows on demand. Allocated in full when a model is opened, it would take all memory that a
/// card has left for other programs, even if that is the CPU's memory or its size is unknown.
#[derive(Debug)]
pub(crate) struct StateArena {
    pub(crate) spec: StateSpec,
    layers: Vec<LayerStateBuffers>,
    positions: PageAllocator,
    copies: PageAllocator,
    /// The lists of pages, `n_listed` words each.
    lists: wgpu::Buffer,
    n_listed: usize,
    /// Which lists are taken.
    taken_lists: Vec<bool>,
}

impl StateArena {
    pub(crate) fn new(gpu: &Gpu, spec: &StateSpec) -> Result<Self> {
        let lists = gpu.buffer("lists of sessions' pieces", 0, STORAGE)?;
        let table = |layout| -> Result<StateTable> {
            Ok(StateTable { buffer: gpu.buffer("the state of sessions", 0, STORAGE)?, layout })
        };
        let layer = |layer: &LayerState| -> Result<LayerStateBuffers> {
            let [first, second, third] = layouts_of(layer);
            let tables = [table(first)?, table(second)?, table(third)?];
            let groups = StateGroups::new(gpu, &tables, &lists);
            Ok(LayerStateBuffers { tables, groups })
        };
        let layers = spec.layers.iter().map(layer).collect::<Result<_>>()?;
        let (positions, copies) = (PageAllocator::default(), PageAllocator::default());
        let (spec, taken_lists) = (spec.clone(), Vec::new());
        Ok(Self { spec, layers, positions, copies, lists, n_listed: 0, taken_lists })
    }

    /// Returns the upper bound on pages of a kind: the number that a binding holds for every
    /// layer.
    pub(crate) fn n_pages_max(gpu: &Gpu, spec: &StateSpec, kind: PageKind) -> usize {
        let layouts = spec.layers.iter().flat_map(layouts_of);
        let bytes = layouts.filter(|layout| layout.kind() == kind).map(TableLayout::page_bytes);
        let n = bytes.map(|n_bytes| gpu.storage_bytes_max() / n_bytes.max(1)).min();
        usize::try_from(n.unwrap_or(u64::from(u32::MAX))).unwrap_or(usize::MAX)
    }

    /// Returns the bytes to book for a page; for a page of positions, only `n_positions` count.
    pub(crate) fn booked_bytes(&self, kind: PageKind, n_positions: usize) -> u64 {
        match kind {
            PageKind::Positions => self.spec.bytes_per_position(KvKind::F32) * n_positions as u64,
            PageKind::Copies => self.spec.fixed_bytes(),
        }
    }

    /// Returns the bind group of a layer.
    pub(crate) fn bind_group(&self, layer: LayerIdx) -> &wgpu::BindGroup {
        &self.layers[layer.0].groups.plain
    }

    /// Returns the bind group of a layer with its index keys as the first table.
    pub(crate) fn index_group(&self, layer: LayerIdx) -> &wgpu::BindGroup {
        &self.layers[layer.0].groups.index
    }

    pub(crate) fn tables(&self, layer: LayerIdx) -> &[StateTable; N_TABLES] {
        &self.layers[layer.0].tables
    }

    pub(crate) const fn pages(&self, kind: PageKind) -> &PageAllocator {
        match kind {
            PageKind::Positions => &self.positions,
            PageKind::Copies => &self.copies,
        }
    }

    pub(crate) const fn pages_mut(&mut self, kind: PageKind) -> &mut PageAllocator {
        match kind {
            PageKind::Positions => &mut self.positions,
            PageKind::Copies => &mut self.copies,
        }
    }

    /// Ensures `n` free pages of a kind. Allocates more than needed, within `spare_bytes`, so that
    /// growth has a low amortised cost. A session that takes a spare page books it.
    pub(crate) fn ensure_free(
        &mut self,
        gpu: &Gpu,
        (kind, n): (PageKind, usize),
        spare_bytes: Option<u64>,
    ) -> Result<()> {
        let (len, n_free) = (self.pages(kind).len(), self.pages(kind).n_free());
        if n <= n_free {
            return Ok(());
        }
        let needed = len + n - n_free;
        let n_max = Self::n_pages_max(gpu, &self.spec, kind);
        let wanted = needed.max(len + len / SPARE_SHARE).max(N_PAGES_FIRST).min(n_max);
        let more_bytes = self.booked_bytes(kind, PAGE_POSITIONS) * (wanted - needed) as u64;
        let has_spare = spare_bytes.is_none_or(|spare_bytes| more_bytes <= spare_bytes);
        if has_spare && wanted > needed && self.resize(gpu, kind, wanted).is_ok() {
            return Ok(());
        }
        self.resize(gpu, kind, needed)
    }

    /// Frees memory if most of it is unused at the end.
    pub(crate) fn trim(&mut self, gpu: &Gpu, kind: PageKind) {
        let end = self.pages(kind).end().max(N_PAGES_FIRST / 2);
        if 4 * end <= self.pages(kind).len() {
            // If this fails, the buffers stay as they are.
            self.resize(gpu, kind, 2 * end).ok();
        }
    }

    /// Returns whether [`StateArena::trim`] changes anything.
    pub(crate) fn can_trim(&self, kind: PageKind) -> bool {
        4 * self.pages(kind).end().max(N_PAGES_FIRST / 2) <= self.pages(kind).len()
    }

    /// Resizes the buffers of a kind to `n` pages, layer by layer, so that only one layer at a
    /// time has both old and new buffers. After a failure, some layers' buffers are larger than the
    /// others'.
    fn resize(&mut self, gpu: &Gpu, kind: PageKind, n: usize) -> Result<()> {
        let n_kept = n.min(self.pages(kind).len());
        // Removed pages must not be handed out, even if only some layers lose them.
        self.pages_mut(kind).resize(n_kept);
        for layer in &mut self.layers {
            if layer.tables[0].layout.kind() != kind {
                continue;
            }
            let made = layer.tables.each_ref().map(|table| {
                let n_bytes = table.layout.page_bytes() * n as u64;
                gpu.buffer("the state of sessions", n_bytes, STORAGE)
            });
            let [first, second, third] = made;
            let mut encoder = gpu.device().create_command_encoder(&<_>::default());
            for (table, buffer) in layer.tables.iter_mut().zip([first?, second?, third?]) {
                let kept_bytes = table.layout.page_bytes() * n_kept as u64;
                if kept_bytes > 0 {
                    encoder.copy_buffer_to_buffer(&table.buffer, 0, &buffer, 0, kept_bytes);
                }
                table.buffer = buffer;
            }
            gpu.queue().submit([encoder.finish()]);
            layer.groups = StateGroups::new(gpu, &layer.tables, &self.lists);
            if n_kept > 0 {
                gpu.wait()?;
            }
        }
        self.pages_mut(kind).resize(n);
        gpu.check()
    }

    /// Reserves space for the list of a session of at most `n_listed` pages. Returns `true` if
    /// existing lists have moved and must be rewritten.
    pub(crate) fn take_list(&mut self, gpu: &Gpu, n_listed: usize) -> Result<(usize, bool)> {
        let list = self.taken_lists.iter().position(|is_taken| !is_taken);
        if let Some(list) = list.filter(|_| n_listed <= self.n_listed) {
            self.taken_lists[list] = true;
            return Ok((list, false));
        }
        let n_listed = n_listed.max(self.n_listed);
        let n_lists = match list {
            Some(_) => self.taken_lists.len(),
            None => (2 * self.taken_lists.len()).max(N_LISTS_FIRST),
        };
        let n_bytes = (n_lists * n_listed * size_of::<u32>()) as u64;
        self.lists = gpu.buffer("lists of sessions' pieces", n_bytes, STORAGE)?;
        self.n_listed = n_listed;
        let list = list.unwrap_or(self.taken_lists.len());
        self.taken_lists.resize(n_lists, false);
        self.taken_lists[list] = true;
        for layer in &mut self.layers {
            layer.groups = StateGroups::new(gpu, &layer.tables, &self.lists);
        }
        Ok((list, true))
    }

    pub(crate) fn release_list(&mut self, list: usize) {
        self.taken_lists[list] = false;
    }

    /// Returns the offset of a list, in words.
    pub(crate) const fn list_at(&self, list: usize) -> usize {
        list * self.n_listed
    }

    /// Writes a session's list before all later submissions.
    pub(crate) fn write_list(&self, gpu: &Gpu, list: usize, pages: &[u32]) {
        let at_bytes = (self.list_at(list) * size_of::<u32>()) as u64;
        gpu.write(&self.lists, at_bytes, bytemuck::cast_slice(pages));
    }

    /// Copies pages of a kind to others, in all layers.
    pub(crate) fn copy(&self, gpu: &Gpu, kind: PageKind, pairs: &[(usize, usize)]) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let mut encoder = gpu.device().create_command_encoder(&<_>::default());
        for table in self.layers.iter().flat_map(|layer| &layer.tables) {
            let n_bytes = table.layout.page_bytes();
            if table.layout.kind() != kind || n_bytes == 0 {
                continue;
            }
            for &(from, to) in pairs {
                let [from, to] = [from, to].map(|page| page as u64 * n_bytes);
                copy_within(gpu, &mut encoder, &table.buffer, [from, to, n_bytes])?;
            }
        }
        gpu.queue().submit([encoder.finish()]);
        gpu.check()
    }

    /// Zeroes a state of recurrent layers.
    pub(crate) fn clear_copy(&self, encoder: &mut wgpu::CommandEncoder, copy: usize) {
        for table in self.layers.iter().flat_map(|layer| &layer.tables) {
            let n_bytes = table.layout.page_bytes();
            if table.layout.kind() == PageKind::Copies && n_bytes > 0 {
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

fn layouts_of(layer: &LayerState) -> [TableLayout; N_TABLES] {
    let positions = |n_heads, head_dim| TableLayout::Positions { n_heads, head_dim };
    match *layer {
        LayerState::KeyValue { n_heads, k_cols, v_cols } => {
            let [k, v] = [k_cols, v_cols].map(|n_cols| positions(n_heads, n_cols / n_heads));
            [k, v, positions(1, 0)]
        }
        LayerState::Latent { latent_cols, rope_cols, index_cols } => {
            [latent_cols, rope_cols, index_cols].map(|n_cols| positions(1, n_cols))
        }
        LayerState::Recurrent { conv_values, delta_values } => {
            let whole = |n_values| TableLayout::Whole { n_values };
            [whole(conv_values), whole(delta_values), whole(0)]
        }
    }
}

impl StateGroups {
    fn new(
        gpu: &Gpu,
        [first, second, index]: &[StateTable; N_TABLES],
        lists: &wgpu::Buffer,
    ) -> Self {
        Self {
            plain: bind(gpu, [&first.buffer, &second.buffer, lists]),
            index: bind(gpu, [&index.buffer, &second.buffer, lists]),
        }
    }
}

fn bind(gpu: &Gpu, buffers: [&wgpu::Buffer; 3]) -> wgpu::BindGroup {
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
        let layout = TableLayout::Positions { n_heads: 2, head_dim: 3 };
        assert_eq!((layout.saved_values(2), layout.stored_values(2)), (12, 16));
        let stored: Vec<f32> = (0_u8..16).map(f32::from).collect();
        let mut saved = vec![0.0; 12];
        layout.pack(&stored, &mut saved);
        assert_eq!(saved, [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0, 12.0, 13.0, 14.0]);
        let mut back = vec![-1.0; 16];
        layout.unpack(&saved, &mut back);
        assert_eq!(back[..8], [0.0, 1.0, 2.0, -1.0, 4.0, 5.0, 6.0, -1.0]);
    }
}
