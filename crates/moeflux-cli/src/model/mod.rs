//! Opens the model that `--model` names: reads its headers first, so that errors are found at once,
//! then the weights, with a progress bar.

pub(crate) mod hub;
pub(crate) mod bare_config;
pub(crate) mod known;
pub(crate) mod fetch;
pub(crate) mod needs;
pub(crate) mod gpu_check;
pub(crate) mod device;

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use moeflux::provider::budget::UNSAID_BYTES;
use moeflux::provider::config::{EngineConfig, StreamingConfig, n_threads_default};
use moeflux::provider::engine::kernels_named;
use moeflux::provider::format::{Checkpoint, PACK_JOURNAL, PACK_METADATA, gguf_at};
use moeflux::provider::model::Headers;
use moeflux::provider::pack::lacks_sums;
use moeflux::provider::spec::ModelSpec;
use moeflux::{Budget, Engine, Error, Model, ReadWay, Result, TokenId};
use moeflux_io::{ReadFile, available_memory_bytes, create_file, total_memory_bytes};

use crate::failure::{CommandFailure, CommandResult};
use crate::options::args::{BackendName, Checksums, IoName, ModelArgs};
use crate::output::print;
use crate::output::progress::Bar;
use crate::output::size::binary;
use crate::system::cache;
use crate::system::interrupt::Interrupt;
use crate::system::measurements::Measurements;

/// Returns a model's path: the given path or name in the hub's cache, or by default the unpacked
/// folder of the built-in model.
pub(crate) fn path(given: Option<&Path>) -> Result<PathBuf> {
    let path = path_or_config(given)?;
    match path.is_file() && has_extension(&path, "json") && !begins_as_gguf(&path) {
        true => Err(Error::malformed(&path, name_its_folder(&path))),
        false => Ok(path),
    }
}

/// Returns the same for a command that also accepts a config without weights.
pub(crate) fn path_or_config(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(path) => {
            let path = hub::found(path)?;
            check_is_model(&path)?;
            Ok(path)
        }
        None => {
            let root = cache::folder();
            moeflux_demo::unpack(&root).map_err(Error::io("unpack the demo model to", &root))
        }
    }
}

/// Refuses a path that is not a model, such as a parent folder, and explains how to name one.
fn check_is_model(path: &Path) -> Result<()> {
    const WHAT: &str =
        "a model is a GGUF file, or the folder with its config.json and *.safetensors";
    check_named(path)?;
    if path.is_file() || !path.is_dir() && has_extension(path, "json") || gguf_at(path)?.is_some() {
        return Ok(());
    }
    match path.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Error::malformed(path, format!("there is no such folder; {WHAT}")));
        }
        found => found.map(drop).map_err(Error::io("open", path))?,
    }
    // An unfinished pack is reported when its journal is read.
    let has = |name: &str| path.join(name).exists();
    if !path.is_dir() || has("config.json") || has(PACK_JOURNAL) || has(PACK_METADATA) {
        return Ok(());
    }
    let mut below: Vec<PathBuf> = folders(path).chain(folders(&path.join("snapshots"))).collect();
    below.retain(|it| it.join("config.json").is_file());
    below.sort();
    let problem = match below.as_slice() {
        [] => format!("it has no config.json; {WHAT}"),
        [model, ..] => format!("it has no config.json, but {} has one", model.display()),
    };
    Err(Error::malformed(path, problem))
}

/// Refuses a file, or a missing path named like one, and says what to name instead. A config is
/// left to the commands that accept it.
pub(crate) fn check_named(path: &Path) -> Result<()> {
    if path.exists() && !path.is_file() && !path.is_dir() {
        return ReadFile::open(path).map(drop).map_err(Error::io("open", path));
    }
    let is_named_as_file = ["safetensors", "gguf"].iter().any(|it| has_extension(path, it));
    if path.is_dir() || !(path.is_file() || is_named_as_file) {
        return Ok(());
    }
    let problem = if has_extension(path, "json") || begins_as_gguf(path) {
        return Ok(());
    } else if has_extension(path, "gguf") {
        if path.is_file() {
            return Checkpoint::open(path).map(drop);
        }
        "there is no such file".to_owned()
    } else if has_extension(path, "safetensors") {
        name_its_folder(path)
    } else {
        "is a file: a model is a GGUF file, or the folder with its config.json and *.safetensors"
            .to_owned()
    };
    Err(Error::malformed(path, problem))
}

/// Returns the folder of a file.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn name_its_folder(path: &Path) -> String {
    format!("is one file of a model: name its folder {}", folder_of(path).display())
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|it| it.eq_ignore_ascii_case(extension))
}

fn begins_as_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let file = ReadFile::open(path).ok();
    file.is_some_and(|file| file.read_exact_at(0, &mut magic).is_ok()) && &magic == b"GGUF"
}

/// Returns the folders in a folder; none if it cannot be listed.
fn folders(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|it| it.is_dir())
}

/// Returns whether this is a GGUF file, or a folder with weights next to a config.
pub(crate) fn has_weights(dir: &Path) -> Result<bool> {
    if gguf_at(dir)?.is_some_and(|file| begins_as_gguf(&file)) {
        return Ok(true);
    }
    if !dir.is_dir() {
        return Ok(false);
    }
    for entry in std::fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let name = entry.map_err(Error::io("list", dir))?.file_name();
        if Path::new(&name).extension() == Some(OsStr::new("safetensors")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens the model that `--model` names, with the tokenizer of `--tokenizer`. Reads only headers.
pub(crate) fn open(args: &ModelArgs) -> Result<Model> {
    let model = Model::open(path(args.model.as_deref())?)?;
    Ok(match &args.tokenizer {
        Some(tokenizer) => model.with_tokenizer(tokenizer),
        None => model,
    })
}

/// The tokens that all sessions together will hold, and the memory for other purposes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryReservation {
    /// On the CPU, where growing sessions take memory from experts.
    pub(crate) at_first: usize,
    /// On a device, where that is not possible.
    pub(crate) at_most: usize,
    /// Bytes that this program needs besides the engine.
    pub(crate) beside_bytes: u64,
}

impl From<usize> for MemoryReservation {
    fn from(context: usize) -> Self {
        Self { at_first: context, at_most: context, beside_bytes: 0 }
    }
}

/// Loads a model whose sessions will hold `held` tokens.
pub(crate) fn load(
    model: Model,
    args: &ModelArgs,
    reservation: impl Into<MemoryReservation>,
    interrupt: &Interrupt,
) -> CommandResult<Engine> {
    Ok(load_traced(args.backend()?, (model, reservation.into()), args, interrupt)?)
}

/// Loads a model on this backend, with a trace if requested.
pub(crate) fn load_traced(
    backend: BackendName,
    (model, reservation): (Model, MemoryReservation),
    args: &ModelArgs,
    interrupt: &Interrupt,
) -> Result<Engine> {
    let Some(path) = &args.trace else {
        return load_on(backend, (model, reservation), args, interrupt);
    };
    // Before the weights are read, so that an unusable path is refused at once.
    let file = create_file(path).map_err(Error::io("create", path))?;
    let mut engine = load_on(backend, (model, reservation), args, interrupt)?;
    engine.begin_trace(Box::new(file), path)?;
    Ok(engine)
}

/// Follows the loading of a model, and may end it.
pub(crate) trait LoadWatcher {
    /// Receives the bytes that were read, and the total.
    fn on_progress(&self, done_bytes: u64, total_bytes: u64) -> ControlFlow<()>;
}

impl LoadWatcher for Interrupt {
    fn on_progress(&self, _: u64, _: u64) -> ControlFlow<()> {
        self.poll()
    }
}

/// Returns a function that loads a model whenever a service requests it; the first time, it uses
/// the headers already read.
pub(crate) fn loader(
    model: Model,
    mut load: impl FnMut(Model) -> Result<Engine> + Send + 'static,
) -> Box<dyn FnMut() -> Result<Engine> + Send> {
    let path = model.path().to_owned();
    let mut first = Some(model);
    Box::new(move || load(first.take().map_or_else(|| Model::open(&path), Ok)?))
}

/// Returns the bytes of a budget, or those that the machine can spare. If the system does not
/// report its memory, a fixed value is assumed.
pub(crate) fn memory_bytes(budget: Budget) -> u64 {
    match budget {
        Budget::Bytes(n_bytes) => n_bytes,
        Budget::Auto => available_memory_bytes().unwrap_or(UNSAID_BYTES),
    }
}

/// Returns a note if the system does not report its memory, or if a budget exceeds it.
fn memory_note(budget: Budget, free: Option<u64>, total: Option<u64>) -> Option<String> {
    match (budget, free, total) {
        (Budget::Auto, None, _) => {
            let memory = binary(UNSAID_BYTES);
            Some(format!(
                "note: this system does not report free memory; using at most {memory} (--memory \
                 SIZE sets it)"
            ))
        }
        (Budget::Bytes(n_bytes), _, Some(total)) if n_bytes > total => Some(format!(
            "note: --memory {} is more than this machine has: {}",
            binary(n_bytes),
            binary(total)
        )),
        _ => None,
    }
}

/// Loads a model on this backend, regardless of `--backend`, without a trace.
pub(crate) fn load_on(
    backend: BackendName,
    (model, reservation): (Model, MemoryReservation),
    args: &ModelArgs,
    watcher: &dyn LoadWatcher,
) -> Result<Engine> {
    let backend = match (&args.group, backend) {
        (Some(_), BackendName::Auto) => BackendName::Cpu,
        _ => backend,
    };
    let mut config = config(backend, args, reservation)?;
    config.device = device::of(backend, args, (&model, reservation.at_most))?;
    if config.device.is_some() {
        config.streaming.context = reservation.at_most;
    }
    let files = ModelFiles::new(&model, args);
    if let Some(way) = files.way_known {
        config.streaming.way = way;
    }
    if let Some(note) = memory_note(args.memory, available_memory_bytes(), total_memory_bytes()) {
        print::stderr_line(&note);
    }
    let may_fall_back = config.device.is_some() && backend == BackendName::Auto;
    let spare = may_fall_back.then(|| model.clone());
    let loaded = match (load_with_bar(model, &config, watcher), spare) {
        (Err(error), Some(model)) if device::falls_back(&error) => {
            device::note_fallback(&error);
            config.device = None;
            config.streaming.context = reservation.at_first;
            load_with_bar(model, &config, watcher)
        }
        (loaded, _) => loaded,
    };
    if let Ok(engine) = &loaded {
        files.remember_way(engine);
        files.print_notes(args, engine);
    }
    loaded
}

fn config(
    backend: BackendName,
    args: &ModelArgs,
    reservation: MemoryReservation,
) -> Result<EngineConfig> {
    if let Some(mirror) = args.mirror.as_deref().filter(|it| !it.is_dir()) {
        return Err(Error::malformed(mirror, "--mirror: there is no such folder"));
    }
    let way = match args.io {
        IoName::Auto => ReadWay::Measured,
        IoName::Direct => ReadWay::Direct,
        IoName::PageCache => ReadWay::PageCache,
    };
    Ok(EngineConfig {
        backend: backend.into(),
        device: None,
        arithmetic: args.arithmetic(),
        kernels: args.isa.as_deref().map(kernels_named).transpose()?,
        n_threads: n_threads(args),
        n_rows_max: args.chunk,
        streaming: StreamingConfig {
            budget: args.memory,
            beside_bytes: reservation.beside_bytes,
            context: reservation.at_first,
            way,
            mirror: args.mirror.clone(),
            prefetches: !args.no_look_ahead,
            checks_sums: args.checksums == Checksums::On,
            n_slots_max: args.slots.map(NonZeroUsize::get),
            ..StreamingConfig::default()
        },
        ranks: args.group.clone(),
    })
}

fn load_with_bar(model: Model, config: &EngineConfig, watcher: &dyn LoadWatcher) -> Result<Engine> {
    let mut bar = None;
    Engine::load(model, config, &mut |progress| {
        let bar = bar.get_or_insert_with(|| Bar::bytes("loading", progress.total_bytes));
        bar.set(progress.done_bytes);
        watcher.on_progress(progress.done_bytes, progress.total_bytes)
    })
}

/// The files of a model while it is loaded.
struct ModelFiles {
    dir: PathBuf,
    /// Key of the model for the measured way of reading; `None` if `--io` selects the way.
    key: Option<String>,
    way_known: Option<ReadWay>,
}

impl ModelFiles {
    fn new(model: &Model, args: &ModelArgs) -> Self {
        let dir = &model.checkpoint().dir;
        let key = (args.io == IoName::Auto).then(|| {
            let dir = dunce::canonicalize(dir).unwrap_or_else(|_| dir.clone());
            dir.to_string_lossy().into_owned()
        });
        let way_known = key.as_deref().and_then(|key| Measurements::load().way(key));
        Self { dir: model.path().to_owned(), key, way_known }
    }

    /// Keeps the measured way of reading. If the cache folder cannot be written, it is measured
    /// again next time.
    fn remember_way(&self, engine: &Engine) {
        if let (Some(key), None, Some(way)) = (&self.key, self.way_known, engine.read_way()) {
            let mut measured = Measurements::load();
            measured.set_way(key, way);
            drop(measured.save());
        }
    }

    /// Prints notes about files that are not read in the expected way.
    fn print_notes(&self, args: &ModelArgs, engine: &Engine) {
        if let Some(mirror) = args.mirror.as_ref().filter(|_| engine.read_way().is_none()) {
            let mirror = mirror.display();
            print::stderr_line(&format!(
                "note: the mirror {mirror} is not used: all experts fit in memory"
            ));
        }
        if lacks_sums(&self.dir) {
            let dir = self.dir.display();
            print::stderr_line(&format!(
                "note: config, tokenizer and template of the pack {dir} have no checksums: \
                 `moeflux verify {dir}` writes them"
            ));
        }
    }
}

/// Waits until all experts that fit in memory have been read.
pub(crate) fn read_rest(engine: &Engine, interrupt: &Interrupt) -> Result<()> {
    let mut bar = None;
    engine.read_rest(&mut |progress| {
        let bar = bar.get_or_insert_with(|| Bar::bytes("loading", progress.total_bytes));
        bar.set(progress.done_bytes);
        interrupt.poll()
    })
}

/// Returns the number of compute threads: `--threads`, or the default.
pub(crate) fn n_threads(args: &ModelArgs) -> NonZeroUsize {
    args.threads.unwrap_or_else(n_threads_default)
}

/// Returns `--context`, or `n_tokens` limited to the model's maximum.
pub(crate) fn context_for(
    model: &Model,
    asked: Option<NonZeroUsize>,
    n_tokens: usize,
) -> CommandResult<usize> {
    context_within(model.spec(), asked, n_tokens)
}

/// Returns the same for a model that may have no weights.
pub(crate) fn context_within(
    spec: &ModelSpec,
    asked: Option<NonZeroUsize>,
    n_tokens: usize,
) -> CommandResult<usize> {
    let context_max = spec.context_max;
    match asked.map(NonZeroUsize::get) {
        Some(context) if context > context_max => Err(CommandFailure::Usage(format!(
            "--context {context} is more than this model takes: give 1 to {context_max}"
        ))),
        Some(context) => Ok(context),
        None => Ok(n_tokens.min(context_max)),
    }
}

/// Checks that the model can process these tokens.
pub(crate) fn check_tokens(model: &Model, tokens: &[TokenId], context: usize) -> Result<()> {
    let spec = model.spec();
    if tokens.len() > context {
        return Err(Error::Input(format!(
            "{} tokens do not fit into a context of {context}; --context sets it, up to {} for \
             this model",
            tokens.len(),
            spec.context_max
        )));
    }
    match tokens.iter().position(|token| token.0 as usize >= spec.vocab) {
        None => Ok(()),
        Some(at) => Err(Error::Input(format!(
            "token {} at index {at} is not in the vocabulary of {}",
            tokens[at].0, spec.vocab
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_remarked_on_where_the_system_does_not_bear_it_out() {
        let gib = 1 << 30;
        let unknown = memory_note(Budget::Auto, None, None).unwrap();
        assert!(unknown.contains("using at most 4.00 GiB"), "{unknown}");
        let beyond = memory_note(Budget::Bytes(99 * gib), Some(gib), Some(2 * gib)).unwrap();
        assert_eq!(beyond, "note: --memory 99.00 GiB is more than this machine has: 2.00 GiB");
        assert_eq!(memory_note(Budget::Bytes(2 * gib), None, Some(2 * gib)), None);
        assert_eq!(memory_note(Budget::Bytes(gib), None, None), None);
        assert_eq!(memory_note(Budget::Auto, Some(gib), Some(gib)), None);
    }
}
