//! The whole story on one page: a folder becomes a model on a device, and sessions over it.
//!
//! Two engines for two models may live in one process; nothing here is global.

use std::hash::Hasher as _;
use std::io::Write;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use moeflux_kernels::{KernelTable, Matrix};
use xxhash_rust::xxh3::Xxh3;

use crate::backend::cpu::CpuBackend;
use crate::backend::reference::ReferenceBackend;
use crate::backend::{Arithmetic, Backend, DeviceNames};
use crate::blueprint::Blueprint;
use crate::error::{Error, Result};
use crate::experts::ExpertStore;
use crate::experts::trace::TraceWriter;
use crate::forward::Model;
use crate::ids::{ExpertIdx, MatrixId, VectorId};
use crate::ops::{KvKind, StateSpec};
use crate::session::{Runtime, Session};
use crate::spec::ModelSpec;
use crate::weights::{self, ExpertView, Manifest, Progress, Weights};

/// Rows of one step unless told otherwise: enough that reading a weight is cheap beside using it.
pub const N_ROWS_DEFAULT: usize = 512;

/// More rows make the workspace large and nothing faster.
pub const N_ROWS_MAX: usize = 1 << 16;

/// Bytes of each part of a matrix that go into the fingerprint: fine-tuned twins differ within the
/// first rows, and reading all of a large checkpoint twice is no option.
const FINGERPRINT_BYTES: usize = 4096;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Scalar and slow: what the others are compared with.
    Reference,
    /// Threads and vector instructions.
    Cpu,
}

/// How an engine is opened.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// What computes.
    pub backend: BackendKind,
    /// How the CPU backend computes; the reference always takes f32.
    pub arithmetic: Arithmetic,
    /// Kernels of the CPU backend: by default the fastest that this CPU has. All give the same
    /// bits.
    pub kernels: Option<&'static KernelTable>,
    /// Threads that compute.
    pub n_threads: NonZeroUsize,
    /// Rows computed in one step: [`N_ROWS_DEFAULT`], at most [`N_ROWS_MAX`].
    pub n_rows_max: NonZeroUsize,
}

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

/// Where the memory of an engine goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What every token needs.
    pub resident_bytes: u64,
    /// Routed experts.
    pub expert_bytes: u64,
    /// Activations of one step.
    pub workspace_bytes: u64,
    /// Per session, whatever its length.
    pub session_fixed_bytes: u64,
    /// Per session and position of its context.
    pub session_bytes_per_position: u64,
}

/// A model that is ready to run.
#[derive(Debug)]
pub struct Engine {
    runtime: Arc<Runtime>,
    memory: Memory,
}

impl Engine {
    /// Reads the model in `dir`. `watch` hears of bytes read and may stop it.
    ///
    /// # Errors
    ///
    /// What is wrong with the checkpoint, the machine, or [`Error::Cancelled`].
    pub fn open(
        dir: &Path,
        config: &EngineConfig,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let n_rows_max = config.n_rows_max.get();
        if n_rows_max > N_ROWS_MAX {
            return Err(Error::Input(format!(
                "{n_rows_max} rows in one step are too many; at most {N_ROWS_MAX} are computed \
                 together"
            )));
        }
        let (blueprint, checkpoint) = Blueprint::of_folder(dir)?;
        let header_fingerprint = blueprint.header_fingerprint(&checkpoint);
        let Blueprint { spec, plan, manifest } = blueprint;
        let kind = match config.backend {
            BackendKind::Reference => KvKind::F32,
            BackendKind::Cpu => config.arithmetic.kv_kind(),
        };
        let workspace_bytes = plan.workspace.bytes(n_rows_max);
        let memory = memory_of(&manifest, workspace_bytes, (&plan.state, kind));
        weights::check_room(
            "the model",
            memory.resident_bytes + memory.expert_bytes + memory.workspace_bytes,
            moeflux_io::available_memory_bytes(),
        )?;
        let mut watch = both_loads(&memory, watch);
        let weights = weights::load(&manifest, &checkpoint, &mut watch)?;
        let experts = ExpertStore::load_resident(&manifest, &checkpoint, &mut watch)?;
        let fingerprint = fingerprint(header_fingerprint, (&manifest, &weights), &experts)?;
        let weights = Arc::new(weights);
        let backend: Box<dyn Backend> = match config.backend {
            BackendKind::Reference => {
                Box::new(ReferenceBackend::new(weights, &plan.workspace, n_rows_max)?)
            }
            BackendKind::Cpu => {
                let n_threads = config.n_threads.get();
                let backend = CpuBackend::new(weights, &plan.workspace, n_rows_max, n_threads)?;
                let kernels = config.kernels.unwrap_or_else(moeflux_kernels::best);
                Box::new(backend.with_arithmetic(config.arithmetic).with_kernels(kernels))
            }
        };
        let model = Model { spec, plan, experts, fingerprint, trace: None };
        Ok(Self { runtime: Arc::new(Runtime::new(model, backend)), memory })
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
        Session::new(Arc::clone(&self.runtime), context)
    }

    /// Shapes and constants.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.runtime.model().spec
    }

    /// Where the memory goes.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// What the device calls itself.
    #[must_use]
    pub fn device_names(&self) -> DeviceNames {
        self.runtime.device_names()
    }
}

fn memory_of(
    manifest: &Manifest,
    workspace_bytes: u64,
    (state, kind): (&StateSpec, KvKind),
) -> Memory {
    Memory {
        resident_bytes: manifest.resident_bytes(),
        expert_bytes: manifest.banks.iter().map(weights::ExpertBank::memory_bytes).sum(),
        workspace_bytes,
        session_fixed_bytes: state.fixed_bytes(),
        session_bytes_per_position: state.bytes_per_position(kind),
    }
}

/// One watch over two loads that follow each other: each reports from zero.
fn both_loads(
    memory: &Memory,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> impl FnMut(Progress) -> ControlFlow<()> {
    let total_bytes = memory.resident_bytes + memory.expert_bytes;
    let (mut before_bytes, mut last_bytes) = (0, 0);
    move |progress| {
        if progress.done_bytes < last_bytes {
            before_bytes += last_bytes;
        }
        last_bytes = progress.done_bytes;
        watch(Progress { done_bytes: before_bytes + progress.done_bytes, total_bytes })
    }
}

/// Names these weights: twins of one architecture have the same headers, so that values count too,
/// of the first and the last expert of each layer for all of them.
fn fingerprint(
    header_fingerprint: u64,
    (manifest, weights): (&Manifest, &Weights),
    experts: &ExpertStore,
) -> Result<u64> {
    let mut hash = Xxh3::new();
    hash.write_u64(header_fingerprint);
    for matrix_idx in 0..manifest.matrices.len() {
        hash_matrix(&mut hash, &weights.matrix(MatrixId(matrix_idx)));
    }
    for vector_idx in 0..manifest.vectors.len() {
        hash.write(bytemuck::cast_slice(weights.vector(VectorId(vector_idx))));
    }
    for bank in &manifest.banks {
        for expert in [ExpertIdx(0), ExpertIdx(bank.n_experts - 1)] {
            let mut lease = experts.acquire(bank.layer, &[expert])?;
            while let Some(arrived) = lease.next_ready()? {
                arrived.iter().for_each(|arrived| hash_expert(&mut hash, &arrived.view));
            }
        }
    }
    Ok(hash.finish())
}

fn hash_expert(hash: &mut Xxh3, expert: &ExpertView<'_>) {
    for matrix in [&expert.gate, &expert.up, &expert.down] {
        hash_matrix(hash, matrix);
    }
}

fn hash_matrix(hash: &mut Xxh3, matrix: &Matrix<'_>) {
    for part in [matrix.codes(), matrix.scales(), matrix.biases()] {
        hash.write(&part[..part.len().min(FINGERPRINT_BYTES)]);
    }
}
