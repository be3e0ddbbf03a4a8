//! `moeflux pull`: downloads a checkpoint from the Hugging Face hub to the hub's cache.
//!
//! **Invariant:** the model's kind and size, and whether it fits, are printed before the first byte
//! of weights is fetched; after Ctrl-C, the same command resumes the download.

mod progress;
pub(crate) mod offer;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use moeflux::{ByteCount, Error, Model};
use moeflux_hub::{
    FileSelection, Glob, Hub, ModelRef, PIECE_BYTES, Pulled, Quant, Remote, StopFlag, Trust,
};
use moeflux_io::OneLine;

use crate::failure::{CommandFailure, CommandResult};
use crate::model::hub;
use crate::model::known::{self, KnownModel};
use crate::options::ranges;
use crate::output::ask::{self, confirm};
use crate::output::print;
use crate::output::size;
use crate::system::disk;
use crate::system::interrupt::Interrupt;
use offer::Offer;
use progress::DownloadProgress;

/// Upper bound on the files printed of a list.
const N_LISTED_MAX: usize = 12;

/// The default number of connections.
pub(crate) const CONNECTIONS: NonZeroUsize = NonZeroUsize::new(8).expect("it is not 0");

/// The arguments of `moeflux pull`.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Args, Clone, Debug)]
pub(crate) struct PullArgs {
    /// A repository of the Hugging Face hub, or a link to one of its pages; for one with GGUF
    /// files, the kind to download, such as Q4_K_M; and a branch, tag or commit [default: main]
    #[arg(value_name = "OWNER/NAME[:QUANT][@REVISION]", value_parser = wanted)]
    wanted: ModelRef,
    /// Download the files that match, for example '*Q4_K_M*.gguf', instead of those that moeflux
    /// uses: *.safetensors with their index, the configs, the tokenizer and the chat template. *
    /// stands for any text, ? for a character. May be given several times
    #[arg(long = "file", value_name = "GLOB", value_parser = glob)]
    files: Vec<Glob>,
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    yes: bool,
    /// Show what would be downloaded, but download nothing
    #[arg(long)]
    dry_run: bool,
    /// Hash all files that are here, including those that moeflux wrote or hashed before and that
    /// have not changed since
    #[arg(long)]
    check: bool,
    /// Number of connections, 1 to 64
    #[arg(long, value_name = "N", value_parser = ranges::connections)]
    #[arg(default_value_t = CONNECTIONS)]
    connections: NonZeroUsize,
    /// Bytes that are asked for at a time
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value_t = PIECE_BYTES)]
    #[arg(hide = true)]
    piece: u64,
}

/// Parses a repository, or the name of a known model.
fn wanted(text: &str) -> Result<ModelRef, String> {
    let known = known::named(Path::new(text)).filter(|_| !text.contains('/'));
    match known.and_then(KnownModel::repository) {
        Some(wanted) => Ok(wanted),
        None => hub::wanted_of_owner(text),
    }
}

fn glob(text: &str) -> Result<Glob, String> {
    Glob::new(text).map_err(|error| error.to_string())
}

/// Downloads the files. Returns a message for the user.
///
/// # Errors
///
/// Fails if the hub refuses, the disk is too small, or data is damaged;
/// [`CommandFailure::Interrupted`] after Ctrl-C.
pub(crate) fn run(args: &PullArgs) -> CommandResult<String> {
    let stop = StopFlag::default();
    let trust = if args.check { Trust::Nothing } else { Trust::Marks };
    let hub = Hub::new(hub::settings()?, trust, stop.clone());
    let choice = match args.files.as_slice() {
        [] => FileSelection::from(&args.wanted),
        globs => FileSelection::Matching(globs.to_vec()),
    };
    let remote = hub.resolve(&args.wanted, &choice)?;
    check_choice(&remote, &choice)?;
    // During a question Ctrl-C ends the process; otherwise the work stops in a consistent state.
    let is_asking = Arc::new(AtomicBool::new(false));
    let asking = Arc::clone(&is_asking);
    let _interrupt = Interrupt::listen_and(move |_| match asking.load(Ordering::Relaxed) {
        true => Interrupt::end_process(),
        false => stop.set(),
    });
    let mut checking = DownloadProgress::checking();
    let offer = Offer::new(&hub, &remote, args.piece, &mut |it| checking.watch(it))?;
    drop(checking);
    if args.dry_run {
        return Ok(offer.lines(&remote).join("\n"));
    }
    for line in offer.lines(&remote) {
        print::stderr_line(&line);
    }
    let missing_bytes = offer.missing_bytes();
    if missing_bytes > 0 {
        disk::check_room(hub.cache().root(), offer.n_files(), missing_bytes)?;
        let question = format!("Download {}?", ByteCount(missing_bytes).rounded());
        is_asking.store(true, Ordering::Relaxed);
        if !args.yes && !confirm(&question, ask::DefaultAnswer::Yes)? {
            return Err(Error::Input("nothing was downloaded".to_owned()).into());
        }
        is_asking.store(false, Ordering::Relaxed);
    }
    let mut progress = DownloadProgress::downloading();
    let pulled = hub.pull(&remote, args.connections, args.piece, &mut |it| progress.watch(it));
    drop(progress);
    match pulled {
        Err(moeflux_hub::Error::Cancelled) => Err(CommandFailure::Interrupted(format!(
            "cancelled; what arrived is kept, and `moeflux pull {}` resumes",
            args.wanted
        ))),
        other => {
            let pulled = other?;
            let is_requested = hub.settings().has_no_links;
            if pulled.fetched_bytes > 0 && !is_requested && !has_links(&remote, &pulled.dir) {
                print::stderr_line(
                    "note: links cannot be created in this folder: each revision has its own \
                     files, and those that two of them share are stored twice",
                );
            }
            Ok(summary(&remote, &pulled, offer.runs()))
        }
    }
}

/// Returns whether files of a snapshot are links to contents shared between revisions.
fn has_links(remote: &Remote, dir: &Path) -> bool {
    remote.chosen().any(|(path, _)| dir.join(path).is_symlink())
}

/// Refuses a choice of files that is not a model.
pub(crate) fn check_choice(remote: &Remote, choice: &FileSelection) -> CommandResult {
    let (wanted, n_chosen) = (remote.model(), remote.chosen().count());
    let problem = match choice {
        FileSelection::Usual if remote.has_weights() => return Ok(()),
        FileSelection::Usual => match kinds(remote) {
            None => format!(
                "{wanted} has no *.safetensors, so there is no model that moeflux runs; --file \
                 GLOB downloads any file"
            ),
            Some(kinds) => format!(
                "{wanted} has GGUF files: name the kind that you want, as in `moeflux pull \
                 {wanted}:Q4_K_M`; it has {kinds}; --file GLOB downloads any file"
            ),
        },
        FileSelection::Quant(quant) if n_chosen == 0 => format!(
            "{} has no GGUF file of the kind {quant}: it has {}",
            wanted.id,
            kinds(remote).unwrap_or_else(|| "none of any kind".to_owned())
        ),
        FileSelection::Matching(_) if n_chosen == 0 => format!(
            "no file of {wanted} matches --file: it has {}",
            listed(remote.listing().files().map(|(path, it)| (path.to_owned(), it.n_bytes)))
        ),
        _ => return Ok(()),
    };
    Err(Error::Input(problem).into())
}

/// Lists the kinds of a repository's GGUF files; if a file's kind is unknown, its name.
fn kinds(remote: &Remote) -> Option<String> {
    let mut kinds = BTreeMap::<String, u64>::new();
    for (path, file) in remote.ggufs().filter(|(path, _)| !path.contains("mmproj")) {
        let kind = Quant::of_file(path).map_or_else(|| path.to_owned(), |it| it.to_string());
        let n_bytes = kinds.entry(kind).or_default();
        *n_bytes = n_bytes.saturating_add(file.n_bytes);
    }
    (!kinds.is_empty()).then(|| listed(kinds.into_iter()))
}

/// Lists names with their sizes, only some of them if there are many.
fn listed(named: impl Iterator<Item = (String, u64)>) -> String {
    let named: Vec<(String, u64)> = named.collect();
    let n_left = named.len().saturating_sub(N_LISTED_MAX);
    let shown: Vec<String> = named
        .iter()
        .take(N_LISTED_MAX)
        .map(|(name, bytes)| format!("{} ({})", OneLine::name(name), ByteCount(*bytes).rounded()))
        .collect();
    let more = if n_left > 0 { format!(", and {n_left} more") } else { String::new() };
    shown.join(", ") + &more
}

fn summary(remote: &Remote, pulled: &Pulled, runs: bool) -> String {
    let (wanted, dir) = (remote.model(), pulled.dir.display());
    let fetched = match pulled.fetched_bytes {
        0 => "all was there".to_owned(),
        n_bytes => format!("{} downloaded", ByteCount(n_bytes)),
    };
    let has = |name: &str| remote.chosen().any(|(path, _)| path.ends_with(name));
    let is_gguf = || has(".gguf") && Model::open(&pulled.dir).is_ok();
    if runs && has("config.json") && has(".safetensors") || is_gguf() {
        return format!("{dir}: {fetched}\nnext: moeflux chat --model {wanted}");
    }
    format!("{dir}: {fetched}")
}
