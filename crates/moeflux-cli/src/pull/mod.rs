//! `moeflux pull`: a checkpoint from the Hugging Face hub to the hub's cache.
//!
//! **Invariant:** before the first byte of weights, what it is, how large it is and whether it fits
//! was said; Ctrl-C leaves what the same command goes on from.

mod shown;
mod offer;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use moeflux::provider::blueprint::Blueprint;
use moeflux::{ByteCount, Error};
use moeflux_hub::{Choice, Glob, Hub, PIECE_BYTES, Pulled, Remote, Stop, Trust, Wanted};
use moeflux_io::OneLine;

use crate::ask::{self, confirm};
use crate::disk;
use crate::failure::{Failure, Outcome};
use crate::hub;
use crate::interrupt::Interrupt;
use crate::print;
use crate::ranges;
use crate::size;
use offer::Offer;
use shown::Shown;

/// Of a list of files, so many are printed.
const N_LISTED_MAX: usize = 12;

/// What `moeflux pull` is told.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Args, Clone, Debug)]
pub(crate) struct PullArgs {
    /// A repository of the Hugging Face hub, and a branch, a tag or a commit of it [default: main]
    #[arg(value_name = "OWNER/NAME[@REVISION]", value_parser = hub::wanted_of_owner)]
    wanted: Wanted,
    /// Download the files that match, for example '*Q4_K_M*.gguf', instead of those that moeflux
    /// uses: *.safetensors with their index, the configs, the tokenizer and the chat template. *
    /// stands for any text, ? for a character. May be given several times
    #[arg(long = "file", value_name = "GLOB", value_parser = glob)]
    files: Vec<Glob>,
    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
    /// Say what would be downloaded, and download nothing
    #[arg(long)]
    dry_run: bool,
    /// Hash all files that are here, also those that moeflux wrote or hashed before and that have
    /// not changed since
    #[arg(long)]
    check: bool,
    /// Number of connections, 1 to 64
    #[arg(long, value_name = "N", value_parser = ranges::connections, default_value = "8")]
    connections: NonZeroUsize,
    /// Bytes that are asked for at a time
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value_t = PIECE_BYTES)]
    #[arg(hide = true)]
    piece: u64,
}

fn glob(text: &str) -> Result<Glob, String> {
    Glob::new(text).map_err(|error| error.to_string())
}

/// Downloads; answers what to tell the user.
///
/// # Errors
///
/// What the hub refuses, what does not fit, what is damaged; [`Failure::Interrupted`] after Ctrl-C.
pub(crate) fn run(args: &PullArgs) -> Outcome<String> {
    let stop = Stop::default();
    let trust = if args.check { Trust::Nothing } else { Trust::Marks };
    let hub = Hub::new(hub::settings()?, trust, stop.clone());
    let choice = match args.files.as_slice() {
        [] => Choice::Usual,
        globs => Choice::Matching(globs.to_vec()),
    };
    let remote = hub.look(&args.wanted, &choice)?;
    check_choice(&remote, &choice)?;
    // A question ends the process at Ctrl-C; what works leaves something in order.
    let is_asking = Arc::new(AtomicBool::new(false));
    let asking = Arc::clone(&is_asking);
    let _interrupt = Interrupt::listen_and(move || match asking.load(Ordering::Relaxed) {
        true => Interrupt::end_process(),
        false => stop.set(),
    });
    let offer = Offer::new(&hub, &remote, args.piece)?;
    if args.dry_run {
        return Ok(offer.lines(&remote).join("\n"));
    }
    for line in offer.lines(&remote) {
        print::aside(&line);
    }
    let missing_bytes = offer.missing_bytes();
    if missing_bytes > 0 {
        disk::check_room(hub.cache().root(), offer.n_files(), missing_bytes)?;
        let question = format!("Download {}?", ByteCount(missing_bytes).rounded());
        is_asking.store(true, Ordering::Relaxed);
        if !args.yes && !confirm(&question, ask::Default::Yes)? {
            return Err(Error::Input("nothing was downloaded".to_owned()).into());
        }
        is_asking.store(false, Ordering::Relaxed);
    }
    let mut shown = Shown::downloading();
    let pulled = hub.pull(&remote, args.connections, args.piece, &mut |it| shown.watch(it));
    drop(shown);
    match pulled {
        Err(moeflux_hub::Error::Cancelled) => Err(Failure::Interrupted(format!(
            "cancelled; what arrived is kept, and `moeflux pull {}` continues",
            args.wanted
        ))),
        other => Ok(summary(&remote, &other?, offer.runs())),
    }
}

/// Refuses what would be no model.
fn check_choice(remote: &Remote, choice: &Choice) -> Outcome {
    let wanted = remote.wanted();
    let paths = |sorted: Vec<(&str, u64)>| {
        let n_left = sorted.len().saturating_sub(N_LISTED_MAX);
        let named = sorted.iter().take(N_LISTED_MAX);
        let named: Vec<String> = named
            .map(|(path, bytes)| {
                format!("{} ({})", OneLine::name(path), ByteCount(*bytes).rounded())
            })
            .collect();
        let more = if n_left > 0 { format!(", and {n_left} more") } else { String::new() };
        named.join(", ") + &more
    };
    if *choice == Choice::Usual {
        if remote.has_weights() {
            return Ok(());
        }
        let ggufs: Vec<(&str, u64)> = remote.ggufs().map(|(path, it)| (path, it.n_bytes)).collect();
        let problem = match ggufs.as_slice() {
            [] => format!("{wanted} has no *.safetensors, so there is no model that moeflux runs"),
            _ => format!(
                "{wanted} has GGUF files and no *.safetensors: choose one with --file, of {}",
                paths(ggufs)
            ),
        };
        return Err(Error::Input(problem + "; --file GLOB downloads any file").into());
    }
    if remote.chosen().next().is_some() {
        return Ok(());
    }
    let all = remote.listing().files().map(|(path, it)| (path, it.n_bytes)).collect();
    let problem = format!("no file of {wanted} matches --file: it has {}", paths(all));
    Err(Error::Input(problem).into())
}

fn summary(remote: &Remote, pulled: &Pulled, runs: bool) -> String {
    let (wanted, dir) = (remote.wanted(), pulled.dir.display());
    let fetched = match pulled.fetched_bytes {
        0 => "all was there".to_owned(),
        n_bytes => format!("{} downloaded", ByteCount(n_bytes)),
    };
    let has = |name: &str| remote.chosen().any(|(path, _)| path.ends_with(name));
    let is_gguf = || has(".gguf") && Blueprint::open(&pulled.dir).is_ok();
    if runs && has("config.json") && has(".safetensors") || is_gguf() {
        return format!("{dir}: {fetched}\nnext: moeflux chat --model {wanted}");
    }
    format!("{dir}: {fetched}")
}
