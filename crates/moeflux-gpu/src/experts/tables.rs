//! Tables of experts in device memory, through which kernels find the slots of experts.
//!
//! **Invariant:** the tables of a group stay as they are until the commands that read them are
//! submitted. Those of permanently stored experts are rewritten by a command, between two steps.

use moeflux::provider::error::Result;
use moeflux::provider::ids::ExpertIdx;

use crate::device::Gpu;
use crate::device::recorder::CommandRecorder;
use crate::device::staging::{StagedCopy, Staging};
use crate::memory::STORAGE;
use crate::params::narrow;

/// Table entry of experts that are not in the bound buffers.
pub(super) const ABSENT: u32 = u32::MAX;

/// Table words that can be recorded before a submission.
const N_TABLE_WORDS: usize = 1 << 18;

/// End of the tables of permanently stored experts: several for each of 60 layers of 1,024 experts.
const N_RESIDENT_WORDS_END: usize = 1 << 20;

/// Upper bound on the words of permanently stored experts.
pub(super) const N_RESIDENT_WORDS_MAX: usize = N_RESIDENT_WORDS_END - N_TABLE_WORDS;

/// Bindings of a dispatch over experts: a buffer of slots, and the offset of its table.
#[derive(Debug)]
pub(crate) struct ExpertBinding {
    pub(crate) bind_group: wgpu::BindGroup,
    pub(crate) table_at: u32,
}

/// The first experts of a group, ready for kernels.
#[derive(Debug)]
pub(crate) struct ReadyExperts {
    /// Number of experts from the first requested one on.
    pub(crate) n: usize,
    /// Bindings to dispatch over.
    pub(crate) bindings: Vec<ExpertBinding>,
}

/// The first experts of a group, in slots of some buffers.
#[derive(Debug, Default)]
pub(super) struct PlacedGroup {
    n: usize,
    /// Bind group of each buffer, and the slots of experts there.
    buffers: Vec<(wgpu::BindGroup, Vec<(ExpertIdx, u32)>)>,
}

impl PlacedGroup {
    pub(super) const fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Adds an expert and its slot in a buffer.
    pub(super) fn add(&mut self, bind_group: wgpu::BindGroup, expert: (ExpertIdx, u32)) {
        self.n += 1;
        match self.buffers.iter_mut().find(|(known, _)| *known == bind_group) {
            Some((_, experts)) => experts.push(expert),
            None => self.buffers.push((bind_group, vec![expert])),
        }
    }
}

/// All tables, in one buffer: first those of groups, then those of permanently stored experts.
#[derive(Debug)]
pub(super) struct ExpertTables {
    /// Tables, as kernels see them.
    pub(super) buffer: wgpu::Buffer,
    /// Words of groups since the last submission.
    n_used: usize,
    /// Offset of the next table of permanently stored experts.
    resident_end: usize,
    /// Whether permanently stored experts have moved since their tables were written.
    is_stale: bool,
}

impl ExpertTables {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let n_bytes = (N_RESIDENT_WORDS_END * 4) as u64;
        let buffer = gpu.buffer("tables of experts", n_bytes, STORAGE)?;
        Ok(Self { buffer, n_used: 0, resident_end: N_TABLE_WORDS, is_stale: false })
    }

    /// Reuses the words of groups, since all recorded commands are submitted.
    pub(super) const fn submitted(&mut self) {
        self.n_used = 0;
    }

    /// Writes a table for each buffer of a group, before all later submissions. Returns `None` if
    /// the group is empty, or if the recorded commands must be submitted first.
    pub(super) fn bind(
        &mut self,
        gpu: &Gpu,
        n_experts: usize,
        group: PlacedGroup,
    ) -> Option<ReadyExperts> {
        let n_words = n_experts * group.buffers.len();
        if group.is_empty() || self.n_used + n_words > N_TABLE_WORDS {
            return None;
        }
        let first_at = self.n_used;
        let mut tables = vec![ABSENT; n_words];
        let mut bindings = Vec::with_capacity(group.buffers.len());
        for (table, (bind_group, experts)) in tables.chunks_exact_mut(n_experts).zip(group.buffers)
        {
            for (expert, slot) in experts {
                table[expert.0] = slot;
            }
            bindings.push(ExpertBinding { bind_group, table_at: narrow(self.n_used) });
            self.n_used += n_experts;
        }
        gpu.write(&self.buffer, (first_at * 4) as u64, bytemuck::cast_slice(&tables));
        Some(ReadyExperts { n: group.n, bindings })
    }

    /// Assigns an offset to a table of permanently stored experts; `None` if there is no room.
    pub(super) fn add_resident(&mut self, n_experts: usize) -> Option<u32> {
        let table_at = self.resident_end;
        self.resident_end += n_experts;
        (self.resident_end <= N_RESIDENT_WORDS_END).then(|| narrow(table_at))
    }

    /// Writes tables of permanently stored experts, each with its offset, before all later
    /// submissions.
    pub(super) fn write_resident(&self, gpu: &Gpu, tables: &[(u32, Vec<u32>)]) {
        for (table_at, table) in tables {
            gpu.write(&self.buffer, u64::from(*table_at) * 4, bytemuck::cast_slice(table));
        }
    }

    /// Notes that permanently stored experts have moved.
    pub(super) const fn note_moved(&mut self) {
        self.is_stale = true;
    }

    /// Rewrites the tables of all permanently stored experts by one command, if these have moved.
    /// Returns `false` if the recorded commands must be submitted first.
    pub(super) fn refresh(
        &mut self,
        (staging, recorder): (&mut Staging, &mut CommandRecorder),
        tables: impl Iterator<Item = (u32, Vec<u32>)>,
    ) -> Result<bool> {
        if !self.is_stale {
            return Ok(true);
        }
        let mut words = vec![ABSENT; self.resident_end - N_TABLE_WORDS];
        for (table_at, table) in tables {
            let at = table_at as usize - N_TABLE_WORDS;
            words[at..at + table.len()].copy_from_slice(&table);
        }
        let chunks = [(0, bytemuck::cast_slice(&words))];
        let (begin, n_bytes) = ((N_TABLE_WORDS * 4) as u64, (words.len() * 4) as u64);
        let copy = StagedCopy { buffer: &self.buffer, begin, n_bytes, chunks: &chunks };
        self.is_stale = !staging.fill(recorder, &copy)?;
        Ok(!self.is_stale)
    }
}
