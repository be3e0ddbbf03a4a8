//! The texts that `moeflux eval` reads, cut into windows.
//!
//! The bytes of predicted tokens count; separators of documents are predicted too, but are not
//! text, so theirs do not.

use std::hash::Hasher as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use moeflux::provider::format::read_file;
use moeflux::{Error, Model, Result, TokenId, Tokenizer};
use twox_hash::XxHash3_64;

use crate::commands::eval::EvalArgs;
use crate::commands::eval::windows::{TextWindow, TextWindows, WindowParams};
use crate::failure::{CommandFailure, CommandResult};
use crate::model;

/// Default tokens of a window: perplexities are comparable only for equal windows.
const WINDOW_DEFAULT: usize = 2048;

/// Upper bound on a text: more would take too long.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// A file with a text.
#[derive(Debug)]
pub(crate) struct TextFile {
    pub(crate) path: PathBuf,
    text: String,
}

/// A text cut into windows.
#[derive(Debug)]
pub(crate) struct EvalText {
    pub(crate) path: PathBuf,
    pub(crate) windows: TextWindows,
    /// Bytes of all predicted tokens.
    pub(crate) n_bytes: usize,
}

/// Reads the files of `--file`.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<TextFile>> {
    paths.iter().map(|path| Ok(TextFile { path: path.clone(), text: read_text(path)? })).collect()
}

fn read_text(path: &Path) -> Result<String> {
    if model::has_weights(path)? || path.join("config.json").is_file() {
        let problem = "is a model: pass it with --model, and a text to evaluate with --file";
        return Err(Error::malformed(path, problem));
    }
    let bytes = read_file(path, TEXT_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::malformed(path, format!("is not UTF-8 at byte {at}"))
    })
}

/// Returns the number of tokens in a window of this model.
pub(crate) fn context_of(args: &EvalArgs, model: &Model) -> CommandResult<usize> {
    model::context_for(model, args.context, WINDOW_DEFAULT)
}

/// Cuts texts into windows of `context` tokens of this model.
pub(crate) fn cut(
    args: &EvalArgs,
    files: &[TextFile],
    (model, context): (&Model, usize),
) -> CommandResult<Vec<EvalText>> {
    let model_text = model.text()?;
    let tokenizer = model_text.tokenizer();
    let params = window_params(args, tokenizer, context)?;
    files.iter().map(|file| cut_text(args.limit, file, (tokenizer, &params))).collect()
}

fn window_params(
    args: &EvalArgs,
    tokenizer: &Tokenizer,
    context: usize,
) -> CommandResult<WindowParams> {
    let prefix = tokenizer.encode_prompt("")?;
    let n_needed = prefix.len().max(1) + 1;
    if context < n_needed {
        return Err(CommandFailure::Usage(format!(
            "windows of {context} predict nothing: --context must be {n_needed} or more"
        )));
    }
    let n_text_max = context - prefix.len();
    let stride = args.stride.map_or(n_text_max, NonZeroUsize::get);
    if stride > n_text_max {
        return Err(CommandFailure::Usage(format!(
            "--stride {stride} skips tokens: a window holds only {n_text_max} tokens of the text"
        )));
    }
    let unknown =
        |text| CommandFailure::Usage(format!("--separator `{text}` is not a token of this model"));
    let separator = args.separator.as_ref();
    let separator =
        separator.map(|text| tokenizer.id_of(text).ok_or_else(|| unknown(text))).transpose()?;
    Ok(WindowParams { prefix, separator, context, stride })
}

fn cut_text(
    limit: Option<usize>,
    file: &TextFile,
    (tokenizer, params): (&Tokenizer, &WindowParams),
) -> CommandResult<EvalText> {
    let mut tokens = tokenizer.encode(&file.text)?;
    tokens.truncate(limit.unwrap_or(usize::MAX));
    let windows = TextWindows::of(&tokens, params.clone());
    if windows.windows.is_empty() {
        let n_needed = params.prefix.len().max(1) + 1 - params.prefix.len();
        let problem = format!("tokens: {}, and at least {n_needed} are needed", tokens.len());
        return Err(Error::malformed(&file.path, problem).into());
    }
    let of_text = windows.predicted().filter(|token| Some(*token) != params.separator);
    let n_bytes = of_text.map(|token| tokenizer.token_bytes(token).len()).sum();
    Ok(EvalText { path: file.path.clone(), windows, n_bytes })
}

/// Returns all windows in order, each with the index of its text.
pub(crate) fn all_windows(texts: &[EvalText]) -> impl Iterator<Item = (usize, &TextWindow)> {
    let windows = texts.iter().map(|text| text.windows.windows.iter());
    windows.enumerate().flat_map(|(idx, windows)| windows.map(move |window| (idx, window)))
}

/// Returns the tokens of the longest window, including the prefix.
pub(crate) fn longest(texts: &[EvalText]) -> usize {
    texts.iter().flat_map(|text| text.windows.lens()).max().unwrap_or(1)
}

/// Returns the tokens of all windows, including the prefixes.
pub(crate) fn n_tokens(texts: &[EvalText]) -> usize {
    texts.iter().flat_map(|text| text.windows.lens()).sum()
}

/// Checks that two models divide the texts into the same tokens.
///
/// # Errors
///
/// [`Error::Input`] with the first text that differs, and the place.
pub(crate) fn check_same(ours: &[EvalText], others: &[EvalText]) -> Result<()> {
    for (ours, others) in ours.iter().zip(others) {
        if ours.windows == others.windows {
            continue;
        }
        let tokens = |text: &EvalText| -> Vec<TokenId> { text.windows.predicted().collect() };
        let (ours_tokens, others_tokens) = (tokens(ours), tokens(others));
        let first = ours_tokens.iter().zip(&others_tokens).position(|(one, other)| one != other);
        let place = match first {
            Some(at) => {
                let (one, other) = (ours_tokens[at].0, others_tokens[at].0);
                format!("predicted token {at} is {one} in one and {other} in the other")
            }
            None => "they begin or end it in different ways".to_owned(),
        };
        return Err(Error::Input(format!(
            "{}: the two models divide this text into different tokens: {place}; only models with \
             the same tokenizer can be compared",
            ours.path.display()
        )));
    }
    Ok(())
}

/// Returns a hash of all windows.
pub(crate) fn hash_of(texts: &[EvalText]) -> u64 {
    let mut hash = XxHash3_64::new();
    for text in texts {
        hash.write_u64(text.windows.windows.len() as u64);
        for window in &text.windows.windows {
            let tokens = text.windows.tokens(window);
            hash.write_u64(tokens.len() as u64);
            hash.write_u64(window.first_predicted as u64);
            tokens.iter().for_each(|token| hash.write(&token.0.to_le_bytes()));
        }
    }
    hash.finish()
}
