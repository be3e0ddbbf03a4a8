//! `moeflux logits`: writes one row of float32 logits for each given token id.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use moeflux::provider::format::NpyWriter;
use moeflux::step::Wanted;
use moeflux::{Error, TokenId};

use crate::failure::CommandResult;
use crate::model;
use crate::options::args::ModelArgs;
use crate::options::prompt::read_prompt;
use crate::options::ranges;
use crate::system::interrupt::Interrupt;
use crate::system::out_file::OutFile;

/// The arguments of `moeflux logits`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("asked").required(true))]
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
        group = "asked"
    )]
    tokens: Vec<TokenId>,
    /// File with a text; its tokens are those of a prompt, as `moeflux tokenize` shows them
    #[arg(long, value_name = "TEXT", group = "asked")]
    file: Option<PathBuf>,
    /// File to write
    #[arg(long, value_name = "FILE.npy")]
    out: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &LogitsArgs) -> CommandResult {
    let interrupt = Interrupt::listen();
    let opened = model::open(&args.model)?;
    let tokens = match &args.file {
        Some(file) => opened.text()?.tokenizer().encode_prompt(&read_prompt(file)?)?,
        None => args.tokens.clone(),
    };
    if tokens.is_empty() {
        return Err(Error::Input("there are no tokens: the text is empty".to_owned()).into());
    }
    let context = model::context_for(&opened, args.context, tokens.len())?;
    model::check_tokens(&opened, &tokens, context)?;
    let out = OutFile::new(&args.out)?;
    let mut npy = NpyWriter::create(out.path(), tokens.len(), opened.vocab())?;

    let engine = model::load(opened, &args.model, context, &interrupt)?;
    let mut session = engine.session(context)?;
    let watch = &mut |_| interrupt.poll();
    session.feed(&tokens, Wanted::All, watch, &mut |_, logits| npy.write_row(logits))?;
    engine.end_trace()?;
    npy.finish()?;
    Ok(out.finish()?)
}
