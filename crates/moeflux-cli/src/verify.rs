//! `moeflux verify`: every byte of a model read once and compared with its checksums.
//!
//! **Invariant:** damage is a line each on standard output and a failure at the end; what could not
//! be checked is said, never passed over.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use moeflux::provider::pack::{Coverage, Verified, verify};
use moeflux::{ByteCount, Error};

use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::machine;
use crate::model;
use crate::print;
use crate::progress::Bar;
use crate::ranges;

/// What `moeflux verify` is told.
#[derive(Args, Clone, Debug)]
pub(crate) struct VerifyArgs {
    /// Folder of the model, a GGUF file, or an OWNER/NAME in the hub's cache
    #[arg(value_name = "DIR|FILE.gguf|OWNER/NAME")]
    pub(crate) dir: PathBuf,
    /// Number of threads that read [default: all cores, at most 8]
    #[arg(long, value_name = "N", value_parser = ranges::threads)]
    pub(crate) threads: Option<NonZeroUsize>,
}

/// Checks; prints one line per damage and one that sums up.
///
/// # Errors
///
/// What is wrong with config and headers; that something is damaged.
pub(crate) fn run(args: &VerifyArgs, interrupt: &Interrupt) -> Outcome {
    let n_threads = args.threads.unwrap_or_else(machine::n_cores).get();
    let mut bar = None;
    let dir = model::path(Some(&args.dir))?;
    let verified = verify(&dir, n_threads, &mut |progress| {
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
        0 => Ok(print::line(&summary(&verified))?),
        n_damages => Err(Error::Input(format!(
            "{}: {n_damages} damaged in {} that were read: copy these files again, or pack the \
             source again",
            args.dir.display(),
            ByteCount(verified.n_bytes)
        ))
        .into()),
    }
}

fn summary(verified: &Verified) -> String {
    let Verified { coverage, n_bytes, n_records, n_tensors, .. } = verified;
    let n_bytes = ByteCount(*n_bytes);
    match coverage {
        Coverage::Checksums => format!(
            "{n_bytes}: {n_records} experts and {n_tensors} other tensors match their checksums"
        ),
        Coverage::FiniteOnly => format!(
            "{n_bytes}: all {n_tensors} tensors can be read; scales, biases and vectors are \
             finite\nnot checked: whether other values are the published ones, because these \
             files have no checksums (`moeflux pack` writes some)"
        ),
    }
}
