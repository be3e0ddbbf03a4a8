//! The whole story on one page: a folder becomes a model on a device, and sessions over it.
//!
//! Two engines for two models may live in one process; nothing here is global.

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
use crate::budget::{self, GrowthRoom, Layout, Memory, Placement, PromptRoom, SessionRoom};
use crate::config::{BackendKind, DeviceParts, EngineConfig, ReadWay, StreamingConfig};
use crate::error::{Error, Result};
use crate::experts::stream::{
    Drives, N_SLOTS_OF_PROMPT, ReadFor, SeenSlots, Stream, StreamConfig, StreamModel, StreamStats,
    choose_way,
};
use crate::experts::trace::TraceWriter;
use crate::experts::{Experts, ResidentExperts, RestStats, for_each_expert};
use crate::families::ModelPlan;
use crate::format::{Checkpoint, ShardFile, Sums};
use crate::forward::{Group, LoadedModel};
use crate::ids::LayerIdx;
use crate::model::Model;
use crate::opening::{Agreed, Described, describe, fingerprint, meet};
use crate::ranks::{Hello, LeadBackend, LinkStats, SharedLink};
use crate::session::{LongerSteps, Runtime, Session, Snapshot, SnapshotHeader};
use crate::spec::{MixerSpec, ModelSpec};
use crate::weights::{self, Copies, ExpertLayout, Manifest, Progress, Weights};

/// Within so long two ways of reading are told apart.
pub const PROBE_TIME: Duration = Duration::from_millis(1600);

/// Ranks wait so many times longer for each other when a model has been loaded.
const LOAD_PATIENCE: u32 = 20;

/// Who waits for all experts lets others at the device so often.
const REST_TURN: Duration = Duration::from_millis(5);

/// The kernels of an instruction set, by its name.
///
/// # Errors
///
/// [`Error::Input`] that names those which this CPU has.
pub fn kernels_named(isa: &str) -> Result<&'static KernelTable> {
    moeflux_kernels::by_name(isa).ok_or_else(|| {
        let names: Vec<_> = moeflux_kernels::available().iter().map(|it| it.name()).collect();
        Error::Input(format!("this CPU has no kernels {isa:?}; it has {}", names.join(", ")))
    })
}

/// A model that is ready to run.
#[derive(Debug)]
pub struct Engine {
    dir: PathBuf,
    runtime: Arc<Runtime>,
    memory: Memory,
    n_rows_max: usize,
    /// As they were when the model was opened.
    pub(crate) files: Vec<ShardFile>,
}

impl Engine {
    /// Reads the weights of a model: all but routed experts, which follow while it runs, or are
    /// streamed. `watch` hears of bytes read and may stop it. No promise of stability: programs
    /// take [`Engine::builder`].
    ///
    /// # Errors
    ///
    /// What is wrong with the checkpoint, the machine, or [`Error::Cancelled`].
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
                tracing::info!(resident_bytes, expert_bytes, workspace_bytes, "the model is open");
            }
            // The caller is told, and says it to its user.
            Err(error) => tracing::debug!(%error, fault = ?error.fault(), "the model was refused"),
        }
        loaded
    }

    /// Loads it on each rank where there are several, and compares what they have.
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
        let (described, agreed) = meet(group, config, described)?;
        let loaded = Self::load_described(&dir, (config, Some(agreed)), described, watch);
        // Ranks load at different rates.
        group.link().lock().set_patience(LOAD_PATIENCE);
        let fingerprint = |engine: &Self| format!("{:016x}", engine.runtime.model().fingerprint);
        let same = |engine: Self| (vec![("weights", fingerprint(&engine))], engine);
        let (hello, loaded) = match loaded.map(same) {
            Ok((same, engine)) => (Ok(Hello { same, least: Vec::new() }), Some(engine)),
            Err(error) => (Err(error), None),
        };
        let met = group.link().lock().meet(hello);
        group.link().lock().set_patience(1);
        met?;
        Ok(loaded.expect("what could not be loaded was an error for all"))
    }

    /// What was described, read into memory as far as it is to be there.
    fn load_described(
        dir: &Path,
        (config, agreed): (&EngineConfig, Option<Agreed>),
        described: Described,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let Described { blueprint, whole_banks, checkpoint, mirror, .. } = described;
        let Described { header_fingerprint, mut layout, .. } = described;
        if let Some(agreed) = agreed {
            layout.n_rows_max = agreed.n_rows_max;
        }
        let is_streaming = matches!(layout.placement, Placement::Streaming { .. });
        let copies = if is_streaming { Copies::Dropped } else { Copies::Kept };
        let sums = if config.streaming.checks_sums { Sums::of(&checkpoint)? } else { None };
        let sums = sums.map(Arc::new);
        let Blueprint { spec, plan, manifest, .. } = blueprint;
        let mut watch = both_loads(&layout, &manifest, watch);
        let weights = weights::load(&manifest, &checkpoint, (sums.as_deref(), copies), &mut watch)?;
        // That of the whole model: what was saved alone goes on with several ranks.
        let whole = whole_banks.map(|banks| Manifest { banks, ..manifest.clone() });
        let whole = whole.as_ref().unwrap_or(&manifest);
        let fingerprint = fingerprint(header_fingerprint, (whole, &weights), &checkpoint)?;
        let layouts: Vec<_> = manifest.banks.iter().map(|it| (it.layer, it.layout)).collect();
        let mut slot_drives =
            is_streaming.then(|| drives(config, &checkpoint, ReadFor::Slots)).transpose()?;
        let slots = slot_drives.as_ref();
        let slots = slots.map(|it| SeenSlots::new(&manifest.banks, it.block_bytes()));
        let parts = (weights, &plan, layouts.as_slice());
        let mut backend = backend_of(config, parts, (&layout, slots.as_ref()))?;
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
                let drives = drives(config, &checkpoint, ReadFor::Memory)?;
                let source = (&checkpoint, sums.as_ref());
                Experts::Resident(ResidentExperts::follow(&manifest, source, drives)?)
            }
            Placement::Streaming { n_slots } => {
                let drives = slot_drives.take().expect("what is streamed has drives");
                let source = (&checkpoint, sums);
                let mut stream = streamed((&spec, &manifest), source, drives, (n_slots, config))?;
                let sight = backend.tiers().and_then(|tiers| tiers.slot_sight());
                sight.into_iter().for_each(|sight| stream.show_to(sight));
                Experts::Streaming(Box::new(stream))
            }
        };
        // Bytes that were read before a change and others from behind it are no model.
        mirror.check_unchanged(&checkpoint)?;
        let expert_bytes = expert_bytes(&manifest, spec.layers.len());
        // What slots lend here they might not have on another rank.
        let lends = config.ranks.is_none();
        let prompt_room = prompt_room(&experts, (&spec, &plan), config, &layout);
        let growth_room = growth_room(&experts, &spec, config, &layout);
        let group = group_of(config, agreed);
        if let Some(Group { link, .. }) = &group {
            backend = at_rank(backend, link, &plan);
        }
        let model = LoadedModel { spec, plan, expert_bytes, fingerprint, trace: None };
        let runtime = Runtime::new(model, backend, experts)
            .with_prompt_room(prompt_room.filter(|_| lends))
            .with_session_room(layout.session_room_bytes, growth_room.filter(|_| lends))
            .with_group(group);
        Ok(Self {
            dir: dir.to_owned(),
            runtime: Arc::new(runtime),
            memory: layout.memory,
            n_rows_max,
            files: checkpoint.files,
        })
    }

    /// Writes which experts each row chooses, from now to [`Engine::end_trace`], to `out`; `path`
    /// is for messages.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] once there was a session, [`Error::Io`].
    pub fn begin_trace(&mut self, out: Box<dyn Write + Send>, path: &Path) -> Result<()> {
        let Some(runtime) = Arc::get_mut(&mut self.runtime) else {
            return Err(Error::Input("a trace begins before the first session".to_owned()));
        };
        let model = runtime.model_mut();
        let writer = TraceWriter::new(out, path, model.trace_header())?;
        model.trace = Some(Mutex::new(Some(writer)));
        Ok(())
    }

    /// Ends the trace, if there is one: without this a reader takes it for cut short.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn end_trace(&self) -> Result<()> {
        let Some(trace) = &self.runtime.model().trace else { return Ok(()) };
        let writer = trace.lock().unwrap_or_else(PoisonError::into_inner).take();
        writer.map_or(Ok(()), TraceWriter::finish)
    }

    /// A new, empty session with room for `context` tokens.
    ///
    /// # Errors
    ///
    /// As [`Session::new`].
    pub fn session(&self, context: usize) -> Result<Session> {
        let session = Session::new(Arc::clone(&self.runtime), context);
        session.inspect_err(|error| tracing::warn!(%error, context, "a session was refused"))
    }

    /// Does what rank 0 tells its sessions, on any other of several ranks, until rank 0's engine is
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`] when the ranks cannot go on together.
    ///
    /// # Panics
    ///
    /// If the engine is not one of several, or is rank 0.
    pub fn follow(&self) -> Result<()> {
        self.runtime.follow()
    }

    /// How exchanges with other ranks went; `None` where there are none.
    #[must_use]
    pub fn rank_stats(&self) -> Option<LinkStats> {
        let device = self.runtime.lock_to_clean_up();
        device.group.as_ref().map(|group| group.link.lock().stats())
    }

    /// The folder that the model was read from.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A number that names the model: its headers, and samples of its weights.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.runtime.model().fingerprint
    }

    /// Reads the beginning of a saved session, or of a part of one, and checks that it fits
    /// sessions of this engine.
    ///
    /// # Errors
    ///
    /// [`Error::SavedState`] that says what differs.
    pub fn read_header(&self, input: &mut dyn Read) -> Result<SnapshotHeader> {
        SnapshotHeader::read(&self.runtime, input)
    }

    /// Reads a saved session, or a part of one, into memory. Damage behind the header is found by
    /// [`Session::resume`].
    ///
    /// # Errors
    ///
    /// [`Error::SavedState`] if it does not fit this engine or ends early; [`Error::NoRoom`].
    pub fn read_snapshot(&self, input: &mut dyn Read) -> Result<Snapshot> {
        Snapshot::read(&self.runtime, input)
    }

    /// Layers of the model.
    #[must_use]
    pub fn n_layers(&self) -> usize {
        self.runtime.model().spec.layers.len()
    }

    /// Whether sessions have a recurrent state, so that they can go back to checkpoints only.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        let mut layers = self.runtime.model().spec.layers.iter();
        layers.any(|layer| matches!(layer.mixer, MixerSpec::GatedDelta(_)))
    }

    /// Where the memory goes.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// The memory that sessions share, and how much of it they have now.
    #[must_use]
    pub fn session_room(&self) -> SessionRoom {
        self.runtime.session_room()
    }

    /// Rows computed in one step at most.
    #[must_use]
    pub fn n_rows_max(&self) -> usize {
        self.n_rows_max
    }

    /// Rows of a step while a prompt of so many tokens is read, where nobody else has one.
    #[must_use]
    pub fn n_rows_of_prompt(&self, n_tokens: usize) -> usize {
        let room = self.runtime.prompt_room();
        let n_slots_gone = self.runtime.lock_to_clean_up().loans.n_slots_of_sessions;
        let division = room.and_then(|room| room.division(n_tokens, n_slots_gone));
        division.map_or(self.n_rows_max, |division| division.n_rows)
    }

    /// Lets a prompt of so many tokens borrow memory of experts for longer steps, of which each
    /// reads an expert once; `None` where there is nothing to gain. [`Session::feed`] does this by
    /// itself. Sessions that need room should have it first: see [`Session::reserve`].
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if this thread has a step under way; [`Error::NoRoom`].
    pub fn longer_steps(&self, n_tokens: usize) -> Result<Option<LongerSteps>> {
        LongerSteps::begin(&self.runtime, n_tokens)
    }

    /// Rows that a step may have now: more than [`Engine::n_rows_max`] while a prompt has longer
    /// ones.
    #[must_use]
    pub fn n_rows_now(&self) -> usize {
        self.runtime.lock_to_clean_up().backend.n_rows_max()
    }

    /// Waits until all experts are in memory that have room there, which an open engine goes on to
    /// read: before a measurement, or to hear of damage at once. Steps of other threads go on
    /// meanwhile. `watch` hears how many bytes of experts there are, and may break it off.
    ///
    /// # Errors
    ///
    /// [`Error::Expert`] for one that cannot be read; when nothing can be read any more;
    /// [`Error::Cancelled`].
    pub fn read_rest(&self, watch: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<()> {
        let mut again = true;
        while let Some(progress) = self.runtime.lock()?.experts.wait_for_rest(REST_TURN, again)? {
            again = false;
            if watch(progress).is_break() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// How experts come that are read behind the open engine; `None` where none are: they are
    /// streamed, or a device has them.
    #[must_use]
    pub fn rest_stats(&self) -> Option<RestStats> {
        self.runtime.lock_to_clean_up().experts.rest_stats()
    }

    /// What streaming has done so far; `None` where all experts are in memory.
    #[must_use]
    pub fn stream_stats(&self) -> Option<StreamStats> {
        self.runtime.stream_stats()
    }

    /// How experts are read that have no room in memory; `None` where all have. Of
    /// [`ReadWay::Measured`] this is what the measurement found.
    #[must_use]
    pub fn read_way(&self) -> Option<ReadWay> {
        let caching = self.runtime.lock_to_clean_up().experts.caching()?;
        Some(match caching {
            Caching::Direct => ReadWay::Direct,
            Caching::PageCache => ReadWay::PageCache,
        })
    }

    /// Where routed experts lie that a device keeps in two memories; `None` where it does not.
    #[must_use]
    pub fn tier_stats(&self) -> Option<TierStats> {
        self.runtime.lock_to_clean_up().backend.tiers()?.tier_stats()
    }

    /// Keeps so many experts in memory from now on. Where all of them are, nothing changes.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`]: there are as many as before then, or some more.
    pub fn set_slots(&self, n_slots: usize) -> Result<()> {
        self.runtime.lock_to_clean_up().experts.resize(n_slots)
    }

    /// What the device calls itself.
    #[must_use]
    pub fn device_names(&self) -> DeviceNames {
        self.runtime.device_names()
    }
}

/// What an engine runs, beyond what programs need.
pub trait EngineSpec {
    /// Shapes and constants.
    fn spec(&self) -> &ModelSpec;
}

impl EngineSpec for Engine {
    fn spec(&self) -> &ModelSpec {
        &self.runtime.model().spec
    }
}

/// The drives that experts are read from.
fn drives(config: &EngineConfig, checkpoint: &Checkpoint, read_for: ReadFor) -> Result<Drives> {
    let StreamingConfig { way, drives, mirror, .. } = &config.streaming;
    if let Some(maker) = drives {
        return maker.open(checkpoint, read_for);
    }
    let caching = match way {
        _ if read_for == ReadFor::Memory => {
            return Drives::open(checkpoint, Caching::PageCache, None);
        }
        ReadWay::Direct => Caching::Direct,
        ReadWay::PageCache => Caching::PageCache,
        ReadWay::Measured => choose_way(checkpoint, PROBE_TIME)?,
    };
    Drives::open(checkpoint, caching, mirror.as_deref())
}

/// The ranks that run the model together, if there are several.
fn group_of(config: &EngineConfig, agreed: Option<Agreed>) -> Option<Group> {
    let (group, Agreed { n_wave, .. }) = config.ranks.as_ref().zip(agreed)?;
    Some(Group { link: group.link().clone(), n_wave })
}

/// The device of one of several ranks.
fn at_rank(backend: Box<dyn Backend>, link: &SharedLink, plan: &ModelPlan) -> Box<dyn Backend> {
    let meets = plan.layers.iter().map(|layer| layer.moe.is_some());
    link.lock().set_meets(meets.collect());
    if !link.lock().is_lead() {
        return backend;
    }
    Box::new(LeadBackend::new(backend, link.clone()))
}

/// Of one routed expert of each layer.
fn expert_bytes(manifest: &Manifest, n_layers: usize) -> Vec<u64> {
    let mut bytes = vec![0; n_layers];
    for bank in &manifest.banks {
        bytes[bank.layer.0] = bank.layout.record_bytes() as u64;
    }
    bytes
}

/// Two loads that follow each other under one watch: each reports from zero.
fn both_loads(
    layout: &Layout,
    manifest: &Manifest,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> impl FnMut(Progress) -> ControlFlow<()> {
    let expert_bytes = match layout.placement {
        Placement::OnDevice { .. } => manifest.expert_bytes(),
        Placement::Resident | Placement::Streaming { .. } => 0,
    };
    let total_bytes = layout.memory.resident_bytes + expert_bytes;
    let (mut before_bytes, mut last_bytes) = (0, 0);
    move |progress| {
        if progress.done_bytes < last_bytes {
            before_bytes += last_bytes;
        }
        last_bytes = progress.done_bytes;
        watch(Progress { done_bytes: before_bytes + progress.done_bytes, total_bytes })
    }
}

/// Experts that are read from drives into so many slots.
fn streamed(
    (spec, manifest): (&ModelSpec, &Manifest),
    (checkpoint, sums): (&Checkpoint, Option<Arc<Sums>>),
    drives: Drives,
    (n_slots, config): (usize, &EngineConfig),
) -> Result<Stream> {
    let top_k: Vec<usize> = spec.layers.iter().map(|layer| layer.ffn.top_k()).collect();
    let StreamingConfig { looks_ahead, .. } = config.streaming;
    let model = StreamModel { manifest, checkpoint, sums, top_k: &top_k, n_ranks: spec.n_named() };
    let n_slots = match drives.caching {
        Caching::Direct => n_slots,
        Caching::PageCache => (n_slots / budget::PAGE_CACHE_SHARE).max(spec.top_k_max()),
    };
    let config = StreamConfig { n_slots, looks_ahead };
    Stream::open(&model, drives, &config)
}

/// What a long prompt may borrow: nothing where all experts are in memory or somebody said how long
/// steps are, and on devices, whose workspace is not in the slots' memory.
fn prompt_room(
    experts: &Experts,
    (spec, plan): (&ModelSpec, &ModelPlan),
    config: &EngineConfig,
    layout: &Layout,
) -> Option<PromptRoom> {
    let (Experts::Streaming(stream), Placement::Streaming { n_slots }) =
        (experts, layout.placement)
    else {
        return None;
    };
    if config.device.is_some() || config.n_rows_max.is_some() {
        return None;
    }
    let stats = stream.stats();
    // With the page cache the pool keeps what it has, and lent is what is left to the system.
    let is_direct = stream.caching() == Caching::Direct;
    let n_slots_kept = if is_direct { 0 } else { stats.n_slots };
    Some(PromptRoom {
        workspace: plan.workspace.clone(),
        n_rows: layout.n_rows_max,
        n_slots,
        slot_bytes: stats.slot_bytes as u64,
        n_slots_at_once: if is_direct { stream.n_slots_per_slab() } else { 1 },
        n_slots_least: N_SLOTS_OF_PROMPT.max(spec.top_k_max()).max(n_slots_kept),
        n_experts: stats.n_experts,
    })
}

/// What sessions that grow may borrow: nothing on devices, whose memory slots do not have.
fn growth_room(
    experts: &Experts,
    spec: &ModelSpec,
    config: &EngineConfig,
    layout: &Layout,
) -> Option<GrowthRoom> {
    let (Experts::Streaming(stream), Placement::Streaming { n_slots }) =
        (experts, layout.placement)
    else {
        return None;
    };
    if config.device.is_some() {
        return None;
    }
    let stats = stream.stats();
    let is_direct = stream.caching() == Caching::Direct;
    let n_slots_kept = if is_direct { 0 } else { stats.n_slots };
    Some(GrowthRoom {
        session_bytes: layout.session_room_bytes?,
        n_slots,
        slot_bytes: stats.slot_bytes as u64,
        n_slots_at_once: if is_direct { stream.n_slots_per_slab() } else { 1 },
        n_slots_least: spec.top_k_max().max(n_slots_kept),
    })
}

fn backend_of(
    config: &EngineConfig,
    (weights, plan, experts): (Weights, &ModelPlan, &[(LayerIdx, ExpertLayout)]),
    (layout, slots): (&Layout, Option<&SeenSlots>),
) -> Result<Box<dyn Backend>> {
    let (workspace, n_rows_max) = (&plan.workspace, layout.n_rows_max);
    if let Some(device) = &config.device {
        let (expert_bytes, far_bytes) =
            (layout.device_expert_bytes, layout.memory.far_expert_bytes);
        let weights = &weights;
        return device.make(&DeviceParts {
            weights,
            plan,
            n_rows_max,
            experts,
            expert_bytes,
            far_bytes,
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
