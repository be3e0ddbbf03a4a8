//! The engine: loads a model onto a device and creates sessions over it.
//!
//! There is no global state: one process can run several engines, each with its own model.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moeflux_io::Caching;
use moeflux_kernels::KernelTable;

use crate::backend::cpu::CpuBackend;
use crate::backend::reference::ReferenceBackend;
use crate::backend::{Backend, DeviceNames, TierStats};
use crate::blueprint::Blueprint;
use crate::budget::{
    self, Memory, MemoryLayout, Placement, PromptTerms, SessionRoom, SessionTerms, SlotLender,
    n_slots_of_prompt,
};
use crate::config::{BackendKind, DeviceParts, EngineConfig, ReadWay, StreamingConfig};
use crate::drives::{drives, open_tables, table_scales};
use crate::error::{Error, Result};
use crate::experts::stream::{
    Drives, ExpertStream, MappedSlots, ReadPurpose, StreamConfig, StreamModel, StreamStats,
};
use crate::experts::trace::TraceWriter;
use crate::experts::{
    Experts, LayerExperts, ResidentExperts, RestStats, StepTimes, for_each_expert,
};
use crate::families::ModelPlan;
use crate::format::{Checkpoint, CheckpointSums, ShardFile};
use crate::forward::{LoadedModel, ShardGroup};
use crate::ids::LayerIdx;
use crate::model::Model;
use crate::opening::{
    AgreedLimits, DescribedModel, combined_progress, describe, fingerprint, handshake,
};
use crate::ranks::{Hello, LeaderBackend, LinkStats, SharedLink};
use crate::rows::RowStats;
use crate::session::{LongerSteps, Runtime, Session, Snapshot, SnapshotHeader, identity};
use crate::spec::{MixerSpec, ModelSpec};
use crate::weights::{self, ExpertLayout, Manifest, PageCaching, Progress, Weights};

/// Factor on the timeout of ranks while they load a model.
const LOAD_TIMEOUT_FACTOR: u32 = 20;

/// How long [`Engine::read_rest`] holds the device before it lets others use it.
const REST_TURN: Duration = Duration::from_millis(5);

/// Returns the kernels of an instruction set by its name.
///
/// # Errors
///
/// [`Error::Input`] if this CPU has no such kernels; it lists those that the CPU has.
pub fn kernels_named(isa: &str) -> Result<&'static KernelTable> {
    moeflux_kernels::by_name(isa).ok_or_else(|| {
        let names: Vec<_> = moeflux_kernels::available().iter().map(|it| it.name()).collect();
        Error::Input(format!(
            "this CPU does not support {isa:?} kernels; available: {}",
            names.join(", ")
        ))
    })
}

/// A model that is ready to run.
#[derive(Debug)]
pub struct Engine {
    dir: PathBuf,
    runtime: Arc<Runtime>,
    memory: Memory,
    n_rows_max: usize,
    /// The files as they were when the model was opened.
    pub(crate) files: Vec<ShardFile>,
}

impl Engine {
    /// Reads the weights of a model. Routed experts are loaded in the background, streamed, or, if
    /// all fit onto a device, loaded now. `watch` receives the bytes read so far, and may cancel.
    /// Without any promise of stability: programs use [`Engine::builder`].
    ///
    /// # Errors
    ///
    /// If the checkpoint or the machine does not allow it; [`Error::Cancelled`].
    pub fn load(
        model: Model,
        config: &EngineConfig,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let _open = tracing::info_span!("open", dir = %model.path().display()).entered();
        let loaded = Self::load_with_ranks(model, config, watch);
        match &loaded {
            Ok(engine) => {
                let Memory { resident_bytes, expert_bytes, workspace_bytes, .. } = engine.memory;
                tracing::info!(resident_bytes, expert_bytes, workspace_bytes, "model opened");
            }
            // The caller receives the error and reports it to its user.
            Err(error) => tracing::debug!(%error, fault = ?error.fault(), "cannot open the model"),
        }
        loaded
    }

    /// Loads the model; if there are several ranks, on each of them, and compares their weights.
    fn load_with_ranks(
        model: Model,
        config: &EngineConfig,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let dir = model.path().to_owned();
        let described = describe(model, config);
        let Some(group) = &config.ranks else {
            return Self::load_described(&dir, (config, None), described?, watch);
        };
        let (described, agreed) = handshake(group, config, described)?;
        let loaded = Self::load_described(&dir, (config, Some(agreed)), described, watch);
        // Ranks load at different speeds.
        group.link().lock().set_timeout_factor(LOAD_TIMEOUT_FACTOR);
        let fingerprint = |engine: &Self| format!("{:016x}", engine.runtime.model().fingerprint);
        let same = |engine: Self| (vec![("weights", fingerprint(&engine))], engine);
        let (hello, loaded) = match loaded.map(same) {
            Ok((same, engine)) => (Ok(Hello { same, least: Vec::new() }), Some(engine)),
            Err(error) => (Err(error), None),
        };
        let compared = group.link().lock().handshake(hello);
        group.link().lock().set_timeout_factor(1);
        compared?;
        Ok(loaded.expect("what could not be loaded was an error for all"))
    }

    /// Reads the weights of a described model, as far as its layout keeps them in memory.
    fn load_described(
        dir: &Path,
        (config, agreed): (&EngineConfig, Option<AgreedLimits>),
        described: DescribedModel,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let DescribedModel { blueprint, whole_banks, checkpoint, mirror, .. } = described;
        let DescribedModel { header_fingerprint, mut layout, .. } = described;
        if let Some(agreed) = agreed {
            layout.n_rows_max = agreed.n_rows_max;
        }
        let is_streaming = matches!(layout.placement, Placement::Streaming { .. });
        let page_caching = if is_streaming { PageCaching::Dropped } else { PageCaching::Kept };
        let sums = sums_of(config, &checkpoint)?;
        let Blueprint { spec, plan, manifest, .. } = blueprint;
        let mut watch = combined_progress(&layout, &manifest, watch);
        let weights =
            weights::load(&manifest, &checkpoint, (sums.as_deref(), page_caching), &mut watch)?;
        // Of the whole model, so that several ranks can resume a state saved by one machine.
        let whole = whole_banks.map(|banks| Manifest { banks, ..manifest.clone() });
        let whole = whole.as_ref().unwrap_or(&manifest);
        let fingerprint = fingerprint(header_fingerprint, (whole, &weights), &checkpoint)?;
        let layouts: Vec<_> = manifest.banks.iter().map(|it| (it.layer, it.layout)).collect();
        let slot_drives =
            is_streaming.then(|| drives(config, (&checkpoint, &manifest), ReadPurpose::Slots));
        let mut slot_drives = slot_drives.transpose()?;
        let slots = slot_drives.as_ref();
        let slots = slots.map(|it| MappedSlots::new(&manifest.banks, it.block_bytes()));
        let scales = table_scales(&manifest, &weights);
        let parts = (weights, &plan, layouts.as_slice());
        let mut backend = create_backend(config, parts, (&layout, slots.as_ref()))?;
        let n_rows_max = backend.n_rows_max();
        let experts = match layout.placement {
            Placement::OnDevice { .. } => {
                let source = (&checkpoint, sums.as_deref());
                for_each_expert(&manifest, source, &mut watch, &mut |bank, expert, view| {
                    let tiers = backend.tiers_or_refuse()?;
                    tiers.keep_expert((bank.layer, expert), bank.n_experts, view)
                })?;
                Experts::OnDevice
            }
            Placement::Resident => {
                let drives = drives(config, (&checkpoint, &manifest), ReadPurpose::Memory)?;
                let source = (&checkpoint, sums.as_ref());
                let resident = ResidentExperts::load_in_background(&manifest, source, drives)?;
                Experts::Resident(Box::new(resident))
            }
            Placement::Streaming { n_slots } => {
                let drives = slot_drives.take().expect("what is streamed has drives");
                let source = (&checkpoint, sums);
                let mut stream = streamed((&spec, &manifest), source, drives, (n_slots, config))?;
                let mapping = backend.tiers().and_then(|tiers| tiers.slot_mapping());
                mapping.into_iter().for_each(|mapping| stream.share_with_device(mapping));
                Experts::Streaming(Box::new(stream))
            }
        };
        let tables = open_tables(config, (&checkpoint, &manifest), (&layout, scales))?;
        // Bytes read before a change and bytes read after it do not make one model.
        mirror.check_unchanged(&checkpoint)?;
        let expert_bytes = expert_bytes(&manifest, spec.layers.len());
        let lender = slot_lender(&experts, (&spec, &plan), config, &layout);
        let group = group_of(config, agreed);
        if let Some(ShardGroup { link, .. }) = &group {
            backend = wrap_for_rank(backend, link, &plan);
        }
        let model = LoadedModel { spec, plan, expert_bytes, fingerprint, trace: None };
        let runtime = Runtime::new(model, backend, experts)
            .with_session_bytes(layout.session_room_bytes)
            .with_lender(lender)
            .with_tables(tables)
            .with_group(group);
        Ok(Self {
            dir: dir.to_owned(),
            runtime: Arc::new(runtime),
            memory: layout.memory,
            n_rows_max,
            files: checkpoint.files,
        })
    }

    /// Starts a trace: writes the experts that each row chooses to `out`, until
    /// [`Engine::end_trace`]. Messages name `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] once a session has been created; [`Error::Io`] if writing fails.
    pub fn begin_trace(&mut self, out: Box<dyn Write + Send>, path: &Path) -> Result<()> {
        let Some(runtime) = Arc::get_mut(&mut self.runtime) else {
            return Err(Error::Input(
                "begin the trace before creating the first session".to_owned(),
            ));
        };
        let model = runtime.model_mut();
        let writer = TraceWriter::new(out, path, model.trace_header())?;
        model.trace = Some(Mutex::new(Some(writer)));
        Ok(())
    }

    /// Ends the trace, if there is one. Without this, readers consider it truncated.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if writing fails.
    pub fn end_trace(&self) -> Result<()> {
        let Some(trace) = &self.runtime.model().trace else { return Ok(()) };
        let writer = trace.lock().unwrap_or_else(PoisonError::into_inner).take();
        writer.map_or(Ok(()), TraceWriter::finish)
    }

    /// Creates an empty session with room for `context` tokens.
    ///
    /// # Errors
    ///
    /// As [`Session::new`].
    pub fn session(&self, context: usize) -> Result<Session> {
        let session = Session::new(Arc::clone(&self.runtime), context);
        session.inspect_err(|error| tracing::warn!(%error, context, "cannot create a session"))
    }

    /// Carries out the commands of rank 0 on any other rank, until the engine of rank 0 is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`] when the ranks cannot continue together.
    ///
    /// # Panics
    ///
    /// If the engine is not one of several ranks, or is rank 0.
    pub fn follow(&self) -> Result<()> {
        self.runtime.follow()
    }

    /// Returns statistics of the exchanges with other ranks; `None` if there are no other ranks.
    #[must_use]
    pub fn rank_stats(&self) -> Option<LinkStats> {
        let device = self.runtime.lock_to_clean_up();
        device.group.as_ref().map(|group| group.link.lock().stats())
    }

    /// Returns the folder or file that the model was read from.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a hash that identifies the model: of its headers, and of samples of its weights.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.runtime.model().fingerprint
    }

    /// Returns bytes that name everything on which the state of sessions depends besides their
    /// tokens: model, backend, arithmetic with its version, and the shapes of layers.
    /// What [`Session::write_positions`] and [`Session::write_recurrent_layer`] write fits any
    /// engine with the same.
    #[must_use]
    pub fn state_identity(&self) -> Vec<u8> {
        let device_hash = self.device_names().device_hash.to_le_bytes();
        [&identity(&self.runtime)[..], &device_hash].concat()
    }

    /// Reads the header of a saved session, or of a part of one, and checks that it fits sessions
    /// of this engine.
    ///
    /// # Errors
    ///
    /// [`Error::SavedState`] that names the difference.
    pub fn read_header(&self, input: &mut dyn Read) -> Result<SnapshotHeader> {
        SnapshotHeader::read(&self.runtime, input)
    }

    /// Reads a saved session, or a part of one, into memory. [`Session::resume`] detects damage
    /// after the header.
    ///
    /// # Errors
    ///
    /// [`Error::SavedState`] if it does not fit this engine or is truncated; [`Error::NoRoom`] if
    /// memory is short.
    pub fn read_snapshot(&self, input: &mut dyn Read) -> Result<Snapshot> {
        Snapshot::read(&self.runtime, input)
    }

    /// Returns the number of layers.
    #[must_use]
    pub fn n_layers(&self) -> usize {
        self.runtime.model().spec.layers.len()
    }

    /// Returns whether sessions have recurrent state, and so can only go back to checkpoints.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        let mut layers = self.runtime.model().spec.layers.iter();
        layers.any(|layer| matches!(layer.mixer, MixerSpec::GatedDelta(_)))
    }

    /// Returns how the memory is divided.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Returns the memory that sessions share, and how much of it is in use.
    #[must_use]
    pub fn session_room(&self) -> SessionRoom {
        self.runtime.session_room()
    }

    /// Returns the maximum number of rows of a step.
    #[must_use]
    pub fn n_rows_max(&self) -> usize {
        self.n_rows_max
    }

    /// Returns the rows of a step in a prompt of `n_tokens` tokens, if no other prompt is read.
    #[must_use]
    pub fn n_rows_of_prompt(&self, n_tokens: usize) -> usize {
        let n_slots_lent = self.runtime.lock_to_clean_up().lent.n_slots_for_sessions;
        let lender = self.runtime.lender();
        let prompt_steps = lender.and_then(|lender| lender.prompt_steps(n_tokens, n_slots_lent));
        prompt_steps.map_or(self.n_rows_max, |prompt_steps| prompt_steps.n_rows)
    }

    /// Lets a prompt of `n_tokens` tokens borrow memory from experts for longer steps, because each
    /// step reads an expert once. Returns `None` if there is nothing to gain. [`Session::feed`]
    /// does this by itself. Sessions that need memory should reserve it first: see
    /// [`Session::reserve`].
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if this thread has a step in progress; [`Error::NoRoom`].
    pub fn longer_steps(&self, n_tokens: usize) -> Result<Option<LongerSteps>> {
        LongerSteps::begin(&self.runtime, n_tokens)
    }

    /// Returns the maximum number of rows of a step at present: more than [`Engine::n_rows_max`]
    /// while a prompt has borrowed memory for longer steps.
    #[must_use]
    pub fn n_rows_now(&self) -> usize {
        self.runtime.lock_to_clean_up().backend.n_rows_max()
    }

    /// Waits until all experts that load in the background are in memory, for instance before a
    /// measurement or to detect damage at once. Failed reads are repeated. Steps of other threads
    /// continue meanwhile. `watch` receives the progress in bytes, and may cancel.
    ///
    /// # Errors
    ///
    /// [`Error::Expert`] for an expert that cannot be read; [`Error::Drive`] or [`Error::Stopped`]
    /// once nothing can be read any more; [`Error::Cancelled`].
    pub fn read_rest(&self, watch: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<()> {
        let mut again = true;
        while let Some(progress) = self.runtime.lock()?.experts.wait_for_load(REST_TURN, again)? {
            again = false;
            if watch(progress).is_break() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Returns the progress of loading experts in the background; `None` where they are streamed,
    /// or are on a device.
    #[must_use]
    pub fn rest_stats(&self) -> Option<RestStats> {
        self.runtime.lock_to_clean_up().experts.load_stats()
    }

    /// Returns streaming statistics; `None` where experts are not streamed.
    #[must_use]
    pub fn stream_stats(&self) -> Option<StreamStats> {
        self.runtime.stream_stats()
    }

    /// Returns statistics of rows of tables; `None` if the model has no tables.
    #[must_use]
    pub fn row_stats(&self) -> Option<RowStats> {
        self.runtime.row_stats()
    }

    /// Returns the routed experts of each layer with their uses, none where a device finds experts
    /// itself; and if experts are streamed, the times of the last step of an answer.
    #[must_use]
    pub fn layer_experts(&self) -> (Vec<LayerExperts>, Option<StepTimes>) {
        let device = self.runtime.lock_to_clean_up();
        (device.experts.layers(), device.experts.step_times())
    }

    /// Returns how experts that do not fit into memory are read; `None` where all fit. With
    /// [`ReadWay::Measured`], this is the result of the measurement.
    #[must_use]
    pub fn read_way(&self) -> Option<ReadWay> {
        let caching = self.runtime.lock_to_clean_up().experts.caching()?;
        Some(match caching {
            Caching::Direct => ReadWay::Direct,
            Caching::PageCache => ReadWay::PageCache,
        })
    }

    /// Returns how a device divides routed experts between its own memory and the host's; `None`
    /// where it does not.
    #[must_use]
    pub fn tier_stats(&self) -> Option<TierStats> {
        self.runtime.lock_to_clean_up().backend.tiers()?.tier_stats()
    }

    /// Sets how many experts are kept in memory. Changes nothing where all of them are.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short. No slot is lost then; some may have been added.
    pub fn set_slots(&self, n_slots: usize) -> Result<()> {
        self.runtime.lock_to_clean_up().experts.resize(n_slots)
    }

    /// Returns the names of the device.
    #[must_use]
    pub fn device_names(&self) -> DeviceNames {
        self.runtime.device_names()
    }
}

#[cfg(test)]
impl Engine {
    /// Returns the state that all sessions share.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

/// Details of an engine that programs do not need.
pub trait EngineSpec {
    /// Shapes and constants.
    fn spec(&self) -> &ModelSpec;
}

impl EngineSpec for Engine {
    fn spec(&self) -> &ModelSpec {
        &self.runtime.model().spec
    }
}

/// Returns the checksums that reads are compared with.
fn sums_of(config: &EngineConfig, checkpoint: &Checkpoint) -> Result<Option<Arc<CheckpointSums>>> {
    let sums = if config.streaming.checks_sums { CheckpointSums::of(checkpoint)? } else { None };
    Ok(sums.map(Arc::new))
}

/// Returns the ranks that run the model together, if there are several.
fn group_of(config: &EngineConfig, agreed: Option<AgreedLimits>) -> Option<ShardGroup> {
    let (group, AgreedLimits { n_chunk_experts, .. }) = config.ranks.as_ref().zip(agreed)?;
    Some(ShardGroup { link: group.link().clone(), n_chunk_experts })
}

/// Wraps the backend of rank 0, which passes each operation on to the other ranks.
fn wrap_for_rank(
    backend: Box<dyn Backend>,
    link: &SharedLink,
    plan: &ModelPlan,
) -> Box<dyn Backend> {
    let exchanging_layers = plan.layers.iter().map(|layer| layer.moe.is_some());
    link.lock().set_exchanging_layers(exchanging_layers.collect());
    if !link.lock().is_leader() {
        return backend;
    }
    Box::new(LeaderBackend::new(backend, link.clone()))
}

/// Returns the bytes of one routed expert for each layer.
fn expert_bytes(manifest: &Manifest, n_layers: usize) -> Vec<u64> {
    let mut bytes = vec![0; n_layers];
    for bank in &manifest.banks {
        bytes[bank.layer.0] = bank.layout.record_bytes() as u64;
    }
    bytes
}

/// Creates a stream that reads experts from drives into `n_slots` slots.
fn streamed(
    (spec, manifest): (&ModelSpec, &Manifest),
    (checkpoint, sums): (&Checkpoint, Option<Arc<CheckpointSums>>),
    drives: Drives,
    (n_slots, config): (usize, &EngineConfig),
) -> Result<ExpertStream> {
    let top_k: Vec<usize> = spec.layers.iter().map(|layer| layer.ffn.top_k()).collect();
    let StreamingConfig { prefetches, .. } = config.streaming;
    let model =
        StreamModel { manifest, checkpoint, sums, top_k: &top_k, n_ranks: spec.n_predicted() };
    let n_slots = match drives.caching {
        Caching::Direct => n_slots,
        Caching::PageCache => (n_slots / budget::PAGE_CACHE_SHARE).max(spec.top_k_max()),
    };
    let config = StreamConfig { n_slots, prefetches };
    ExpertStream::open(&model, drives, &config)
}

/// Returns the slots that can lend memory to prompts and sessions; `None` on devices, whose memory
/// is not that of slots, and on several ranks, where another one might not be able to lend as much.
fn slot_lender(
    experts: &Experts,
    (spec, plan): (&ModelSpec, &ModelPlan),
    config: &EngineConfig,
    layout: &MemoryLayout,
) -> Option<SlotLender> {
    let (Experts::Streaming(stream), Placement::Streaming { n_slots }) =
        (experts, layout.placement)
    else {
        return None;
    };
    if config.device.is_some() || config.ranks.is_some() {
        return None;
    }
    let stats = stream.stats();
    // With the page cache the pool keeps its slots, and only memory left to the system is lent.
    let is_direct = stream.caching() == Caching::Direct;
    let n_slots_min = spec.top_k_max().max(if is_direct { 0 } else { stats.n_slots });
    // A configured length of steps is kept.
    let prompts = config.n_rows_max.is_none().then(|| PromptTerms {
        workspace: plan.workspace.clone(),
        table_bytes_per_row: plan.table_bytes_per_row(),
        n_rows: layout.n_rows_max,
        n_slots_min: n_slots_min.max(n_slots_of_prompt(spec)),
        n_experts: stats.n_experts,
    });
    let sessions =
        layout.session_room_bytes.map(|session_bytes| SessionTerms { session_bytes, n_slots_min });
    Some(SlotLender {
        n_slots,
        slot_bytes: stats.slot_bytes as u64,
        n_slots_at_once: if is_direct { stream.n_slots_per_slab() } else { 1 },
        prompts,
        sessions,
    })
}

fn create_backend(
    config: &EngineConfig,
    (weights, plan, experts): (Weights, &ModelPlan, &[(LayerIdx, ExpertLayout)]),
    (layout, slots): (&MemoryLayout, Option<&MappedSlots>),
) -> Result<Box<dyn Backend>> {
    let (workspace, n_rows_max) = (&plan.workspace, layout.n_rows_max);
    if let Some(device) = &config.device {
        let (expert_bytes, host_bytes) =
            (layout.device_expert_bytes, layout.memory.far_expert_bytes);
        let weights = &weights;
        return device.make(&DeviceParts {
            weights,
            plan,
            n_rows_max,
            experts,
            expert_bytes,
            host_bytes,
            slots,
        });
    }
    let weights = Arc::new(weights);
    Ok(match config.backend {
        BackendKind::Reference => Box::new(ReferenceBackend::new(weights, workspace, n_rows_max)?),
        BackendKind::Cpu => {
            let n_threads = config.n_threads.get();
            let backend = CpuBackend::new(weights, workspace, n_rows_max, n_threads)?;
            let kernels = config.kernels.unwrap_or_else(moeflux_kernels::best);
            Box::new(backend.with_arithmetic(config.arithmetic).with_kernels(kernels))
        }
    })
}
