//! Opens what `--model` names, with a progress bar, and sizes sessions.

use std::num::NonZeroUsize;
use std::path::Path;

use moeflux::engine::{BackendKind, Engine, EngineConfig};
use moeflux::error::Result;

use crate::args::ModelArgs;
use crate::interrupt::Interrupt;
use crate::progress::BytesBar;

/// Room for a conversation where nothing larger is asked for.
const CONTEXT_DEFAULT: usize = 4096;

/// Reads the model.
pub(crate) fn open(args: &ModelArgs, interrupt: &Interrupt) -> Result<Engine> {
    open_on(&args.model, args, (args.backend.into(), interrupt))
}

/// Reads the model for another backend than `--backend` names.
pub(crate) fn open_on(
    dir: &Path,
    args: &ModelArgs,
    (backend, interrupt): (BackendKind, &Interrupt),
) -> Result<Engine> {
    let n_threads = args.threads.unwrap_or_else(n_cores);
    let config = EngineConfig { backend, n_threads, n_rows_max: args.chunk };
    let mut bar = None;
    Engine::open(dir, &config, &mut |progress| {
        let bar = bar.get_or_insert_with(|| BytesBar::new("loading", progress.total_bytes));
        bar.set(progress.done_bytes);
        interrupt.poll()
    })
}

/// Cores that this process may use.
pub(crate) fn n_cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// `--context`, or room for `n_tokens`, at least 4096 and at most what the model takes.
pub(crate) fn context_for(engine: &Engine, args: &ModelArgs, n_tokens: usize) -> usize {
    let context_max = engine.spec().context_max;
    let wanted = args.context.map(NonZeroUsize::get);
    wanted.unwrap_or_else(|| n_tokens.max(CONTEXT_DEFAULT).min(context_max))
}
