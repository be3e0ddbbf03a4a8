//! `moeflux logits`: token ids in, one row of float32 logits per token out.

use std::path::{Path, PathBuf};

use clap::Args;
use moeflux::engine::Engine;
use moeflux::error::{Error, Result};
use moeflux::format::NpyWriter;
use moeflux::ids::TokenId;
use moeflux::session::{Session, Wanted};

use crate::args::ModelArgs;
use crate::interrupt::Interrupt;
use crate::model;

/// What `moeflux logits` is told.
#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids, separated by commas
    #[arg(long, value_name = "ID,ID,...", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// File to write
    #[arg(long, value_name = "FILE.npy")]
    out: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &LogitsArgs) -> Result<()> {
    let interrupt = Interrupt::listen();
    let engine = model::open(&args.model, &interrupt)?;
    let tokens: Vec<TokenId> = args.tokens.iter().copied().map(TokenId).collect();
    let context = model::context_for(&engine, &args.model, tokens.len());
    let mut session = engine.session(context)?;

    // Renamed when complete, so that a file under the asked name is never half a file.
    let partial = args.out.with_extension("npy.partial");
    let written = write_rows(&partial, &engine, (&mut session, &tokens), &interrupt)
        .and_then(|()| std::fs::rename(&partial, &args.out).map_err(Error::io("write", &args.out)));
    if written.is_err() {
        // What failed first is the news; a leftover file is only untidy.
        drop(std::fs::remove_file(&partial));
    }
    written
}

fn write_rows(
    path: &Path,
    engine: &Engine,
    (session, tokens): (&mut Session, &[TokenId]),
    interrupt: &Interrupt,
) -> Result<()> {
    let mut npy = NpyWriter::create(path, tokens.len(), engine.spec().vocab)?;
    session.feed(tokens, Wanted::All, &mut |_| interrupt.poll(), &mut |_, logits| {
        npy.write_row(logits)
    })?;
    npy.finish()
}
