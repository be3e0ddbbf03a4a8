//! Opens a model for the server and starts the service that answers with it.
//!
//! **Invariant:** reads only headers before the service loads the model, so that a model that
//! cannot be run is refused while another one still answers.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use moeflux::{CONTEXT_DEFAULT, Model, ModelText, Result};
use moeflux_chat::Grammars;
use moeflux_io::FREED_BYTES_KEPT;
use moeflux_schedule::{Options, SavedConversations, Service};
use moeflux_server::http::{MeasuredRates, ModelInfo, Served};
use serde_json::{Map, Value, json};

use crate::commands::serve::args::ServeArgs;
use crate::failure::CommandResult;
use crate::model::{self, LoadWatcher, hub};
use crate::options::cache;
use crate::system::clock;
use crate::system::interrupt::Interrupt;
use crate::system::measurements::{MeasuredRate, Measurements};
use crate::system::volume;

/// Default tokens of a session: enough for an agent's prompt and an answer.
const CONTEXT_OF_SESSIONS: usize = 65_536;

/// What every model of a server is started with.
#[derive(Clone, Debug)]
pub(super) struct ModelStarter {
    pub(super) args: ServeArgs,
    pub(super) request_memory_bytes: usize,
    pub(super) interrupt: Interrupt,
    pub(super) saved: Option<SavedConversations>,
}

/// A model of which only headers were read.
#[derive(Debug)]
pub(super) struct OpenedModel {
    pub(super) model: Model,
    pub(super) info: ModelInfo,
    text: Arc<ModelText>,
    context: usize,
    args: ServeArgs,
}

/// The progress of loading a model, which can be ended.
#[derive(Debug)]
pub(super) struct LoadControl {
    interrupt: Interrupt,
    is_cancelled: AtomicBool,
    /// Whether a load was ever ended for another model.
    was_cancelled: AtomicBool,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

/// Runs before a model is loaded for the first time.
pub(super) type BeforeLoad = Box<dyn FnOnce() -> Result<()> + Send>;

impl ModelStarter {
    /// Opens another model. Options that belong to the first one do not apply.
    pub(super) fn open(&self, path: &Path) -> CommandResult<OpenedModel> {
        let mut args = self.args.clone();
        args.model.model = Some(path.to_owned());
        (args.model.tokenizer, args.model.mirror) = (None, None);
        args.served_name.clear();
        let wanted = args.context.take().map_or(CONTEXT_OF_SESSIONS, NonZeroUsize::get);
        OpenedModel::with_context(&args, wanted)
    }

    /// Returns the control of a load.
    pub(super) fn control(&self) -> Arc<LoadControl> {
        Arc::new(LoadControl {
            interrupt: self.interrupt.clone(),
            is_cancelled: AtomicBool::new(false),
            was_cancelled: AtomicBool::new(false),
            done_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
        })
    }

    /// Starts to load a model, after `before`.
    pub(super) fn start(
        &self,
        opened: OpenedModel,
        control: Arc<LoadControl>,
        before: BeforeLoad,
    ) -> CommandResult<Served> {
        let OpenedModel { model, info, text, context, args } = opened;
        // Grammars have vocabulary tables, which are built for the first answer with tools.
        let tables_bytes = Grammars::table_bytes(&text);
        let beside_bytes = (self.request_memory_bytes + tables_bytes) as u64 + FREED_BYTES_KEPT;
        let reservation = model::MemoryReservation {
            at_first: context.min(CONTEXT_DEFAULT),
            at_most: context.saturating_mul(args.sessions.get()),
            beside_bytes,
        };
        let mut options = Options::new(context);
        options.n_sessions = args.sessions.get();
        options.n_queue = args.queue;
        options.kept.n_sessions = args.keep_sessions;
        options.kept.n_bytes = args.keep_memory;
        options.unload_after = args.unload_after;
        options.saved.clone_from(&self.saved);
        let backend = args.model.backend()?;
        let (model_args, mut before) = (args.model, Some(before));
        let (saved, name) = (self.saved.clone(), hub::name_of(model.path()));
        let load = move |model| {
            before.take().map_or(Ok(()), |before| before())?;
            let loaded = model::load_on(backend, (model, reservation), &model_args, &*control);
            loaded.inspect(|engine| cache::name_model(saved.as_ref(), engine, &name))
        };
        let service = Service::start(model::loader(model, load), Arc::clone(&text), options)?;
        let service = Arc::new(service);
        Ok(Served { service, text, model: info, seconds_since_1970: clock::seconds_since_1970 })
    }
}

impl OpenedModel {
    /// Opens the model that the command line names.
    pub(super) fn new(args: &ServeArgs) -> CommandResult<Self> {
        Self::with_context(args, CONTEXT_OF_SESSIONS)
    }

    /// Opens it with `--context`, or with this context limited to the model's maximum.
    fn with_context(args: &ServeArgs, n_tokens: usize) -> CommandResult<Self> {
        let model = model::open(&args.model)?;
        let text = model.text()?;
        let context = model::context_for(&model, args.context, n_tokens)?;
        let info = info(args, model.path(), context);
        Ok(Self { model, info, text, context, args: args.clone() })
    }

    /// Returns the tokens of a session.
    pub(super) fn context(&self) -> usize {
        self.context
    }
}

impl LoadControl {
    /// Ends the load, also one that has not begun.
    pub(super) fn cancel(&self) {
        self.was_cancelled.store(true, Ordering::Relaxed);
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Lets a later load of the same model run.
    pub(super) fn reset(&self) {
        self.is_cancelled.store(false, Ordering::Relaxed);
        self.done_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns whether a load was ended for another model, even if one has begun again since.
    pub(super) fn was_cancelled(&self) -> bool {
        self.was_cancelled.load(Ordering::Relaxed)
    }

    /// Returns whether the load is to end.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed) || self.interrupt.is_set()
    }

    /// Returns the bytes that were read, and the total, once it is known.
    pub(super) fn bytes(&self) -> Option<(u64, u64)> {
        let total_bytes = self.total_bytes.load(Ordering::Relaxed);
        (total_bytes > 0).then(|| (self.done_bytes.load(Ordering::Relaxed), total_bytes))
    }
}

impl LoadWatcher for LoadControl {
    fn on_progress(&self, done_bytes: u64, total_bytes: u64) -> ControlFlow<()> {
        self.done_bytes.store(done_bytes, Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        if self.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn info(args: &ServeArgs, dir: &Path, context: usize) -> ModelInfo {
    let mut names = args.served_name.clone();
    if names.is_empty() {
        names.push(hub::name_of(dir));
    }
    let mut about = Map::new();
    let mut set = |key: &str, value: Value| about.insert(key.to_owned(), value);
    set("build", json!(concat!("moeflux ", env!("CARGO_PKG_VERSION"))));
    set("n_sessions", json!(args.sessions.get()));
    set("n_queue", json!(args.queue));
    set("n_context", json!(context));
    let created_s = u64::try_from(clock::seconds_since_1970()).unwrap_or_default();
    ModelInfo { names, created_s, about, measured: measured(dir) }
}

/// Returns what `moeflux doctor` has measured of memory and of the model's drive.
fn measured(dir: &Path) -> Option<MeasuredRates> {
    let kept = Measurements::load();
    let bytes_per_s = |rate: Option<MeasuredRate>| rate.map(|rate| rate.bytes_per_s);
    let rates = MeasuredRates {
        drive_bytes_per_s: bytes_per_s(kept.drive(Some(&volume::key(dir)))),
        memory_bytes_per_s: bytes_per_s(kept.memory()),
    };
    (rates.drive_bytes_per_s.is_some() || rates.memory_bytes_per_s.is_some()).then_some(rates)
}
