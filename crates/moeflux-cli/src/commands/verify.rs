//! `moeflux verify`: reads every byte of a model once and compares it with its checksums.
//!
//! **Invariant:** each damage is a line on standard output, and the command fails at the end;
//! everything that could not be checked is reported. The only file that is ever written is the one
//! with the checksums of a pack's small files: if there is none, or on request.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use moeflux::provider::format::{Checkpoint, PACK_SUMS_NAME};
use moeflux::provider::pack::{
    Coverage, Damage, DamagedPart, Documents, Verified, verify_with, write_sums,
};
use moeflux::{ByteCount, Error};

use crate::failure::CommandResult;
use crate::model;
use crate::options::ranges;
use crate::output::print;
use crate::output::progress::Bar;
use crate::system::interrupt::Interrupt;
use crate::system::machine;

/// The arguments of `moeflux verify`.
#[derive(Args, Clone, Debug)]
pub(crate) struct VerifyArgs {
    /// Folder of the model, a GGUF file, or OWNER/NAME in the hub's cache
    #[arg(value_name = "DIR|FILE.gguf|OWNER/NAME[:QUANT]")]
    pub(crate) dir: PathBuf,
    /// Number of threads that read [default: all cores, at most 8]
    #[arg(long, value_name = "N", value_parser = ranges::threads)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Accept the small files of a pack (config, index, tokenizer, chat template) as they are now,
    /// and write their checksums anew. Weights are compared as always
    #[arg(long)]
    pub(crate) accept_edits: bool,
}

/// Checks the model. Prints one line per damage and a summary.
///
/// # Errors
///
/// Fails if the config or headers are invalid, or if something is damaged.
pub(crate) fn run(args: &VerifyArgs, interrupt: &Interrupt) -> CommandResult {
    let n_threads = args.threads.unwrap_or_else(machine::n_cores).get();
    let mut bar = None;
    let dir = model::path(Some(&args.dir))?;
    let documents = if args.accept_edits { Documents::Accepted } else { Documents::AsPacked };
    let verified = verify_with(&dir, documents, n_threads, &mut |progress| {
        let bar = bar.get_or_insert_with(|| Bar::bytes("verifying", progress.total_bytes));
        bar.set(progress.done_bytes);
        interrupt.poll()
    });
    drop(bar);
    let verified = verified?;
    for damage in &verified.damages {
        print::line(&format!("damaged: {damage}"))?;
    }
    match verified.damages.len() {
        0 => {
            print::line(&summary(&verified, &dir))?;
            if verified.needs_pack_sums { complete(&dir, args.accept_edits) } else { Ok(()) }
        }
        n_damages => Err(Error::Input(format!(
            "{}: {n_damages} damaged in {} read: copy these files again{}{}",
            args.dir.display(),
            ByteCount(verified.n_bytes),
            match verified.coverage {
                Coverage::Checksums => ", or pack the source again",
                Coverage::FiniteOnly => "",
            },
            if verified.damages.iter().any(is_of_small_files) {
                "; --accept-edits accepts small files as they are"
            } else {
                ""
            }
        ))
        .into()),
    }
}

fn is_of_small_files(damage: &Damage) -> bool {
    matches!(damage.part, DamagedPart::Document | DamagedPart::PackSums)
}

/// Writes the checksums of small files. A pack that is read-only counts as verified all the same.
fn complete(dir: &Path, was_asked: bool) -> CommandResult {
    match write_sums(dir) {
        Ok(names) => {
            let path = dir.join(PACK_SUMS_NAME);
            let n_files = names.len();
            let written = format!("{}: checksums of {n_files} small files written", path.display());
            Ok(print::line(&written)?)
        }
        Err(error) if was_asked => Err(error.into()),
        Err(error) => {
            let lacking = "checksums of the small files, which this pack lacks";
            print::stderr_line(&format!("note: {lacking}: {error}"));
            Ok(())
        }
    }
}

fn summary(verified: &Verified, dir: &Path) -> String {
    let Verified { coverage, n_bytes, n_records, n_tensors, n_documents, .. } = verified;
    let n_bytes = ByteCount(*n_bytes);
    match coverage {
        Coverage::Checksums => format!(
            "{n_bytes}: {n_records} experts, {n_tensors} other tensors and {n_documents} small \
             files match their checksums"
        ),
        Coverage::FiniteOnly => format!(
            "{n_bytes}: all {n_tensors} tensors can be read; scales, biases and vectors are \
             finite\nnot checked: whether other values are the published ones; {}",
            checksums_of(dir)
        ),
    }
}

/// Names the checksums of a model that is not packed, or says how to create them.
fn checksums_of(dir: &Path) -> String {
    let sums = Checkpoint::open(dir).map(|checkpoint| checkpoint.sums_path());
    let shown = dir.display();
    match sums.ok().filter(|sums| sums.is_file()) {
        Some(sums) => format!(
            "`moeflux doctor --deep {shown}` compares them with the checksums in {}",
            sums.display()
        ),
        None => format!(
            "these files have no checksums: `moeflux doctor --deep {shown}` writes some now and \
             finds later changes with them"
        ),
    }
}
