//! Routed experts in slots on the device, found through tables in device memory.
//!
//! Slots of one size form a pool of a few buffers; an expert lies in its slot as in its file: gate,
//! up, down, each codes, scales and biases. **Invariant:** a slot is overwritten only after all
//! commands that read it were submitted, and never while the group that it was filled for is being
//! recorded.

use std::collections::HashMap;

use moeflux::error::Result;
use moeflux::experts::Arrived;
use moeflux::ids::{ExpertIdx, LayerIdx};
use moeflux::weights::ExpertView;
use moeflux_kernels::{Matrix, MatrixLayout};

use crate::compiler::{SlotMatrix, SlotShape};
use crate::device::Gpu;
use crate::memory::weights::{PartBytes, bind};
use crate::memory::{STORAGE, narrow};

/// Slots of the first buffer of a pool; each further one is as large as those before together.
const N_SLOTS_FIRST: usize = 8;

/// What stands in a table for experts that are not in the bound buffer.
const ABSENT: u32 = u32::MAX;

/// An expert's place: which buffer of its pool, and which slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotPlace {
    buffer_idx: usize,
    slot: u32,
}

#[derive(Debug)]
struct SlotBuffer {
    buffer: wgpu::Buffer,
    bind_group: wgpu::BindGroup,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    place: SlotPlace,
    key: Option<(LayerIdx, ExpertIdx)>,
    /// Group that it was last used for, counted over all groups.
    last_group: u64,
    /// Submission that its last commands are part of.
    last_submission: u64,
}

/// Slots of one size.
#[derive(Debug)]
struct Pool {
    slot_bytes: u64,
    buffers: Vec<SlotBuffer>,
    slots: Vec<Slot>,
    by_key: HashMap<(LayerIdx, ExpertIdx), usize>,
}

/// All experts of a layer, in the order of their indices.
#[derive(Debug)]
struct Bank {
    n_per_buffer: usize,
    buffers: Vec<wgpu::Buffer>,
    bound: Vec<Bound>,
}

/// What a dispatch over experts is bound to: a buffer of slots, and where its table begins.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) bind_group: wgpu::BindGroup,
    pub(crate) table_at: u32,
}

/// All slots and tables.
#[derive(Debug)]
pub(crate) struct DeviceExperts {
    /// How experts of each layer lie in their slots.
    pub(crate) shapes: HashMap<LayerIdx, SlotShape>,
    /// Tables, as kernels see them.
    pub(crate) tables: wgpu::Buffer,
    /// Words of tables in use since the last submission.
    n_table_words: usize,
    pools: Vec<Pool>,
    /// Layers whose experts are here for good.
    banks: HashMap<LayerIdx, Bank>,
    /// Where the next table of those goes.
    n_kept_words: usize,
    bytes_max: u64,
    n_groups: u64,
    n_uploaded: u64,
}

/// Words of tables that can be recorded before a submission.
const N_TABLE_WORDS: usize = 1 << 18;

/// End of the tables of experts that are here for good: some for each of 60 layers of 1,024.
const N_KEPT_WORDS_END: usize = 1 << 20;

/// How much of a group was taken.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Experts from the first that was asked for.
    pub(crate) n: usize,
    /// What to dispatch over.
    pub(crate) bound: Vec<Bound>,
}

impl DeviceExperts {
    /// No experts yet, and room for so many bytes of them.
    pub(crate) fn new(gpu: &Gpu, bytes_max: u64) -> Result<Self> {
        Ok(Self {
            shapes: HashMap::new(),
            tables: gpu.buffer("tables of experts", (N_KEPT_WORDS_END * 4) as u64, STORAGE)?,
            n_table_words: 0,
            pools: Vec::new(),
            banks: HashMap::new(),
            n_kept_words: N_TABLE_WORDS,
            bytes_max,
            n_groups: 0,
            n_uploaded: 0,
        })
    }

    /// Experts that had to be copied to the device so far.
    pub(crate) fn n_uploaded(&self) -> u64 {
        self.n_uploaded
    }

    /// Notes how experts of a layer lie: gate, up and down.
    pub(crate) fn note_shape(&mut self, layer: LayerIdx, layouts: [MatrixLayout; 3]) -> SlotShape {
        *self.shapes.entry(layer).or_insert_with(|| shape_of(layouts))
    }

    /// Where the experts of a layer that are here for good are found.
    pub(crate) fn bound(&self, layer: LayerIdx) -> &[Bound] {
        self.banks.get(&layer).map_or(&[], |bank| &bank.bound)
    }

    /// Keeps an expert for good; the first one of a layer makes room for all of them.
    pub(crate) fn keep(
        &mut self,
        gpu: &Gpu,
        (layer, expert): (LayerIdx, ExpertIdx),
        n_experts: usize,
        view: &ExpertView<'_>,
    ) -> Result<()> {
        let shape = self.note_shape(layer, layouts_of(view));
        if !self.banks.contains_key(&layer) {
            let bank = self.bank_of(gpu, n_experts, &shape)?;
            self.banks.insert(layer, bank);
        }
        let bank = &self.banks[&layer];
        let buffer = &bank.buffers[expert.0 / bank.n_per_buffer];
        let slot = (expert.0 % bank.n_per_buffer) as u64;
        fill(gpu, (buffer, slot), (view, &shape))
    }

    fn bank_of(&mut self, gpu: &Gpu, n_experts: usize, shape: &SlotShape) -> Result<Bank> {
        let slot_bytes = u64::from(shape.n_words) * 4;
        let n_bound = usize::try_from(gpu.storage_bytes_max() / slot_bytes).unwrap_or(usize::MAX);
        if n_bound == 0 {
            let problem = format!("an expert has {slot_bytes} bytes, more than its kernels see");
            return Err(gpu.error(&problem));
        }
        let n_per_buffer = n_bound.min(n_experts);
        let (mut buffers, mut bound) = (Vec::new(), Vec::new());
        for first in (0..n_experts).step_by(n_per_buffer) {
            let n_here = n_per_buffer.min(n_experts - first);
            let n_bytes = n_here as u64 * slot_bytes;
            let buffer = gpu.buffer("the routed experts of a layer", n_bytes, STORAGE)?;
            let mut table = vec![ABSENT; n_experts];
            for (slot, entry) in table[first..first + n_here].iter_mut().enumerate() {
                *entry = narrow(slot);
            }
            let table_at = self.n_kept_words;
            self.n_kept_words += n_experts;
            if self.n_kept_words > N_KEPT_WORDS_END {
                return Err(gpu.error("more experts than its tables have room for"));
            }
            gpu.write(&self.tables, (table_at * 4) as u64, bytemuck::cast_slice(&table));
            bound.push(Bound { bind_group: bind(gpu, &buffer), table_at: narrow(table_at) });
            buffers.push(buffer);
        }
        Ok(Bank { n_per_buffer, buffers, bound })
    }

    /// All that was recorded is submitted: tables begin anew.
    pub(crate) fn submitted(&mut self) {
        self.n_table_words = 0;
    }

    /// Brings experts of a group to the device, from place `first` on, as many as have slots at
    /// once. `None` if commands that were recorded must be submitted before.
    pub(crate) fn take(
        &mut self,
        (gpu, submission): (&Gpu, u64),
        (layer, n_experts): (LayerIdx, usize),
        (arrived, first): (&Arrived<'_>, usize),
    ) -> Result<Option<Taken>> {
        let shape = self.shapes[&layer];
        let slot_bytes = u64::from(shape.n_words) * 4;
        let pool_idx = self.pool_of(slot_bytes);
        self.n_groups += 1;
        let mut places: Vec<(ExpertIdx, SlotPlace)> = Vec::new();
        for at in first..arrived.len() {
            let expert = arrived.expert(at);
            let found = self.slot_for(gpu, pool_idx, (layer, expert))?;
            let Some((slot_idx, is_there)) = found else { break };
            let slot = self.pools[pool_idx].slots[slot_idx];
            let is_read = slot.key.is_some() && slot.last_submission == submission;
            if !is_there && is_read {
                break;
            }
            if !is_there {
                self.n_uploaded += 1;
                let pool = &self.pools[pool_idx];
                let buffer = &pool.buffers[slot.place.buffer_idx].buffer;
                let place = (buffer, u64::from(slot.place.slot));
                fill(gpu, place, (&arrived.view(at), &shape))?;
                self.own(pool_idx, slot_idx, (layer, expert));
            }
            let slot = &mut self.pools[pool_idx].slots[slot_idx];
            (slot.last_group, slot.last_submission) = (self.n_groups, submission);
            places.push((expert, slot.place));
        }
        let n_words = n_experts * self.pools[pool_idx].buffers.len();
        if places.is_empty() || self.n_table_words + n_words > N_TABLE_WORDS {
            return Ok(None);
        }
        let bound = self.tables_of((gpu, pool_idx), n_experts, &places);
        Ok(Some(Taken { n: places.len(), bound }))
    }

    /// Writes a table for each buffer that holds some of these experts.
    fn tables_of(
        &mut self,
        (gpu, pool_idx): (&Gpu, usize),
        n_experts: usize,
        places: &[(ExpertIdx, SlotPlace)],
    ) -> Vec<Bound> {
        let mut bound = Vec::new();
        for (buffer_idx, buffer) in self.pools[pool_idx].buffers.iter().enumerate() {
            let mut table = vec![ABSENT; n_experts];
            let mut here = places.iter().filter(|(_, place)| place.buffer_idx == buffer_idx);
            if here.clone().next().is_none() {
                continue;
            }
            here.by_ref().for_each(|(expert, place)| table[expert.0] = place.slot);
            let table_at = self.n_table_words;
            self.n_table_words += n_experts;
            gpu.write(&self.tables, (table_at * 4) as u64, bytemuck::cast_slice(&table));
            let bind_group = buffer.bind_group.clone();
            bound.push(Bound { bind_group, table_at: narrow(table_at) });
        }
        bound
    }

    fn pool_of(&mut self, slot_bytes: u64) -> usize {
        let known = self.pools.iter().position(|pool| pool.slot_bytes == slot_bytes);
        known.unwrap_or_else(|| {
            let (buffers, slots, by_key) = (Vec::new(), Vec::new(), HashMap::new());
            self.pools.push(Pool { slot_bytes, buffers, slots, by_key });
            self.pools.len() - 1
        })
    }

    /// The slot of an expert, and whether it is there; `None` if all slots belong to this group.
    fn slot_for(
        &mut self,
        gpu: &Gpu,
        pool_idx: usize,
        key: (LayerIdx, ExpertIdx),
    ) -> Result<Option<(usize, bool)>> {
        let pool = &self.pools[pool_idx];
        if let Some(&slot_idx) = pool.by_key.get(&key) {
            return Ok(Some((slot_idx, true)));
        }
        let free = pool.slots.iter().position(|slot| slot.key.is_none());
        if let Some(slot_idx) = free {
            return Ok(Some((slot_idx, false)));
        }
        if self.grow(gpu, pool_idx)? {
            return self.slot_for(gpu, pool_idx, key);
        }
        let pool = &self.pools[pool_idx];
        let oldest = pool.slots.iter().enumerate().min_by_key(|(_, slot)| slot.last_group);
        let leaving = oldest.filter(|(_, slot)| slot.last_group < self.n_groups);
        Ok(leaving.map(|(slot_idx, _)| (slot_idx, false)))
    }

    /// Adds a buffer to a pool, if the budget has room for one.
    fn grow(&mut self, gpu: &Gpu, pool_idx: usize) -> Result<bool> {
        let used: u64 = self
            .pools
            .iter()
            .flat_map(|pool| &pool.buffers)
            .map(|buffer| buffer.buffer.size())
            .sum();
        let pool = &mut self.pools[pool_idx];
        let wanted = pool.slots.len().max(N_SLOTS_FIRST) as u64;
        let n_room = self.bytes_max.saturating_sub(used) / pool.slot_bytes;
        let n_bound = gpu.storage_bytes_max() / pool.slot_bytes;
        // One slot there is always: without it nothing could be computed.
        let n_least = u64::from(pool.slots.is_empty());
        let n_slots = wanted.min(n_room).min(n_bound).max(n_least);
        if n_slots == 0 {
            return Ok(false);
        }
        let buffer = gpu.buffer("slots of experts", n_slots * pool.slot_bytes, STORAGE)?;
        let bind_group = bind(gpu, &buffer);
        let buffer_idx = pool.buffers.len();
        pool.buffers.push(SlotBuffer { buffer, bind_group });
        let n_slots = u32::try_from(n_slots).expect("a binding has fewer slots than words");
        pool.slots.extend((0..n_slots).map(|slot| Slot {
            place: SlotPlace { buffer_idx, slot },
            key: None,
            last_group: 0,
            last_submission: 0,
        }));
        Ok(true)
    }

    fn own(&mut self, pool_idx: usize, slot_idx: usize, key: (LayerIdx, ExpertIdx)) {
        let pool = &mut self.pools[pool_idx];
        if let Some(leaving) = pool.slots[slot_idx].key.replace(key) {
            pool.by_key.remove(&leaving);
        }
        pool.by_key.insert(key, slot_idx);
    }
}

/// Copies an expert to a slot.
fn fill(
    gpu: &Gpu,
    (buffer, slot): (&wgpu::Buffer, u64),
    (view, shape): (&ExpertView<'_>, &SlotShape),
) -> Result<()> {
    let begin = slot * u64::from(shape.n_words) * 4;
    for (matrix, at) in [(&view.gate, shape.gate), (&view.up, shape.up), (&view.down, shape.down)] {
        assert_eq!(matrix.layout(), at.layout, "experts of a layer are alike");
        for (bytes, word) in
            [(matrix.codes(), at.codes), (matrix.scales(), at.scales), (matrix.biases(), at.biases)]
        {
            gpu.upload(buffer, begin + u64::from(word) * 4, bytes)?;
        }
    }
    Ok(())
}

/// Those of gate, up and down.
pub(crate) fn layouts_of(view: &ExpertView<'_>) -> [MatrixLayout; 3] {
    [&view.gate, &view.up, &view.down].map(Matrix::layout)
}

/// Gate, up and down after each other.
fn shape_of(layouts: [MatrixLayout; 3]) -> SlotShape {
    let mut n_bytes = 0_u64;
    let [gate, up, down] = layouts.map(|layout| {
        let [scales, biases, end] = PartBytes::of(layout).places(layout.n_rows);
        let word = |at: u64| u32::try_from((n_bytes + at) / 4).expect("an expert fits 32 bits");
        let (codes, scales, biases) = (word(0), word(scales), word(biases));
        n_bytes += end;
        SlotMatrix { layout, codes, scales, biases }
    });
    let n_words = u32::try_from(n_bytes / 4).expect("an expert fits 32 bits");
    SlotShape { gate, up, down, n_words }
}
