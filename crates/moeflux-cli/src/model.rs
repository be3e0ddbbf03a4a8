//! What `--model` names: its headers first, so that what cannot work fails at once, then the
//! weights, with a progress bar.

use std::ffi::OsStr;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use moeflux::blueprint::Blueprint;
use moeflux::config::{EngineConfig, StreamingConfig};
use moeflux::engine::{Engine, PROBE_TIME, kernels_named};
use moeflux::error::{Error, Result};
use moeflux::experts::stream::{Drives, choose_way};
use moeflux::format::Checkpoint;
use moeflux::ids::TokenId;
use moeflux::spec::ModelSpec;
use moeflux_io::Caching;

use crate::args::{BackendName, Checksums, IoName, ModelArgs};
use crate::cache;
use crate::device;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::measured::Measured;
use crate::progress::Bar;

/// A model's path: what was given, or the folder of the model in the box, unpacked.
pub(crate) fn path(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(path) => {
            check_there(path)?;
            Ok(path.to_owned())
        }
        None => {
            let root = cache::folder();
            moeflux_demo::unpack(&root).map_err(Error::io("unpack the model in the box to", &root))
        }
    }
}

/// Says what a model is to those who name something else: no folder, or one above it.
fn check_there(path: &Path) -> Result<()> {
    const WHAT: &str = "a model is the folder with its config.json and *.safetensors";
    // Who names a file is told by those who take files.
    if path.extension().is_some_and(|it| it == "json" || it == "safetensors") {
        return Ok(());
    }
    if !path.exists() {
        return Err(Error::malformed(path, format!("there is no such folder; {WHAT}")));
    }
    if !path.is_dir() || path.join("config.json").exists() {
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

/// The folders in a folder; none of what cannot be listed.
fn folders(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|it| it.is_dir())
}

/// Whether a folder has weights, or a config at most.
pub(crate) fn has_weights(dir: &Path) -> Result<bool> {
    for entry in std::fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let name = entry.map_err(Error::io("list", dir))?.file_name();
        if Path::new(&name).extension() == Some(OsStr::new("safetensors")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Shapes and constants, from headers alone.
pub(crate) fn spec(dir: &Path) -> Result<ModelSpec> {
    let (blueprint, _) = Blueprint::of_folder(dir)?;
    Ok(blueprint.spec)
}

/// Reads the model; sessions will hold `context` tokens.
pub(crate) fn open(
    dir: &Path,
    args: &ModelArgs,
    context: usize,
    interrupt: &Interrupt,
) -> Result<Engine> {
    let Some(path) = &args.trace else {
        return open_on(args.backend, (dir, context), args, interrupt);
    };
    // Before the weights are read: a place that cannot be written is refused at once.
    let file = File::create(path).map_err(Error::io("create", path))?;
    let mut engine = open_on(args.backend, (dir, context), args, interrupt)?;
    engine.begin_trace(Box::new(file), path)?;
    Ok(engine)
}

/// Reads the model for another backend than `--backend` names.
pub(crate) fn open_on(
    backend: BackendName,
    (dir, context): (&Path, usize),
    args: &ModelArgs,
    interrupt: &Interrupt,
) -> Result<Engine> {
    let mut config = EngineConfig {
        backend: backend.into(),
        device: device::of(backend, args)?,
        arithmetic: args.arithmetic(),
        kernels: args.isa.as_deref().map(kernels_named).transpose()?,
        n_threads: n_threads(args),
        n_rows_max: args.chunk,
        streaming: StreamingConfig {
            budget: args.memory,
            context,
            mirror: args.mirror.clone(),
            looks_ahead: !args.no_look_ahead,
            checks_sums: args.checksums == Checksums::On,
            n_slots_max: args.slots.map(NonZeroUsize::get),
            ..StreamingConfig::default()
        },
    };
    let opened = open_as(dir, &config, args, interrupt);
    match opened {
        Err(error) if config.device.is_some() && device::falls_back(backend, &error) => {
            device::say_fallback(&error);
            config.device = None;
            open_as(dir, &config, args, interrupt)
        }
        opened => opened,
    }
}

fn open_as(
    dir: &Path,
    config: &EngineConfig,
    args: &ModelArgs,
    interrupt: &Interrupt,
) -> Result<Engine> {
    let mut bar = None;
    let mirror = args.mirror.as_deref();
    let drives =
        &mut |checkpoint: &Checkpoint| Drives::open(checkpoint, way(args.io, checkpoint)?, mirror);
    Engine::open_on(dir, config, drives, &mut |progress| {
        let bar = bar.get_or_insert_with(|| Bar::bytes("loading", progress.total_bytes));
        bar.set(progress.done_bytes);
        interrupt.poll()
    })
}

/// The way of reading that `--io` names, or the faster one: measured at the first time for a model,
/// remembered for the next.
fn way(io: IoName, checkpoint: &Checkpoint) -> Result<Caching> {
    match io {
        IoName::Direct => return Ok(Caching::Direct),
        IoName::PageCache => return Ok(Caching::PageCache),
        IoName::Auto => {}
    }
    let dir = std::fs::canonicalize(&checkpoint.dir).unwrap_or_else(|_| checkpoint.dir.clone());
    let dir = dir.to_string_lossy();
    let mut measured = Measured::load();
    if let Some(way) = measured.way(&dir) {
        return Ok(way);
    }
    let way = choose_way(checkpoint, PROBE_TIME)?;
    measured.set_way(&dir, way);
    // A cache folder that cannot be written costs the same measurement next time.
    drop(measured.save());
    Ok(way)
}

/// Threads that compute: `--threads`, or all cores.
pub(crate) fn n_threads(args: &ModelArgs) -> NonZeroUsize {
    args.threads.unwrap_or_else(n_cores)
}

/// Cores that this process may use.
pub(crate) fn n_cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// `--context`, or `n_tokens`, at most what the model takes.
pub(crate) fn context_for(
    spec: &ModelSpec,
    asked: Option<NonZeroUsize>,
    n_tokens: usize,
) -> Outcome<usize> {
    let context_max = spec.context_max;
    match asked.map(NonZeroUsize::get) {
        Some(context) if context > context_max => Err(Failure::Usage(format!(
            "--context {context} is more than this model takes: give 1 to {context_max}"
        ))),
        Some(context) => Ok(context),
        None => Ok(n_tokens.min(context_max)),
    }
}

/// Whether the model can read these tokens.
pub(crate) fn check_tokens(spec: &ModelSpec, tokens: &[TokenId], context: usize) -> Result<()> {
    if tokens.len() > context {
        return Err(Error::Input(format!(
            "{} tokens do not fit a context of {context}; --context sets it, this model takes up \
             to {}",
            tokens.len(),
            spec.context_max
        )));
    }
    match tokens.iter().position(|token| token.0 as usize >= spec.vocab) {
        None => Ok(()),
        Some(at) => Err(Error::Input(format!(
            "token {} at place {at} is not in the vocabulary of {}",
            tokens[at].0, spec.vocab
        ))),
    }
}
