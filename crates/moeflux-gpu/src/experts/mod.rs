//! Routed experts in slots on the device, found through tables in device memory.
//!
//! An expert is stored in its slot as in its file: gate, up, down, each with codes, scales and
//! biases. Permanently stored experts are in a bank of their layer. Streamed ones are read in place
//! or are copied to a pool for all layers. **Invariant:** the command that
//! fills a slot follows all commands that read its previous contents.

mod layout;
mod tables;
mod uses;
mod bank;
mod use_stats;
mod balancer;
mod banks;
mod pool;
mod device_cache;
mod slab_imports;
mod in_place;

use std::collections::HashMap;
use std::sync::Arc;

use moeflux::provider::backend::TierStats;
use moeflux::provider::error::Result;
use moeflux::provider::experts::Arrived;
use moeflux::provider::experts::stream::{DeviceMove, MappedSlots, SlotMapping};
use moeflux::provider::ids::{ExpertIdx, LayerIdx};
use moeflux::provider::weights::ExpertView;
use moeflux_kernels::MatrixLayout;

use crate::compiler::ExpertSlotLayout;
use crate::config::GpuConfig;
use crate::device::Gpu;
use crate::device::recorder::CommandRecorder;
use crate::device::staging::Staging;
use crate::params::narrow;
use bank::{BUFFER_BYTES_MAX, Bank, TierSplit};
use banks::ExpertBanks;
use in_place::InPlaceSlots;
use layout::{fill, matrix_of, slot_layout_of};
use pool::SlotPools;
use tables::{ExpertTables, ReadyExperts};
use uses::UseCounters;

pub(crate) use layout::layouts_of;
pub(crate) use tables::ExpertBinding;

/// Upper bounds on the memory of experts.
#[derive(Clone, Copy, Debug)]
struct ExpertLimits {
    /// Bytes of experts in device memory.
    bytes_max: u64,
    /// Bytes of one buffer.
    buffer_bytes_max: u64,
}

/// The slots of all experts on a device, and their tables.
#[derive(Debug)]
pub(crate) struct DeviceExperts {
    /// Layout of each layer's experts in their slots.
    pub(crate) slot_layouts: HashMap<LayerIdx, ExpertSlotLayout>,
    limits: ExpertLimits,
    tables: ExpertTables,
    uses: UseCounters,
    banks: ExpertBanks,
    pools: SlotPools,
    in_place: InPlaceSlots,
    staging: Staging,
}

impl DeviceExperts {
    /// Creates an empty set of experts.
    pub(crate) fn new(gpu: &Gpu, config: &GpuConfig) -> Result<Self> {
        let GpuConfig { expert_bytes_max, expert_buffer_bytes_max, tiers, .. } = *config;
        let limits = ExpertLimits {
            bytes_max: expert_bytes_max,
            buffer_bytes_max: gpu.storage_bytes_max().min(expert_buffer_bytes_max),
        };
        Ok(Self {
            slot_layouts: HashMap::new(),
            limits,
            tables: ExpertTables::new(gpu)?,
            uses: UseCounters::new(gpu, tiers)?,
            banks: ExpertBanks::new(),
            pools: SlotPools::default(),
            in_place: InPlaceSlots::default(),
            staging: Staging::default(),
        })
    }

    /// Returns the buffer of all tables.
    pub(crate) const fn table_buffer(&self) -> &wgpu::Buffer {
        &self.tables.buffer
    }

    /// Returns the number of experts copied to the device so far.
    pub(crate) const fn n_uploaded(&self) -> u64 {
        self.pools.n_uploaded()
    }

    /// Returns the bindings of a layer's permanently stored experts.
    pub(crate) fn bindings(&self, layer: LayerIdx) -> &[ExpertBinding] {
        self.banks.bindings(layer)
    }

    /// Returns the location and use statistics of experts, if host memory may hold some.
    pub(crate) fn tier_stats(&self) -> Option<TierStats> {
        self.uses.counts().map(|_| self.banks.stats())
    }

    /// Returns the interface through which the engine maps slots of host memory, if the device can
    /// read them in place.
    pub(crate) fn slot_mapping(&self) -> Option<Arc<dyn SlotMapping>> {
        self.in_place.slot_mapping()
    }

    /// Lets kernels read experts directly in these slots of host memory from now on; copies use the
    /// same layout.
    pub(crate) fn map_slots(&mut self, gpu: &Arc<Gpu>, slots: &MappedSlots) -> Result<()> {
        let n_words = narrow(slots.stride_bytes / 4);
        for (layer, layout) in &slots.layouts {
            let [gate, up, down] = [layout.gate, layout.up, layout.down].map(matrix_of);
            self.slot_layouts.insert(*layer, ExpertSlotLayout { gate, up, down, n_words });
        }
        let slot_bytes = slots.stride_bytes as u64;
        self.in_place = InPlaceSlots::new(gpu, slot_bytes, self.limits)?;
        self.limits.bytes_max -= self.in_place.n_cached() as u64 * slot_bytes;
        Ok(())
    }

    /// Returns the layout of a layer's experts in their slots. The first call derives it from the
    /// layouts of gate, up and down.
    pub(crate) fn note_slot_layout(
        &mut self,
        layer: LayerIdx,
        layouts: [MatrixLayout; 3],
    ) -> ExpertSlotLayout {
        *self.slot_layouts.entry(layer).or_insert_with(|| slot_layout_of(layouts))
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
        if !self.banks.has(layer) {
            self.add_bank(recorder.gpu(), (layer, n_experts), &slot_layout)?;
        }
        let location = self.banks.location(layer, expert);
        fill((&mut self.staging, recorder), location, (view, &slot_layout))
    }

    fn add_bank(
        &mut self,
        gpu: &Gpu,
        (layer, n_experts): (LayerIdx, usize),
        slot_layout: &ExpertSlotLayout,
    ) -> Result<()> {
        // The remaining layers share the remaining bytes equally.
        let device_bytes = self.uses.counts().map(|_| {
            let n_left = self.slot_layouts.len().saturating_sub(self.banks.len()).max(1);
            self.limits.bytes_max.saturating_sub(self.banks.n_bytes()[0]) / n_left as u64
        });
        let slot_bytes = slot_layout.n_bytes();
        let n_per_buffer = self.limits.buffer_bytes_max.min(BUFFER_BYTES_MAX) / slot_bytes;
        if n_per_buffer == 0 {
            let problem =
                format!("an expert of {slot_bytes} bytes exceeds what its kernels can address");
            return Err(gpu.error(&problem));
        }
        let split = TierSplit::new(n_experts, slot_bytes, (device_bytes, n_per_buffer));
        let no_room = || gpu.error("more experts than its tables have room for");
        let uses_at = self.uses.add(n_experts).ok_or_else(no_room)?;
        let (uses, tables) = (&self.uses, &mut self.tables);
        let mut bind = |pair: [&wgpu::Buffer; 2]| {
            let table_at = tables.add_resident(n_experts).ok_or_else(no_room)?;
            Ok(ExpertBinding { bind_group: uses.bind(gpu, pair, uses_at), table_at })
        };
        let bank = Bank::new(gpu, split, &mut bind)?;
        self.tables.write_resident(gpu, &bank.tables());
        self.banks.add(layer, bank, (uses_at, n_experts));
        Ok(())
    }

    /// Begins a step: moves the most used experts to device memory, if due. Returns `false` if the
    /// recorded commands must be submitted first.
    pub(crate) fn begin_step(&mut self, recorder: &mut CommandRecorder) -> Result<bool> {
        self.banks.rebalance(recorder, &self.uses, &mut self.tables)?;
        self.tables.refresh((&mut self.staging, recorder), self.banks.tables())
    }

    /// Lets tables that the recorded commands used be overwritten. Call it when all of them are
    /// submitted.
    pub(crate) const fn submitted(&mut self) {
        self.tables.submitted();
    }

    /// Copies an expert to a slot of the cache in device memory. Returns `false` if the recorded
    /// commands must be submitted first.
    pub(crate) fn copy_to_cache(
        &mut self,
        recorder: &mut CommandRecorder,
        expert: &DeviceMove<'_>,
    ) -> Result<bool> {
        let (target, begin) = self.in_place.cache_slot(expert.to);
        let slot_layout = self.slot_layouts[&expert.layer];
        let Some(slab) = self.in_place.import(expert.from.slab) else {
            let staging = (&mut self.staging, recorder);
            return fill(staging, (target, begin), (&expert.view, &slot_layout));
        };
        let n_bytes = slot_layout.n_bytes();
        let from = expert.from.idx_in_slab as u64 * n_bytes;
        let encoder = recorder.encoder();
        encoder.copy_buffer_to_buffer(&slab.buffer, from, target, begin, n_bytes);
        Ok(true)
    }

    /// Brings experts of a group to the device, from index `first` on, as many as fit in slots at
    /// once. Returns `None` if the recorded commands must be submitted first.
    pub(crate) fn make_ready(
        &mut self,
        recorder: &mut CommandRecorder,
        (layer, n_experts): (LayerIdx, usize),
        (arrived, first): (&Arrived<'_>, usize),
    ) -> Result<Option<ReadyExperts>> {
        let mut group = self.in_place.group(arrived, first);
        if group.is_empty() {
            let staging = (&mut self.staging, &mut *recorder);
            let of_layer = (layer, &self.slot_layouts[&layer]);
            let memory = (self.limits, &self.uses);
            group = self.pools.bring(staging, of_layer, (arrived, first), memory)?;
        }
        Ok(self.tables.bind(recorder.gpu(), n_experts, group))
    }
}
