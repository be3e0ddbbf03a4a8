//! `moeflux pack`: converts a checkpoint to the format that is read fastest, quantised on request.
//!
//! **Invariant:** everything that can be refused is refused before anything is written; after
//! Ctrl-C, the same command resumes in the same folder.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use moeflux::provider::format::PACK_JOURNAL;
use moeflux::provider::pack::{PackOptions, PackReport, Packing, SourceHandling};
use moeflux::provider::spec::QuantParams;
use moeflux::{ByteCount, Error};

use crate::failure::CommandResult;
use crate::model;
use crate::model::bare_config::{BITS_DEFAULT, GROUP_DEFAULT, parse_bits, parse_group};
use crate::model::hub;
use crate::options::ranges;
use crate::output::print;
use crate::output::progress::Bar;
use crate::system::disk;
use crate::system::interrupt::Interrupt;
use crate::system::machine;

/// The arguments of `moeflux pack`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PackArgs {
    /// Folder of the checkpoint, as published or as mlx-lm wrote it, or its OWNER/NAME in the hub's
    /// cache; or a GGUF file
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,
    /// The folder to write; it must be empty, not exist, or hold an interrupted pack of SRC
    #[arg(value_name = "DST")]
    pub(crate) target: PathBuf,
    /// Quantise to this number of bits, as mlx-lm does: 2, 3, 4, 5, 6 or 8 [default: 4 if --group
    /// is given; with neither option, every weight stays as it is]. The blocks of a GGUF file lose
    /// precision
    #[arg(long, value_parser = parse_bits)]
    pub(crate) bits: Option<u8>,
    /// Weights per scale when quantising: 32, 64 or 128 [default: 64 if --bits is given]
    #[arg(long, value_parser = parse_group)]
    pub(crate) group: Option<u8>,
    /// Delete the source while packing: each of its files of weights is deleted as soon as its
    /// whole content has been written to DST, synced and read back. This needs little free space,
    /// but deleted files cannot be recovered, and with --bits the unquantised weights are lost.
    /// There is no confirmation prompt
    #[arg(long)]
    pub(crate) replace: bool,
    /// Number of threads that read and quantise [default: all cores, at most 16]
    #[arg(long, value_name = "N", value_parser = ranges::threads)]
    pub(crate) threads: Option<NonZeroUsize>,
}

impl PackArgs {
    fn options(&self) -> PackOptions {
        let params = match (self.bits, self.group) {
            (None, None) => None,
            (bits, group) => Some(QuantParams {
                bits: bits.unwrap_or(BITS_DEFAULT),
                group: group.unwrap_or(GROUP_DEFAULT),
            }),
        };
        PackOptions {
            params,
            handling: if self.replace { SourceHandling::Replaced } else { SourceHandling::Kept },
            n_threads: self.threads.unwrap_or_else(machine::n_cores),
        }
    }
}

/// Packs the model. Returns a message for the user.
///
/// # Errors
///
/// Fails if the source, the folder or the disk is unusable; [`Error::Cancelled`] soon after Ctrl-C.
pub(crate) fn run(args: &PackArgs, interrupt: &Interrupt) -> CommandResult<String> {
    let source = hub::found(&args.source)?;
    // An interrupted run may already have deleted the named file.
    if !args.target.join(PACK_JOURNAL).exists() {
        model::check_named(&source)?;
    }
    let packing = Packing::prepare(&source, &args.target, &args.options())?;
    disk::check_room(&args.target, packing.n_files() + 1, packing.room_bytes())?;
    if packing.is_resumed() {
        print::stderr_line(&format!(
            "continuing an interrupted pack: {} of {} remain to be written",
            ByteCount(packing.remaining_bytes()).rounded(),
            ByteCount(packing.total_bytes()).rounded()
        ));
    }
    let mut bar = None;
    let packed = packing.run(&mut |progress| {
        let bar = bar.get_or_insert_with(|| Bar::bytes("packing", progress.total_bytes));
        bar.set(progress.done_bytes);
        interrupt.poll()
    });
    drop(bar);
    match packed {
        Err(Error::Cancelled) => Err(Error::Input(format!(
            "cancelled; {} keeps the work done so far, and the same command continues it",
            args.target.display()
        ))
        .into()),
        other => Ok(summary(args, other?)),
    }
}

fn summary(args: &PackArgs, packed: PackReport) -> String {
    let out = args.target.display();
    let mut text =
        format!("{out}: {} in {} files of weights", ByteCount(packed.n_bytes), packed.n_files);
    if packed.n_replaced > 0 {
        let source = args.source.display();
        text.push_str(&format!(
            "\n{} files of weights of {source} were deleted; its other files are still there",
            packed.n_replaced
        ));
    }
    text.push_str(&format!("\nnext: moeflux generate --model {out} -n 32 \"Hello\""));
    text
}
