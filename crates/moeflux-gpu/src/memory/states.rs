//! States of sessions: the pages of an arena that each owns.
//!
//! Sessions of one arena can share a dispatch. An arena accepts sessions as long as all their
//! contexts would fit its bindings; then another one is created. Recurrent layers have two copies
//! of a session's state: a step reads one and writes the other, and further copies at its marks.
//! **Invariant:** saved states have the form of the host backends, without padding:
//! `[position, head, channel]` of each table in turn. A page shared by forks is not written.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use moeflux::provider::backend::StatePart;
use moeflux::provider::backend::room::SessionBudget;
use moeflux::provider::error::{Error, Remedy, Result};
use moeflux::provider::ids::{LayerIdx, StateId};
use moeflux::provider::ops::{KvKind, StateSpec};

use crate::device::Gpu;
use crate::memory::arena::{N_TABLES, PageKind, StateArena, StateTable, TableLayout};
use crate::params::narrow;
use crate::shader::PAGE_POSITIONS;

/// A range of a table, in positions or copies from the table's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateRange<'a> {
    pub(crate) table: &'a StateTable,
    first: usize,
    n: usize,
}

impl StateRange<'_> {
    /// Returns the offset on the device, in values.
    pub(crate) const fn first_stored(&self) -> usize {
        match self.table.layout {
            TableLayout::Positions { .. } => self.table.layout.stored_values(self.first),
            TableLayout::Whole { n_values } => self.first * n_values,
        }
    }

    /// Returns the number of values on the device.
    pub(crate) const fn n_stored(&self) -> usize {
        self.table.layout.stored_values(self.n)
    }

    /// Returns the number of values in the saved form.
    pub(crate) const fn n_saved(&self) -> usize {
        self.table.layout.saved_values(self.n)
    }
}

/// Location of a session, or of a part of it between marks, for kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionLocation {
    /// Arena, the same for sessions that share buffers.
    pub(crate) arena: usize,
    /// First word of the list of its pages.
    pub(crate) list_at: u32,
    /// Copies of the recurrent layers' states that are read and written.
    pub(crate) read_copy: u32,
    pub(crate) written_copy: u32,
}

/// The states of all sessions.
#[derive(Debug, Default)]
pub(crate) struct DeviceStates {
    budget: Arc<SessionBudget>,
    n_created: u64,
    states: HashMap<StateId, DeviceSessionState>,
    n_arenas: usize,
    arenas: BTreeMap<usize, StateArena>,
}

/// All layers' states of one session.
#[derive(Debug)]
struct DeviceSessionState {
    arena: usize,
    list: usize,
    context: usize,
    /// Pages of positions.
    pages: Vec<usize>,
    /// Copies of the recurrent layers' state, if there are any: two, and those at marks.
    copies: Vec<usize>,
    /// Which of the first two copies is the current state.
    current: usize,
}

impl DeviceStates {
    /// Returns the room that all states are booked from.
    pub(crate) fn budget(&self) -> &Arc<SessionBudget> {
        &self.budget
    }

    /// Creates a session of at most `context` positions, with zeroed recurrent layers. All recorded
    /// commands must have been submitted.
    pub(crate) fn create(
        &mut self,
        gpu: &Gpu,
        spec: &StateSpec,
        context: usize,
    ) -> Result<StateId> {
        let n_pages = context.div_ceil(PAGE_POSITIONS);
        if n_pages > StateArena::n_pages_max(gpu, spec, PageKind::Positions) {
            let needed_bytes = spec.bytes_per_position(KvKind::F32) * context as u64;
            let what = format!("a session of {context} positions on {}", gpu.facts().name);
            return Err(Error::no_room(what, needed_bytes, Remedy::ShorterContext));
        }
        let has_room = |it: &StateArena, others: usize| {
            let n_max = |kind| StateArena::n_pages_max(gpu, spec, kind);
            let copies = it.pages(PageKind::Copies);
            let n_copies = copies.len() - copies.n_free();
            it.spec == *spec
                && others + n_pages <= n_max(PageKind::Positions)
                && n_copies + 2 <= n_max(PageKind::Copies)
        };
        let found = self.arenas.iter().find(|(idx, it)| has_room(it, self.n_promised(**idx)));
        let arena = match found {
            Some((arena, _)) => *arena,
            None => {
                self.n_arenas += 1;
                self.arenas.insert(self.n_arenas, StateArena::new(gpu, spec)?);
                self.n_arenas
            }
        };
        let created = self.create_in(gpu, arena, context);
        let created = created.and_then(|id| self.reset(gpu, id).map(|()| id));
        if created.is_err() {
            self.close(gpu, arena);
        }
        created
    }

    /// Returns the pages needed for the full contexts of an arena's sessions.
    fn n_promised(&self, arena: usize) -> usize {
        let own = self.states.values().filter(|state| state.arena == arena);
        own.map(|state| state.context.div_ceil(PAGE_POSITIONS)).sum()
    }

    fn create_in(&mut self, gpu: &Gpu, arena: usize, context: usize) -> Result<StateId> {
        let is_recurrent = self.arenas[&arena].spec.is_recurrent();
        let copies = if is_recurrent {
            let what = "2 copies of a session's recurrent state".to_owned();
            self.take(gpu, arena, (PageKind::Copies, &[0; 2]), &what)?
        } else {
            Vec::new()
        };
        let own = self.arenas.get_mut(&arena).expect("an arena is there as long as it is used");
        let (list, have_moved) = match own.take_list(gpu, context.div_ceil(PAGE_POSITIONS)) {
            Ok(taken) => taken,
            Err(error) => {
                copies.iter().for_each(|copy| own.pages_mut(PageKind::Copies).give_back(*copy));
                return Err(error);
            }
        };
        self.n_created += 1;
        let id = StateId(self.n_created);
        let state =
            DeviceSessionState { arena, list, context, pages: Vec::new(), copies, current: 0 };
        self.states.insert(id, state);
        if have_moved {
            for state in self.states.values().filter(|state| state.arena == arena) {
                self.write_list(gpu, state);
            }
        }
        Ok(id)
    }

    /// Takes pages of a kind and books them; for each page of positions, `n_positions` positions.
    fn take(
        &mut self,
        gpu: &Gpu,
        arena: usize,
        (kind, n_positions): (PageKind, &[usize]),
        what: &str,
    ) -> Result<Vec<usize>> {
        let arena = self.arenas.get_mut(&arena).expect("an arena is there as long as it is used");
        let what = || format!("{what} on {}", gpu.facts().name);
        let each = n_positions.iter().map(|n| arena.booked_bytes(kind, *n));
        let needed_bytes = each.clone().sum();
        self.budget.check(needed_bytes, &what)?;
        let pages = arena.pages(kind);
        let n_after = pages.len() - pages.n_free() + n_positions.len();
        if n_after > StateArena::n_pages_max(gpu, &arena.spec, kind) {
            return Err(Error::no_room(what(), needed_bytes, Remedy::FewerSessions));
        }
        let bookings = each.map(|n_bytes| self.budget.book(n_bytes, &what));
        let bookings = bookings.collect::<Result<Vec<_>>>()?;
        let made = arena.ensure_free(gpu, (kind, n_positions.len()), self.budget.left_bytes());
        made.map_err(|error| match error {
            Error::NoRoom { .. } => Error::no_room(what(), needed_bytes, Remedy::FewerSessions),
            other => other,
        })?;
        Ok(bookings.into_iter().map(|booking| arena.pages_mut(kind).take(booking)).collect())
    }

    fn write_list(&self, gpu: &Gpu, state: &DeviceSessionState) {
        let pages: Vec<u32> = state.pages.iter().map(|page| narrow(*page)).collect();
        self.arenas[&state.arena].write_list(gpu, state.list, &pages);
    }

    /// Returns whether these positions are allocated and unshared, so that
    /// [`DeviceStates::reserve`] does nothing.
    pub(crate) fn is_reserved(&self, id: StateId, positions: &Range<usize>) -> bool {
        let DeviceSessionState { arena, pages, .. } = self.state(id);
        let arena = &self.arenas[arena];
        let is_there = positions.end <= pages.len() * PAGE_POSITIONS
            || arena.spec.bytes_per_position(KvKind::F32) == 0;
        let is_shared = |at| arena.pages(PageKind::Positions).is_shared(pages[at]);
        is_there && !page_indices(pages, positions).any(is_shared)
    }

    /// Allocates unshared pages for these positions. All recorded commands must have been
    /// submitted.
    pub(crate) fn reserve(
        &mut self,
        gpu: &Gpu,
        id: StateId,
        positions: &Range<usize>,
    ) -> Result<()> {
        let DeviceSessionState { arena, pages, context, .. } = self.state(id);
        let (arena, context, n_before) = (*arena, *context, pages.len());
        assert!(positions.end <= context, "{positions:?} of a context of {context}");
        let own = &self.arenas[&arena];
        let is_shared = |at: &usize| own.pages(PageKind::Positions).is_shared(pages[*at]);
        let shared: Vec<usize> = page_indices(pages, positions).filter(is_shared).collect();
        let n_after = positions.end.div_ceil(PAGE_POSITIONS).max(n_before);
        // A context that ends inside a page is booked only up to its end.
        let n_positions = shared.iter().copied().chain(n_before..n_after);
        let n_positions = n_positions.map(|at| PAGE_POSITIONS.min(context - at * PAGE_POSITIONS));
        let n_positions: Vec<usize> = n_positions.collect();
        let what = format!("positions {} to {} of a session", positions.start, positions.end);
        let taken = self.take(gpu, arena, (PageKind::Positions, &n_positions), &what)?;
        let state = self.states.get_mut(&id).expect("a state lives as long as its session");
        let own = self.arenas.get_mut(&arena).expect("an arena is there as long as it is used");
        let (copies, new) = taken.split_at(shared.len());
        let pairs = shared.iter().map(|at| state.pages[*at]).zip(copies.iter().copied());
        let pairs: Vec<_> = pairs.collect();
        if let Err(error) = own.copy(gpu, PageKind::Positions, &pairs) {
            taken.iter().for_each(|page| own.pages_mut(PageKind::Positions).give_back(*page));
            return Err(error);
        }
        for (at, (from, to)) in shared.into_iter().zip(pairs) {
            own.pages_mut(PageKind::Positions).give_back(from);
            state.pages[at] = to;
        }
        state.pages.extend(new);
        self.write_list(gpu, self.state(id));
        gpu.check()
    }

    /// Allocates copies for `n_marks` marks; the contents of the first two copies are kept. All
    /// recorded commands must have been submitted.
    pub(crate) fn set_marks(&mut self, gpu: &Gpu, id: StateId, n_marks: usize) -> Result<()> {
        let state = self.states.get_mut(&id).expect("a state lives as long as its session");
        if state.copies.is_empty() {
            return Ok(());
        }
        let arena = state.arena;
        let own = self.arenas.get_mut(&arena).expect("an arena is there as long as it is used");
        state.copies.drain(2..).for_each(|copy| own.pages_mut(PageKind::Copies).give_back(copy));
        let what = format!("{n_marks} copies of a session's recurrent state");
        let taken = self.take(gpu, arena, (PageKind::Copies, &vec![0; n_marks]), &what)?;
        let state = self.states.get_mut(&id).expect("a state lives as long as its session");
        state.copies.extend(taken);
        Ok(())
    }

    /// Creates a session with the same past. Both share positions until one of them writes there.
    /// All recorded commands must have been submitted.
    pub(crate) fn fork(&mut self, gpu: &Gpu, id: StateId) -> Result<StateId> {
        let DeviceSessionState { arena, context, .. } = *self.state(id);
        let fork = self.create_in(gpu, arena, context)?;
        let DeviceSessionState { pages, copies, current, .. } = self.state(id);
        let (pages, copies, current) = (pages.clone(), copies.clone(), *current);
        let own = self.arenas.get_mut(&arena).expect("an arena is there as long as it is used");
        pages.iter().for_each(|page| own.pages_mut(PageKind::Positions).share(*page));
        let state = self.states.get_mut(&fork).expect("it was made just now");
        state.pages = pages;
        let copied = match state.copies.first() {
            Some(to) => own.copy(gpu, PageKind::Copies, &[(copies[current], *to)]),
            None => Ok(()),
        };
        if let Err(error) = copied {
            self.remove(fork);
            return Err(error);
        }
        self.write_list(gpu, self.state(fork));
        Ok(fork)
    }

    /// Removes a session. Returns whether memory can be freed by [`DeviceStates::trim`], before
    /// which all recorded commands must be submitted.
    pub(crate) fn remove(&mut self, id: StateId) -> bool {
        let Some(DeviceSessionState { arena, list, pages, copies, .. }) = self.states.remove(&id)
        else {
            return false;
        };
        let own = self.arenas.get_mut(&arena).expect("an arena is there as long as it is used");
        own.release_list(list);
        pages.iter().for_each(|page| own.pages_mut(PageKind::Positions).give_back(*page));
        copies.iter().for_each(|copy| own.pages_mut(PageKind::Copies).give_back(*copy));
        let is_empty = !self.states.values().any(|state| state.arena == arena);
        is_empty
            || [PageKind::Positions, PageKind::Copies]
                .iter()
                .any(|it| self.arenas[&arena].can_trim(*it))
    }

    /// Frees memory that no session uses.
    pub(crate) fn trim(&mut self, gpu: &Gpu) {
        let arenas: Vec<usize> = self.arenas.keys().copied().collect();
        arenas.into_iter().for_each(|arena| self.close(gpu, arena));
    }

    /// Frees the unused memory of an arena: all of it if it has no session.
    fn close(&mut self, gpu: &Gpu, arena: usize) {
        if !self.states.values().any(|state| state.arena == arena) {
            self.arenas.remove(&arena);
        } else if let Some(own) = self.arenas.get_mut(&arena) {
            [PageKind::Positions, PageKind::Copies]
                .into_iter()
                .for_each(|kind| own.trim(gpu, kind));
        }
    }

    /// Zeroes the states of recurrent layers. All recorded commands must have been submitted.
    pub(crate) fn reset(&self, gpu: &Gpu, id: StateId) -> Result<()> {
        let DeviceSessionState { arena, copies, current, .. } = self.state(id);
        if let Some(copy) = copies.get(*current) {
            let mut encoder = gpu.device().create_command_encoder(&<_>::default());
            self.arenas[arena].clear_copy(&mut encoder, *copy);
            gpu.queue().submit([encoder.finish()]);
        }
        gpu.check()
    }

    /// Returns the number of marks for which copies of the recurrent states exist.
    pub(crate) fn n_marks(&self, id: StateId) -> usize {
        self.state(id).copies.len().saturating_sub(2)
    }

    /// Makes the state written by a step the current one.
    pub(crate) fn commit(&mut self, id: StateId) {
        let state = self.states.get_mut(&id).expect("a state lives as long as its session");
        state.current = 1 - state.current;
    }

    fn state(&self, id: StateId) -> &DeviceSessionState {
        self.states.get(&id).expect("a state lives as long as its session")
    }

    /// Returns the location of a session for a part of a step. The first part reads the recurrent
    /// state, each other part the state at the mark before it, and the last part writes the state
    /// that may be committed.
    pub(crate) fn location(
        &self,
        id: StateId,
        (part_idx, n_marks): (usize, usize),
    ) -> SessionLocation {
        let DeviceSessionState { arena, list, copies, current, .. } = self.state(id);
        let [read_copy, written_copy] = match copies.as_slice() {
            [] => [0; 2],
            copies => {
                let read = if part_idx == 0 { *current } else { 1 + part_idx };
                let written = if part_idx == n_marks { 1 - current } else { 2 + part_idx };
                [copies[read], copies[written]].map(narrow)
            }
        };
        let list_at = narrow(self.arenas[arena].list_at(*list));
        SessionLocation { arena: *arena, list_at, read_copy, written_copy }
    }

    /// Returns the bind group of a layer.
    pub(crate) fn bind_group(&self, arena: usize, layer: LayerIdx) -> &wgpu::BindGroup {
        self.arenas[&arena].bind_group(layer)
    }

    /// Returns the bind group of a layer with its index keys as the first table.
    pub(crate) fn index_group(&self, arena: usize, layer: LayerIdx) -> &wgpu::BindGroup {
        self.arenas[&arena].index_group(layer)
    }

    /// Returns whether a layer is recurrent.
    pub(crate) fn is_recurrent(&self, arena: usize, layer: LayerIdx) -> bool {
        self.arenas[&arena].spec.layers[layer.0].is_recurrent()
    }

    /// Returns the bytes of a part in the saved form.
    pub(crate) fn part_bytes(&self, id: StateId, part: StatePart) -> usize {
        let tables = self.arenas[&self.state(id).arena].tables(part.layer());
        let n_values = tables.iter().map(|table| match (part, table.layout) {
            (StatePart::Positions { n, .. }, layout @ TableLayout::Positions { .. }) => {
                layout.saved_values(n)
            }
            (
                StatePart::Recurrent { .. } | StatePart::Marked { .. },
                layout @ TableLayout::Whole { .. },
            ) => layout.saved_values(0),
            _ => 0,
        });
        n_values.sum::<usize>() * size_of::<f32>()
    }

    /// Returns the ranges of a part to read, table by table. Empty if the layer is of another kind.
    pub(crate) fn ranges(&self, id: StateId, part: StatePart) -> [Vec<StateRange<'_>>; N_TABLES] {
        self.ranges_in(self.state(id).current, id, part)
    }

    /// Returns the ranges of a part to write; of recurrent layers, the copy that a commit makes
    /// current.
    pub(crate) fn targets(&self, id: StateId, part: StatePart) -> [Vec<StateRange<'_>>; N_TABLES] {
        self.ranges_in(1 - self.state(id).current, id, part)
    }

    fn ranges_in(
        &self,
        current: usize,
        id: StateId,
        part: StatePart,
    ) -> [Vec<StateRange<'_>>; N_TABLES] {
        let DeviceSessionState { arena, pages, copies, .. } = self.state(id);
        let tables = self.arenas[arena].tables(part.layer()).each_ref();
        tables.map(|table| match (part, table.layout) {
            // Most layers have fewer tables.
            (_, layout) if layout.stored_values(1) == 0 => Vec::new(),
            (StatePart::Positions { first, n, .. }, TableLayout::Positions { .. }) => {
                let runs = position_runs(pages, first..first + n);
                runs.into_iter().map(|(first, n)| StateRange { table, first, n }).collect()
            }
            (StatePart::Recurrent { .. }, TableLayout::Whole { .. }) => {
                vec![StateRange { table, first: copies[current], n: 0 }]
            }
            (StatePart::Marked { mark_idx, .. }, TableLayout::Whole { .. }) => {
                vec![StateRange { table, first: copies[2 + mark_idx], n: 0 }]
            }
            _ => Vec::new(),
        })
    }
}

/// Returns the indices of the existing pages that hold some positions.
fn page_indices(pages: &[usize], positions: &Range<usize>) -> Range<usize> {
    let first = (positions.start / PAGE_POSITIONS).min(pages.len());
    first..positions.end.div_ceil(PAGE_POSITIONS).clamp(first, pages.len())
}

/// Returns the location of positions in the tables, as runs of (first, count).
fn position_runs(pages: &[usize], positions: Range<usize>) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let mut at = positions.start;
    while at < positions.end {
        let in_page = at % PAGE_POSITIONS;
        let n = (PAGE_POSITIONS - in_page).min(positions.end - at);
        let first = pages[at / PAGE_POSITIONS] * PAGE_POSITIONS + in_page;
        match runs.last_mut() {
            Some((begin, n_before)) if *begin + *n_before == first => *n_before += n,
            _ => runs.push((first, n)),
        }
        at += n;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_in_their_pages() {
        const N: usize = PAGE_POSITIONS;
        let pages = [3, 4, 1];
        assert_eq!(position_runs(&pages, 5..9), [(3 * N + 5, 4)]);
        assert_eq!(position_runs(&pages, 5..2 * N + 1), [(3 * N + 5, 2 * N - 5), (N, 1)]);
        assert_eq!(position_runs(&pages, N..N), []);
        assert_eq!(page_indices(&pages, &(N - 1..N + 1)), 0..2);
        assert_eq!(page_indices(&pages, &(3 * N..3 * N + 1)), 3..3);
        assert_eq!(page_indices(&pages, &(N..N)), 1..1);
    }
}
