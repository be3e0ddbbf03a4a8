//! `moeflux logits`: writes one row of float32 logits for each given token id.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use moeflux::TokenId;
use moeflux::provider::format::NpyWriter;
use moeflux::step::Wanted;

use crate::failure::CommandResult;
use crate::model;
use crate::options::args::ModelArgs;
use crate::options::ranges;
use crate::system::interrupt::Interrupt;
use crate::system::out_file::OutFile;

/// The arguments of `moeflux logits`.
#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens that the session has room for [default: as many as are given]
    #[arg(long, value_name = "N", value_parser = ranges::tokens, allow_negative_numbers = true)]
    context: Option<NonZeroUsize>,
    /// Token ids, separated by commas
    #[arg(
        long,
        value_name = "ID,ID,...",
        value_delimiter = ',',
        value_parser = ranges::token_id,
        required = true
    )]
    tokens: Vec<TokenId>,
    /// File to write
    #[arg(long, value_name = "FILE.npy")]
    out: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &LogitsArgs) -> CommandResult {
    let interrupt = Interrupt::listen();
    let opened = model::open(&args.model)?;
    let context = model::context_for(&opened, args.context, args.tokens.len())?;
    model::check_tokens(&opened, &args.tokens, context)?;
    let out = OutFile::new(&args.out)?;
    let mut npy = NpyWriter::create(out.path(), args.tokens.len(), opened.vocab())?;

    let engine = model::load(opened, &args.model, context, &interrupt)?;
    let mut session = engine.session(context)?;
    let watch = &mut |_| interrupt.poll();
    session.feed(&args.tokens, Wanted::All, watch, &mut |_, logits| npy.write_row(logits))?;
    engine.end_trace()?;
    npy.finish()?;
    Ok(out.finish()?)
}
