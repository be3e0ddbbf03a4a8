//! A model's memory needs, computed from its headers, and the placement of its experts.

use moeflux_io::{BLOCK_BYTES, available_memory_bytes, process_memory_bytes};

use crate::backend::kv::positions_in_pages;
use crate::blueprint::Blueprint;
use crate::budget::{
    ExpertNeeds, FixedNeeds, HostExpertBudget, Placement, limit, place, place_beside_device,
    place_on_device,
};
use crate::config::{BackendKind, Budget, EngineConfig, N_ROWS_DEFAULT, N_ROWS_MAX};
use crate::error::{Error, Result};
use crate::experts::stream::{record_shape, slot_shape};
use crate::ops::KvKind;
use crate::rows::RowReader;
use crate::weights::{ExpertBank, Manifest, ManifestOrigin, check_room};

/// Memory of the machine on which an engine is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Bytes of the process before the model is loaded.
    pub program_bytes: u64,
    /// Bytes available beside it, where that is known.
    pub available_bytes: Option<u64>,
}

impl Host {
    /// Returns the present state of this machine.
    #[must_use]
    pub fn here() -> Self {
        Self {
            program_bytes: process_memory_bytes().unwrap_or(0),
            available_bytes: available_memory_bytes(),
        }
    }
}

/// How an engine's memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Upper bound on the process's bytes in host memory.
    pub budget_bytes: u64,
    /// Bytes of the weights that every token uses.
    pub resident_bytes: u64,
    /// Bytes of routed experts.
    pub expert_bytes: u64,
    /// Bytes of those experts that a device reads in host memory.
    pub far_expert_bytes: u64,
    /// Bytes of activations of one step.
    pub workspace_bytes: u64,
    /// Bytes of rows of tables: of all rows, or of those used last.
    pub table_bytes: u64,
    /// Bytes per session, whatever its length.
    pub session_fixed_bytes: u64,
    /// Bytes per session and position of its context.
    pub session_bytes_per_position: u64,
}

/// The memory layout of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    /// Where the experts are.
    pub placement: Placement,
    /// Upper bound on the rows computed in one step.
    pub n_rows_max: usize,
    /// Distance from one slot for an expert to the next.
    pub slot_bytes: u64,
    /// Bytes of all but routed experts: this program, the weights that every token uses, a step,
    /// the sessions.
    pub fixed_bytes: u64,
    /// Bytes of these that are reserved for sessions.
    pub session_bytes: u64,
    /// How the memory is divided.
    pub memory: Memory,
    /// Bytes of these for rows that stay in memory.
    pub row_cache_bytes: u64,
    /// Bytes of routed experts that fit on a device, where that is known.
    pub device_expert_bytes: Option<u64>,
    /// Upper bound on bytes of sessions where they are computed, if there is one.
    pub session_room_bytes: Option<u64>,
}

/// Where the system caches what is read, one slot in this many is enough: the rest of the budget is
/// left to the page cache.
pub(crate) const PAGE_CACHE_SHARE: usize = 8;

/// Upper bound on experts between two exchanges of several machines; more only take more memory for
/// intermediate values.
const N_CHUNK_EXPERTS_MAX: usize = 128;

/// Upper bound on rows where experts are streamed. More do not make reads cheaper per expert: far
/// fewer rows already need all experts of a layer.
const N_ROWS_STREAMING_MAX: usize = 4096;

/// Bytes for rows of tables that were used last, unless all are in memory: 100,000 rows of 320
/// bytes, which 6,000 tokens of Qwen3.8-Flash-Next need.
const ROW_CACHE_BYTES: u64 = 32 << 20;

/// Lower bound on rows: fewer save no significant memory.
const N_ROWS_LEAST: usize = 32;

/// Upper bound on the workspace of a longer step: one part in this many of the budget, since
/// experts lose what it takes.
const WORKSPACE_SHARE: u64 = 8;

/// Scratch of a backend beside its workspace: a fixed part, and one part in this many of the
/// workspace.
const SCRATCH_BYTES: u64 = 32 << 20;
const SCRATCH_SHARE: u64 = 2;

impl MemoryLayout {
    /// Computes the layout of a model on this machine.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if the budget or the memory is too small; [`Error::Input`] for too many
    /// rows.
    pub fn new(blueprint: &Blueprint, config: &EngineConfig) -> Result<Self> {
        Self::on(Host::here(), blueprint, config)
    }

    /// Computes the layout of a model on the given machine, in the form that suits it: a dense
    /// model is in memory if all of it fits there, or on the device; otherwise the feed-forwards of
    /// its layers are streamed. Returns that form of `blueprint` as well.
    ///
    /// # Errors
    ///
    /// As [`MemoryLayout::new`].
    pub fn choose<'b>(
        host: Host,
        blueprint: &'b Blueprint,
        config: &EngineConfig,
    ) -> Result<(&'b Blueprint, Self)> {
        let whole = Self::on(host, blueprint, config);
        let Some(streamed) = &blueprint.streamed else { return whole.map(|it| (blueprint, it)) };
        let n_slots_max = config.streaming.n_slots_max.unwrap_or(usize::MAX);
        match whole {
            Ok(layout)
                if n_slots_max >= streamed.manifest.banks.len()
                    && layout.fits_device(host, config) =>
            {
                Ok((blueprint, layout))
            }
            Ok(_) | Err(Error::NoRoom { .. }) => {
                Self::on(host, streamed, config).map(|layout| (&**streamed, layout))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether all that is not a routed expert fits onto the device, if there is one.
    fn fits_device(&self, host: Host, config: &EngineConfig) -> bool {
        let Memory { budget_bytes, resident_bytes, .. } = self.memory;
        let room_bytes = device_room(config, budget_bytes, host.program_bytes);
        let host_bytes =
            host.program_bytes + config.streaming.beside_bytes + self.memory.table_bytes;
        let model_bytes = self.fixed_bytes - host_bytes;
        debug_assert!(model_bytes >= resident_bytes, "the model has its weights");
        room_bytes.is_none_or(|room_bytes| model_bytes <= room_bytes)
    }

    /// Returns the smallest budget with which [`MemoryLayout::choose`] succeeds, plus a small
    /// margin, since the size of a process varies between runs.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for too many rows.
    pub fn least_bytes(host: Host, blueprint: &Blueprint, config: &EngineConfig) -> Result<u64> {
        let mut config = config.clone();
        config.streaming.budget = Budget::Bytes(0);
        match Self::choose(host, blueprint, &config).map(|(_, layout)| layout) {
            // All of the model is on a device.
            Ok(_) => Ok(host.program_bytes),
            Err(Error::NoRoom { needed_bytes, .. }) => Ok(needed_bytes),
            Err(error) => Err(error),
        }
    }

    /// Computes the layout of a model on the given machine. Pure arithmetic, shared by plans and
    /// engines.
    ///
    /// # Errors
    ///
    /// As [`MemoryLayout::new`].
    pub fn on(host: Host, blueprint: &Blueprint, config: &EngineConfig) -> Result<Self> {
        let Host { program_bytes, available_bytes } = host;
        let plan = &blueprint.plan;
        let (state, streaming) = (&plan.state, &config.streaming);
        let experts = expert_needs(blueprint);
        let limit_bytes = limit(streaming.budget, program_bytes, available_bytes);
        let per_position = state.bytes_per_position(kv_kind(config));
        let needs = |n_rows| fixed_needs(blueprint, config, (program_bytes, n_rows));
        let room_bytes = device_room(config, limit_bytes, program_bytes);
        let device_bytes =
            |needs: &FixedNeeds| room_bytes.map(|room| room.saturating_sub(needs.model_bytes()));
        let host_budget = host_budget(config, limit_bytes);
        let on_device = |needs: &FixedNeeds| {
            place_on_device(needs, &experts, device_bytes(needs)?, host_budget)
        };
        let n_rows_max = match config.n_rows_max {
            Some(n_rows_max) => n_rows_max.get(),
            None => {
                let is_on_device = on_device(&needs(N_ROWS_DEFAULT)).is_some();
                rows_of_a_step(config, &|n_rows| match needs(n_rows) {
                    needs if is_on_device => fit_of(&needs, on_device(&needs).and(room_bytes)),
                    needs => fit_in_memory(&needs, &experts, limit_bytes),
                })
            }
        };
        check_rows(n_rows_max)?;
        let needs = needs(n_rows_max);
        let in_memory = match on_device(&needs) {
            Some(on_device) => on_device,
            None => place_beside_device(&needs, &experts, (limit_bytes, host_budget))?,
        };
        let placement = at_most(streaming.n_slots_max, &experts).unwrap_or(in_memory);
        let [expert_bytes, far_expert_bytes] = experts_of(placement, &experts);
        let room_beside_experts = match (placement, &config.device) {
            (Placement::Resident, None) => limit_bytes.saturating_sub(expert_bytes),
            _ => 0,
        };
        let (needs, row_cache_bytes) =
            with_tables(blueprint, (needs, n_rows_max), room_beside_experts);
        if streaming.budget != Budget::Auto {
            let needed_bytes =
                needed_host_bytes(placement, &needs.of_host(host_budget), expert_bytes);
            check_room("the model", needed_bytes, available_bytes)?;
        }
        let memory = Memory {
            budget_bytes: limit_bytes,
            resident_bytes: needs.resident_bytes,
            expert_bytes,
            far_expert_bytes,
            workspace_bytes: plan.workspace.bytes(n_rows_max),
            table_bytes: needs.table_bytes,
            session_fixed_bytes: state.fixed_bytes(),
            session_bytes_per_position: per_position,
        };
        let device_expert_bytes = device_bytes(&needs);
        // Sessions have the memory reserved for them and all that is otherwise unused.
        let left_bytes = match config.device {
            Some(_) => device_expert_bytes.map(|bytes| bytes.saturating_sub(experts.all_bytes)),
            None => Some(limit_bytes.saturating_sub(needs.bytes() + expert_bytes)),
        };
        Ok(Self {
            placement,
            n_rows_max,
            slot_bytes: experts.shape.stride_bytes as u64,
            fixed_bytes: needs.bytes(),
            session_bytes: needs.session_bytes,
            memory,
            row_cache_bytes,
            device_expert_bytes,
            session_room_bytes: left_bytes.map(|left_bytes| needs.session_bytes + left_bytes),
        })
    }
}

impl MemoryLayout {
    /// Returns the number of experts that one of several machines can hold until the others catch
    /// up.
    #[must_use]
    pub fn n_held(&self) -> usize {
        match self.placement {
            // A lower bound: the slots that remain where the system caches what is read.
            Placement::Streaming { n_slots } => n_slots / PAGE_CACHE_SHARE,
            Placement::Resident | Placement::OnDevice { .. } => 2 * N_CHUNK_EXPERTS_MAX,
        }
    }
}

/// Returns the number of experts between two exchanges of machines that can hold `n_held` each. The
/// other slots are for what is read meanwhile.
#[must_use]
pub fn n_experts_of_chunk(n_held: usize, top_k: usize) -> usize {
    (n_held / 2).max(top_k).min(N_CHUNK_EXPERTS_MAX.max(top_k))
}

/// Returns an upper bound on the bytes that several machines exchange in a step, counted twice: in
/// memory and in a message.
fn exchanged_bytes(blueprint: &Blueprint, n_rows: usize) -> u64 {
    let Blueprint { plan, spec, .. } = blueprint;
    let layers = plan.layers.iter().zip(&spec.layers);
    let values_of_row = layers.filter_map(|(layer, spec)| {
        let sharded = layer.moe.as_ref()?.sharded.as_ref()?;
        let n_hidden: usize = sharded.sums.iter().map(|cols| cols.head_dim).sum();
        Some((spec.ffn.top_k() * sharded.n_inner).max(n_hidden))
    });
    let n_values = values_of_row.max().unwrap_or(0) * n_rows;
    (2 * n_values * size_of::<f32>()) as u64
}

/// Returns the needs of a process of `program_bytes` with steps of `n_rows` rows, if most rows of
/// tables stay on the drive.
fn fixed_needs(
    blueprint: &Blueprint,
    config: &EngineConfig,
    (program_bytes, n_rows): (u64, usize),
) -> FixedNeeds {
    let Blueprint { manifest, plan, .. } = blueprint;
    let streaming = &config.streaming;
    let n_kept = positions_in_pages(streaming.context) as u64;
    let kept_bytes = plan.state.bytes_per_position(kv_kind(config)) * n_kept;
    FixedNeeds {
        program_bytes,
        beside_bytes: streaming.beside_bytes,
        table_bytes: table_bytes(blueprint, n_rows, ROW_CACHE_BYTES),
        resident_bytes: manifest.resident_bytes(),
        workspace_bytes: step_bytes(plan.workspace.bytes(n_rows))
            + exchanged_bytes(blueprint, n_rows),
        // The data to undo a failed step is as large as the fixed state.
        session_bytes: 2 * plan.state.fixed_bytes() + kept_bytes,
        n_positions: streaming.context,
    }
}

/// Returns the needs, and the bytes for rows that stay in memory: of whole tables, if these fit
/// beside all experts into `room_bytes`.
fn with_tables(
    blueprint: &Blueprint,
    (needs, n_rows): (FixedNeeds, usize),
    room_bytes: u64,
) -> (FixedNeeds, u64) {
    let table_bytes = table_bytes(blueprint, n_rows, u64::MAX);
    let whole = FixedNeeds { table_bytes, ..needs };
    if whole.bytes() <= room_bytes { (whole, u64::MAX) } else { (needs, ROW_CACHE_BYTES) }
}

/// Returns the bytes for rows of tables: those that stay in memory, and those of one step, which
/// are kept as stored and as floats.
fn table_bytes(blueprint: &Blueprint, n_rows: usize, cache_bytes: u64) -> u64 {
    let Blueprint { manifest, plan, .. } = blueprint;
    if manifest.tables.is_empty() {
        return 0;
    }
    let step_bytes = plan.table_bytes_per_row() * n_rows as u64;
    RowReader::memory_bytes(&manifest.tables, cache_bytes).saturating_add(step_bytes)
}

/// A synthetic checkpoint is laid out as if packed.
fn expert_needs(blueprint: &Blueprint) -> ExpertNeeds {
    let Manifest { banks, origin, .. } = &blueprint.manifest;
    ExpertNeeds {
        name: if blueprint.manifest.is_read_in_turn() {
            "a layer's feed-forward"
        } else {
            "experts"
        },
        all_bytes: banks.iter().map(ExpertBank::memory_bytes).sum(),
        shape: match origin {
            ManifestOrigin::Checkpoint => slot_shape(banks, BLOCK_BYTES),
            ManifestOrigin::Synthetic(_) => record_shape(banks),
        },
        n_slots_min: blueprint.spec.top_k_max(),
    }
}

/// Returns the bytes that a model may take on the device, where that is known. Memory shared with
/// the host is counted once: the process has no more than its limit.
fn device_room(config: &EngineConfig, limit_bytes: u64, program_bytes: u64) -> Option<u64> {
    let device = config.device.as_ref()?;
    let room_bytes = device.room_bytes()?;
    let host_bytes = limit_bytes.saturating_sub(program_bytes + config.streaming.beside_bytes);
    Some(if device.shares_memory() { room_bytes.min(host_bytes) } else { room_bytes })
}

fn host_budget(config: &EngineConfig, limit_bytes: u64) -> HostExpertBudget {
    let sees_host = config.device.as_ref().is_some_and(|device| device.sees_host());
    if sees_host { HostExpertBudget::Bytes(limit_bytes) } else { HostExpertBudget::Unreadable }
}

/// Returns the placement where the number of slots is limited to fewer than there are experts.
fn at_most(n_slots_max: Option<usize>, experts: &ExpertNeeds) -> Option<Placement> {
    let n_slots = n_slots_max.filter(|n_slots| *n_slots < experts.shape.n_experts)?;
    Some(Placement::Streaming { n_slots: n_slots.max(experts.n_slots_min) })
}

/// Returns the bytes of all experts with room in memory, and of those that a device reads in host
/// memory.
fn experts_of(placement: Placement, experts: &ExpertNeeds) -> [u64; 2] {
    match placement {
        Placement::OnDevice { host_bytes } => [experts.all_bytes, host_bytes],
        Placement::Resident => [experts.all_bytes, 0],
        Placement::Streaming { n_slots } => [experts.shape.bytes(n_slots), 0],
    }
}

/// Returns the bytes that a model takes of host memory.
fn needed_host_bytes(placement: Placement, needs: &FixedNeeds, expert_bytes: u64) -> u64 {
    match placement {
        Placement::OnDevice { host_bytes } => host_bytes,
        Placement::Resident | Placement::Streaming { .. } => {
            needs.bytes() - needs.program_bytes + expert_bytes
        }
    }
}

/// Returns the format of keys and values.
fn kv_kind(config: &EngineConfig) -> KvKind {
    match (&config.device, config.backend) {
        (Some(_), _) | (None, BackendKind::Reference) => KvKind::F32,
        (None, BackendKind::Cpu) => config.arithmetic.kv_kind(),
    }
}

fn check_rows(n_rows_max: usize) -> Result<()> {
    if n_rows_max <= N_ROWS_MAX {
        return Ok(());
    }
    Err(Error::Input(format!("{n_rows_max} rows per step exceed the maximum of {N_ROWS_MAX}")))
}

/// Returns the bytes of a step with this workspace, including scratch for the widest use of it.
#[must_use]
pub fn step_bytes(workspace_bytes: u64) -> u64 {
    workspace_bytes + workspace_bytes / SCRATCH_SHARE + SCRATCH_BYTES
}

/// How well a number of rows per step suits a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    TooMany,
    Enough,
    /// They fit and leave most of the budget to experts.
    MoreIsBetter,
}

/// Rates a step within `room_bytes`. `None` means that the step does not fit; it is rated as
/// enough, since only larger steps are tried.
fn fit_of(needs: &FixedNeeds, room_bytes: Option<u64>) -> Fit {
    match room_bytes {
        Some(room) if needs.workspace_bytes <= room / WORKSPACE_SHARE => Fit::MoreIsBetter,
        _ => Fit::Enough,
    }
}

fn fit_in_memory(needs: &FixedNeeds, experts: &ExpertNeeds, limit_bytes: u64) -> Fit {
    match place(needs, experts, limit_bytes) {
        Err(_) => Fit::TooMany,
        Ok(Placement::Resident | Placement::OnDevice { .. }) => Fit::Enough,
        Ok(Placement::Streaming { .. }) => fit_of(needs, Some(limit_bytes)),
    }
}

/// Returns the rows of a step. More than the default for a longer context, where a device has room:
/// it dequantises an expert once for all rows of a step. Without a device, a prompt borrows that
/// memory while it runs, and decoding has the slots. Fewer than the default where there is no room
/// for them.
fn rows_of_a_step(config: &EngineConfig, fit: &dyn Fn(usize) -> Fit) -> usize {
    let mut n_rows = N_ROWS_DEFAULT;
    while n_rows > N_ROWS_LEAST && fit(n_rows) == Fit::TooMany {
        n_rows /= 2;
    }
    let n_rows_useful = match config.device {
        Some(_) => config.streaming.context.min(N_ROWS_STREAMING_MAX),
        None => n_rows,
    };
    while n_rows < n_rows_useful && fit(2 * n_rows) == Fit::MoreIsBetter {
        n_rows *= 2;
    }
    n_rows
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use super::*;
    use crate::backend::{Arithmetic, Backend};
    use crate::config::{DeviceMaker, DeviceParts, StreamingConfig};

    #[derive(Debug)]
    struct Room {
        n_bytes: u64,
        is_shared: bool,
    }

    impl DeviceMaker for Room {
        fn room_bytes(&self) -> Option<u64> {
            Some(self.n_bytes)
        }

        fn shares_memory(&self) -> bool {
            self.is_shared
        }

        fn make(&self, _: &DeviceParts<'_>) -> Result<Box<dyn Backend>> {
            unreachable!("nothing is computed")
        }
    }

    #[test]
    fn memory_that_a_device_shares_is_counted_once() {
        let room = |n_bytes, is_shared| {
            let config = EngineConfig {
                backend: BackendKind::Cpu,
                device: Some(Arc::new(Room { n_bytes, is_shared })),
                arithmetic: Arithmetic::F32,
                kernels: None,
                n_threads: NonZeroUsize::MIN,
                n_rows_max: None,
                streaming: StreamingConfig { beside_bytes: 5, ..StreamingConfig::default() },
                ranks: None,
            };
            device_room(&config, 100, 10)
        };
        assert_eq!(room(200, false), Some(200));
        assert_eq!(room(200, true), Some(85));
        assert_eq!(room(60, true), Some(60));
    }
}
