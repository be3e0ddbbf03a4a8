//! Routed experts in slots on the device, found through tables in device memory.
//!
//! An expert is stored in its slot as in its file: gate, up, down, each with codes, scales and
//! biases. Permanently stored experts are in a bank of their layer, others in a pool for all
//! layers. **Invariant:** a slot is filled by a command that follows those that read its previous
//! contents.

mod bank;
mod heat;
mod follow;
mod near;
mod pool;
mod sight;

use std::collections::HashMap;
use std::sync::Arc;

use moeflux::provider::backend::TierStats;
use moeflux::provider::error::Result;
use moeflux::provider::experts::Arrived;
use moeflux::provider::experts::stream::{DeviceMove, MappedSlots, SlotMapping};
use moeflux::provider::ids::{ExpertIdx, LayerIdx};
use moeflux::provider::weights::{ExpertView, MatrixSpan};
use moeflux_kernels::{Matrix, MatrixLayout};

use crate::compiler::{ExpertSlotLayout, SlotMatrix};
use crate::config::{GpuConfig, Tiers};
use crate::device::Gpu;
use crate::device::recorder::CommandRecorder;
use crate::device::staging::{StagedCopy, Staging};
use crate::memory::STORAGE;
use crate::memory::weights::{PartBytes, bind, bind_tiers};
use crate::params::narrow;
use bank::{Bank, TierSplit};
use follow::TierBalancer;
use heat::Swap;
use near::DeviceCacheSlots;
use pool::{PoolGrowth, SlotAddress, SlotPool};
use sight::SlabImports;

/// Table entry of experts that are not in the bound buffers.
const ABSENT: u32 = u32::MAX;

/// Bindings of a dispatch over experts: a buffer of slots, and the offset of its table.
#[derive(Debug)]
pub(crate) struct ExpertBinding {
    pub(crate) bind_group: wgpu::BindGroup,
    pub(crate) table_at: u32,
}

/// All slots and tables.
#[derive(Debug)]
pub(crate) struct DeviceExperts {
    /// Layout of each layer's experts in their slots.
    pub(crate) slot_layouts: HashMap<LayerIdx, ExpertSlotLayout>,
    /// Tables, as kernels see them.
    tables: wgpu::Buffer,
    /// Table words used since the last submission.
    n_table_words: usize,
    pools: Vec<SlotPool>,
    /// Layers whose experts are stored permanently.
    banks: HashMap<LayerIdx, Bank>,
    /// Offset of the next table of permanently stored experts.
    n_resident_words: usize,
    /// Whether experts have moved since tables were written.
    are_tables_stale: bool,
    uses: UseCounters,
    balancer: TierBalancer,
    staging: Staging,
    /// Slabs of slots in host memory that kernels read directly.
    slab_imports: Option<Arc<SlabImports>>,
    /// Cache of streamed experts in device memory, which need no slot in host memory.
    device_cache: DeviceCacheSlots,
    /// Upper bound on expert bytes in device memory.
    bytes_max: u64,
    /// Upper bound on the bytes of one buffer.
    buffer_bytes_max: u64,
    n_groups: u64,
    n_uploaded: u64,
}

/// Counters of expert uses, allocated if some experts are in host memory.
#[derive(Debug)]
struct UseCounters {
    counts: Option<wgpu::Buffer>,
    /// Words assigned to layers.
    n_words: usize,
}

/// Table words that can be recorded before a submission.
const N_TABLE_WORDS: usize = 1 << 18;

/// End of the tables of permanently stored experts: several for each of 60 layers of 1,024 experts.
const N_RESIDENT_WORDS_END: usize = 1 << 20;

/// Alignment of a layer's counters, as bindings require.
const USES_ALIGN_WORDS: usize = 64;

/// A group of experts that kernels read in place.
#[derive(Debug)]
struct InPlaceGroup {
    n: usize,
    /// Bind group of each slab, and the slots of experts there.
    slabs: Vec<(wgpu::BindGroup, Vec<(ExpertIdx, u32)>)>,
}

/// Slots of the pool reserved for prompts.
const N_SLOTS_OF_PROMPT: u64 = 32;

/// The first experts of a group, ready for kernels.
#[derive(Debug)]
pub(crate) struct ReadyExperts {
    /// Number of experts from the first requested one on.
    pub(crate) n: usize,
    /// Bindings to dispatch over.
    pub(crate) bindings: Vec<ExpertBinding>,
}

impl UseCounters {
    fn new(gpu: &Gpu, tiers: Tiers) -> Result<Self> {
        let n_bytes = ((N_RESIDENT_WORDS_END - N_TABLE_WORDS) * 4) as u64;
        let counts = match tiers {
            Tiers::Device => None,
            Tiers::DeviceAndHost => Some(gpu.buffer("uses of experts", n_bytes, STORAGE)?),
        };
        Ok(Self { counts, n_words: 0 })
    }

    /// Binds slots, and the counters of expert uses from word `at` on.
    fn bind(&self, gpu: &Gpu, pair: [&wgpu::Buffer; 2], at: usize) -> wgpu::BindGroup {
        match &self.counts {
            None => bind(gpu, pair[0]),
            Some(counts) => bind_tiers(gpu, pair, (counts, (at * 4) as u64)),
        }
    }
}

impl DeviceExperts {
    /// Creates an empty set of experts.
    pub(crate) fn new(gpu: &Gpu, config: &GpuConfig) -> Result<Self> {
        let GpuConfig { expert_bytes_max, expert_buffer_bytes_max, tiers, .. } = *config;
        Ok(Self {
            slot_layouts: HashMap::new(),
            tables: gpu.buffer("tables of experts", (N_RESIDENT_WORDS_END * 4) as u64, STORAGE)?,
            n_table_words: 0,
            pools: Vec::new(),
            banks: HashMap::new(),
            n_resident_words: N_TABLE_WORDS,
            uses: UseCounters::new(gpu, tiers)?,
            are_tables_stale: false,
            balancer: TierBalancer::new(),
            staging: Staging::default(),
            slab_imports: None,
            device_cache: DeviceCacheSlots::default(),
            bytes_max: expert_bytes_max,
            buffer_bytes_max: gpu.storage_bytes_max().min(expert_buffer_bytes_max),
            n_groups: 0,
            n_uploaded: 0,
        })
    }

    /// Returns the buffer of all tables.
    pub(crate) const fn table_buffer(&self) -> &wgpu::Buffer {
        &self.tables
    }

    /// Returns the number of experts copied to the device so far.
    pub(crate) fn n_uploaded(&self) -> u64 {
        self.n_uploaded
    }

    /// Lets kernels read experts directly in these slots of host memory from now on; copies use the
    /// same layout.
    pub(crate) fn map_slots(&mut self, gpu: &Arc<Gpu>, slots: &MappedSlots) -> Result<()> {
        let n_words = narrow(slots.stride_bytes / 4);
        for (layer, layout) in &slots.layouts {
            let [gate, up, down] = [layout.gate, layout.up, layout.down].map(matrix_of);
            self.slot_layouts.insert(*layer, ExpertSlotLayout { gate, up, down, n_words });
        }
        // If too few of a prompt's experts are in memory, they go through slots of the pool.
        let slot_bytes = slots.stride_bytes as u64;
        let n_bytes = self.bytes_max.saturating_sub(N_SLOTS_OF_PROMPT * slot_bytes);
        self.device_cache =
            DeviceCacheSlots::new(gpu, slot_bytes, (n_bytes, self.buffer_bytes_max))?;
        self.bytes_max -= self.device_cache.n_slots as u64 * slot_bytes;
        self.slab_imports = Some(Arc::new(SlabImports::new(gpu, self.device_cache.n_slots)));
        Ok(())
    }

    /// Copies an expert to a slot of the cache in device memory. Returns `false` if the recorded
    /// commands must be submitted first.
    pub(crate) fn bring_near(
        &mut self,
        recorder: &mut CommandRecorder,
        expert: &DeviceMove<'_>,
    ) -> Result<bool> {
        let (target, begin) = self.device_cache.slot_at(expert.to);
        let slot_layout = self.slot_layouts[&expert.layer];
        let import = |imports: &Arc<SlabImports>| imports.import(expert.from.slab);
        let Some(slab) = self.slab_imports.as_ref().and_then(import) else {
            let staging = (&mut self.staging, recorder);
            return fill(staging, (target, begin), (&expert.view, &slot_layout));
        };
        let n_bytes = u64::from(slot_layout.n_words) * 4;
        let from = expert.from.idx_in_slab as u64 * n_bytes;
        let encoder = recorder.encoder();
        encoder.copy_buffer_to_buffer(&slab.buffer, from, target, begin, n_bytes);
        Ok(true)
    }

    pub(crate) fn slot_mapping(&self) -> Option<Arc<dyn SlotMapping>> {
        self.slab_imports.clone().map(|imports| imports as Arc<dyn SlotMapping>)
    }

    /// Notes the layout of a layer's experts: gate, up and down.
    pub(crate) fn note_slot_layout(
        &mut self,
        layer: LayerIdx,
        layouts: [MatrixLayout; 3],
    ) -> ExpertSlotLayout {
        *self.slot_layouts.entry(layer).or_insert_with(|| slot_layout_of(layouts))
    }

    /// Returns the bindings of a layer's permanently stored experts.
    pub(crate) fn bindings(&self, layer: LayerIdx) -> &[ExpertBinding] {
        self.banks.get(&layer).map_or(&[], |bank| &bank.bindings)
    }

    /// Returns the bytes of permanently stored experts in device memory and in host memory.
    pub(crate) fn resident_bytes(&self) -> [u64; 2] {
        let add = |sums: [u64; 2], bank: &Bank| {
            let n_bytes = bank.n_bytes();
            [sums[0] + n_bytes[0], sums[1] + n_bytes[1]]
        };
        self.banks.values().fold([0, 0], add)
    }

    /// Stores an expert permanently; the first one of a layer allocates space for all of them.
    /// Returns `false` if the recorded commands must be submitted first.
    pub(crate) fn keep(
        &mut self,
        recorder: &mut CommandRecorder,
        (layer, expert): (LayerIdx, ExpertIdx),
        n_experts: usize,
        view: &ExpertView<'_>,
    ) -> Result<bool> {
        let slot_layout = self.note_slot_layout(layer, layouts_of(view));
        if !self.banks.contains_key(&layer) {
            let uses_at = self.uses.n_words;
            let bank = self.bank_of(recorder.gpu(), n_experts, &slot_layout)?;
            if bank.n_bytes().iter().all(|n_bytes| *n_bytes > 0) {
                self.balancer.add(layer, uses_at, n_experts);
            }
            self.banks.insert(layer, bank);
        }
        let location = self.banks[&layer].location(expert);
        fill((&mut self.staging, recorder), location, (view, &slot_layout))
    }

    fn bank_of(
        &mut self,
        gpu: &Gpu,
        n_experts: usize,
        slot_layout: &ExpertSlotLayout,
    ) -> Result<Bank> {
        // The remaining layers share the remaining bytes equally.
        let device_bytes = self.uses.counts.as_ref().map(|_| {
            let n_left = self.slot_layouts.len().saturating_sub(self.banks.len()).max(1);
            self.bytes_max.saturating_sub(self.resident_bytes()[0]) / n_left as u64
        });
        let slot_bytes = u64::from(slot_layout.n_words) * 4;
        let n_per_buffer = self.buffer_bytes_max.min(bank::BUFFER_BYTES_MAX) / slot_bytes;
        if n_per_buffer == 0 {
            let problem =
                format!("an expert of {slot_bytes} bytes exceeds what its kernels can address");
            return Err(gpu.error(&problem));
        }
        let split = TierSplit::new(n_experts, slot_bytes, (device_bytes, n_per_buffer));
        let uses_at = self.uses.n_words;
        self.uses.n_words += n_experts.next_multiple_of(USES_ALIGN_WORDS);
        let (uses, n_resident_words) = (&self.uses, &mut self.n_resident_words);
        let mut bind = |pair: [&wgpu::Buffer; 2]| {
            let table_at = *n_resident_words;
            *n_resident_words += n_experts;
            if (*n_resident_words).max(N_TABLE_WORDS + uses.n_words) > N_RESIDENT_WORDS_END {
                return Err(gpu.error("more experts than its tables have room for"));
            }
            let bind_group = uses.bind(gpu, pair, uses_at);
            Ok(ExpertBinding { bind_group, table_at: narrow(table_at) })
        };
        let bank = Bank::new(gpu, split, &mut bind)?;
        for (binding, table) in bank.bindings.iter().zip(bank.tables()) {
            gpu.write(&self.tables, u64::from(binding.table_at) * 4, bytemuck::cast_slice(&table));
        }
        Ok(bank)
    }

    /// Returns the location and use statistics of experts, if host memory may hold some.
    pub(crate) fn tier_stats(&self) -> Option<TierStats> {
        self.uses.counts.as_ref().map(|_| self.balancer.stats(self.resident_bytes()))
    }

    /// Begins a step: moves the most used experts to device memory, if due. Returns `false` if the
    /// recorded commands must be submitted first.
    pub(crate) fn begin_step(&mut self, recorder: &mut CommandRecorder) -> Result<bool> {
        if let Some(counts) = &self.uses.counts {
            let (uses, banks) = ((counts, self.uses.n_words), &self.banks);
            let swaps = self.balancer.begin_step(recorder, uses, |layer| &banks[&layer])?;
            self.exchange(recorder, &swaps)?;
        }
        if !self.are_tables_stale {
            return Ok(true);
        }
        self.are_tables_stale = !self.write_tables(recorder)?;
        Ok(!self.are_tables_stale)
    }

    fn exchange(
        &mut self,
        recorder: &mut CommandRecorder,
        swaps: &[(LayerIdx, Swap)],
    ) -> Result<()> {
        for (layer, swap) in swaps {
            let bank = self.banks.get_mut(layer).expect("a layer that is followed has a bank");
            let locations = [swap.promoted, swap.demoted].map(|expert| bank.location(expert));
            self.balancer.exchange(recorder, locations, bank.slot_bytes())?;
            bank.swap(swap.promoted, swap.demoted);
            self.are_tables_stale = true;
        }
        Ok(())
    }

    /// Writes the tables of all permanently stored experts by one command. Returns `false` if the
    /// recorded commands must be submitted first.
    fn write_tables(&mut self, recorder: &mut CommandRecorder) -> Result<bool> {
        let mut words = vec![ABSENT; self.n_resident_words - N_TABLE_WORDS];
        for bank in self.banks.values() {
            for (binding, table) in bank.bindings.iter().zip(bank.tables()) {
                let at = binding.table_at as usize - N_TABLE_WORDS;
                words[at..at + table.len()].copy_from_slice(&table);
            }
        }
        let chunks = [(0, bytemuck::cast_slice(&words))];
        let (begin, n_bytes) = ((N_TABLE_WORDS * 4) as u64, (words.len() * 4) as u64);
        let copy = StagedCopy { buffer: &self.tables, begin, n_bytes, chunks: &chunks };
        self.staging.fill(recorder, &copy)
    }

    /// Reuses the table words, since all recorded commands are submitted.
    pub(crate) fn submitted(&mut self) {
        self.n_table_words = 0;
    }

    /// Brings experts of a group to the device, from index `first` on, as many as fit in slots at
    /// once. Returns `None` if the recorded commands must be submitted first.
    pub(crate) fn make_ready(
        &mut self,
        recorder: &mut CommandRecorder,
        (layer, n_experts): (LayerIdx, usize),
        (arrived, first): (&Arrived<'_>, usize),
    ) -> Result<Option<ReadyExperts>> {
        if let Some(group) = self.in_place_group(arrived, first) {
            return Ok(self.bind_in_place(recorder.gpu(), n_experts, group));
        }
        let slot_layout = self.slot_layouts[&layer];
        let slot_bytes = u64::from(slot_layout.n_words) * 4;
        let pool_idx = self.pool_of(slot_bytes);
        self.n_groups += 1;
        let used_bytes: u64 = self.pools.iter().map(SlotPool::n_bytes).sum();
        let room_bytes = self.bytes_max.saturating_sub(used_bytes);
        let n_before = self.pools[pool_idx].n_bytes();
        let (uses, buffer_bytes_max) = (&self.uses, self.buffer_bytes_max);
        let pool = &mut self.pools[pool_idx];
        let mut addresses: Vec<(ExpertIdx, SlotAddress)> = Vec::new();
        for at in first..arrived.len() {
            if arrived.device_slot(at).is_some() {
                break;
            }
            let expert = arrived.expert(at);
            let room_bytes = room_bytes.saturating_sub(pool.n_bytes() - n_before);
            let growth = PoolGrowth { gpu: recorder.gpu(), room_bytes, buffer_bytes_max, uses };
            let found = pool.slot_for(&growth, self.n_groups, (layer, expert))?;
            let Some((slot_idx, is_there)) = found else { break };
            let address = pool.slots[slot_idx].address;
            if !is_there {
                let begin = u64::from(address.slot) * slot_bytes;
                let target = (&pool.buffers[address.buffer_idx].buffer, begin);
                let staging = (&mut self.staging, &mut *recorder);
                if !fill(staging, target, (&arrived.view(at), &slot_layout))? {
                    break;
                }
                self.n_uploaded += 1;
                pool.assign(slot_idx, (layer, expert));
            }
            pool.slots[slot_idx].last_group = self.n_groups;
            addresses.push((expert, address));
        }
        let n_words = n_experts * pool.buffers.len();
        if addresses.is_empty() || self.n_table_words + n_words > N_TABLE_WORDS {
            return Ok(None);
        }
        let bindings = self.tables_of((recorder.gpu(), pool_idx), n_experts, &addresses);
        Ok(Some(ReadyExperts { n: addresses.len(), bindings }))
    }

    /// Returns the bindings of the first experts of a group, from index `first` on, that need no
    /// copy; `None` if there are none.
    fn in_place_group(&self, arrived: &Arrived<'_>, first: usize) -> Option<InPlaceGroup> {
        let imports = self.slab_imports.as_ref()?;
        let mut group = InPlaceGroup { n: 0, slabs: Vec::new() };
        for at in first..arrived.len() {
            let found = match (arrived.device_slot(at), arrived.mapped_slot(at)) {
                (Some(place), _) => Some(self.device_cache.binding(place)),
                (None, Some(slot)) => {
                    imports.import(slot.slab).map(|it| (it.bind_group, narrow(slot.idx_in_slab)))
                }
                (None, None) => None,
            };
            let Some((bind_group, slot)) = found else { break };
            group.n += 1;
            let expert = (arrived.expert(at), slot);
            match group.slabs.iter_mut().find(|(known, _)| *known == bind_group) {
                Some((_, experts)) => experts.push(expert),
                None => group.slabs.push((bind_group, vec![expert])),
            }
        }
        (group.n > 0).then_some(group)
    }

    /// Writes a table for each slab. Returns `None` if the recorded commands must be submitted
    /// first.
    fn bind_in_place(
        &mut self,
        gpu: &Gpu,
        n_experts: usize,
        group: InPlaceGroup,
    ) -> Option<ReadyExperts> {
        let n_words = n_experts * group.slabs.len();
        if self.n_table_words + n_words > N_TABLE_WORDS {
            return None;
        }
        let first_at = self.n_table_words;
        let mut tables = vec![ABSENT; n_words];
        let mut bindings = Vec::with_capacity(group.slabs.len());
        for (table, (bind_group, experts)) in tables.chunks_exact_mut(n_experts).zip(group.slabs) {
            for (expert, slot) in experts {
                table[expert.0] = slot;
            }
            bindings.push(ExpertBinding { bind_group, table_at: narrow(self.n_table_words) });
            self.n_table_words += n_experts;
        }
        gpu.write(&self.tables, (first_at * 4) as u64, bytemuck::cast_slice(&tables));
        Some(ReadyExperts { n: group.n, bindings })
    }

    /// Writes a table for each buffer that holds some of these experts.
    fn tables_of(
        &mut self,
        (gpu, pool_idx): (&Gpu, usize),
        n_experts: usize,
        addresses: &[(ExpertIdx, SlotAddress)],
    ) -> Vec<ExpertBinding> {
        let mut bindings = Vec::new();
        for (buffer_idx, buffer) in self.pools[pool_idx].buffers.iter().enumerate() {
            let mut table = vec![ABSENT; n_experts];
            let mut here = addresses.iter().filter(|(_, it)| it.buffer_idx == buffer_idx);
            if here.clone().next().is_none() {
                continue;
            }
            here.by_ref().for_each(|(expert, it)| table[expert.0] = it.slot);
            let table_at = self.n_table_words;
            self.n_table_words += n_experts;
            gpu.write(&self.tables, (table_at * 4) as u64, bytemuck::cast_slice(&table));
            let bind_group = buffer.bind_group.clone();
            bindings.push(ExpertBinding { bind_group, table_at: narrow(table_at) });
        }
        bindings
    }

    fn pool_of(&mut self, slot_bytes: u64) -> usize {
        let known = self.pools.iter().position(|pool| pool.slot_bytes == slot_bytes);
        known.unwrap_or_else(|| {
            self.pools.push(SlotPool::new(slot_bytes));
            self.pools.len() - 1
        })
    }
}

/// Copies an expert to a slot that begins at byte `begin`. Returns `false` if the recorded commands
/// must be submitted first.
fn fill(
    (staging, recorder): (&mut Staging, &mut CommandRecorder),
    (buffer, begin): (&wgpu::Buffer, u64),
    (view, slot_layout): (&ExpertView<'_>, &ExpertSlotLayout),
) -> Result<bool> {
    let mut chunks = Vec::with_capacity(9);
    for (matrix, at) in
        [(&view.gate, slot_layout.gate), (&view.up, slot_layout.up), (&view.down, slot_layout.down)]
    {
        assert_eq!(matrix.layout(), at.layout, "experts of a layer are alike");
        let (layout, row_step) = (matrix.layout(), matrix.row_step());
        let rows =
            [layout.row_bytes(), layout.scale_row_bytes()].map(|n_bytes| (n_bytes, row_step));
        push_rows(&mut chunks, (at.codes as usize * 4, matrix.codes()), rows[0]);
        push_rows(&mut chunks, (at.scales as usize * 4, matrix.scales()), rows[1]);
        chunks.push((at.biases as usize * 4, matrix.biases()));
    }
    let n_bytes = u64::from(slot_layout.n_words) * 4;
    staging.fill(recorder, &StagedCopy { buffer, begin, n_bytes, chunks: &chunks })
}

/// Appends rows of `row_bytes` bytes, skipping the rows of another matrix interleaved with them.
fn push_rows<'a>(
    chunks: &mut Vec<(usize, &'a [u8])>,
    (at, bytes): (usize, &'a [u8]),
    (row_bytes, row_step): (usize, usize),
) {
    if row_step == 1 || row_bytes == 0 {
        chunks.push((at, bytes));
        return;
    }
    let rows = bytes.chunks(row_bytes * row_step).enumerate();
    chunks.extend(rows.map(|(i, row)| (at + i * row_bytes, &row[..row_bytes])));
}

/// Returns the location of a matrix in a slot that was filled from a file.
fn matrix_of(span: MatrixSpan) -> SlotMatrix {
    let MatrixSpan { layout, codes_at, scales_at, biases_at, .. } = span;
    let [codes, scales, biases] = [codes_at, scales_at, biases_at].map(|at| narrow(at / 4));
    SlotMatrix { layout, codes, scales, biases }
}

/// Returns the layouts of gate, up and down.
pub(crate) fn layouts_of(view: &ExpertView<'_>) -> [MatrixLayout; 3] {
    [&view.gate, &view.up, &view.down].map(Matrix::layout)
}

/// Returns a slot layout with gate, up and down in order.
fn slot_layout_of(layouts: [MatrixLayout; 3]) -> ExpertSlotLayout {
    let mut n_bytes = 0_u64;
    let [gate, up, down] = layouts.map(|layout| {
        let [scales, biases, end] = PartBytes::of(layout).places(layout.n_rows);
        let word = |at: u64| u32::try_from((n_bytes + at) / 4).expect("an expert fits 32 bits");
        let (codes, scales, biases) = (word(0), word(scales), word(biases));
        n_bytes += end;
        SlotMatrix { layout, codes, scales, biases }
    });
    let n_words = u32::try_from(n_bytes / 4).expect("an expert fits 32 bits");
    ExpertSlotLayout { gate, up, down, n_words }
}
