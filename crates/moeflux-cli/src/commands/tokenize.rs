//! `moeflux tokenize`: shows the tokens of a text, or the text of tokens.
//!
//! **Invariant:** reads headers and the tokenizer only. `logits` and the server accept the ids that
//! it prints.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use moeflux::{Error, Model, ModelText, TokenId};
use serde_json::json;

use crate::failure::CommandResult;
use crate::model;
use crate::options::prompt::{read_prompt, read_stdin};
use crate::options::ranges;

/// The arguments of `moeflux tokenize`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("asked").required(true))]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct TokenizeArgs {
    /// Text to divide into tokens; `-` reads it from stdin
    #[arg(group = "asked")]
    text: Option<String>,
    /// File with the text
    #[arg(long, value_name = "FILE", group = "asked")]
    file: Option<PathBuf>,
    /// Token ids, separated by commas, whose text is printed instead
    #[arg(long, value_name = "ID,ID,...", value_delimiter = ',', value_parser = ranges::token_id)]
    #[arg(group = "asked")]
    decode: Vec<TokenId>,
    /// Folder or GGUF file of a model, or its OWNER/NAME in the hub's cache [default: the demo
    /// model]
    #[arg(long, value_name = "DIR|FILE.gguf|OWNER/NAME[:QUANT]")]
    pub(crate) model: Option<PathBuf>,
    /// tokenizer.json to use instead of the model's own
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Leave out the tokens that every prompt of this model begins with
    #[arg(long, conflicts_with = "decode")]
    bare: bool,
    /// Print only the ids, separated by commas
    #[arg(long, conflicts_with_all = ["decode", "json"])]
    ids: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Returns the text to print.
///
/// # Errors
///
/// Fails if the model or its tokenizer cannot be read, or a token is not in its vocabulary.
pub(crate) fn run(args: &TokenizeArgs) -> CommandResult<String> {
    let model = Model::open(model::path(args.model.as_deref())?)?;
    let model = match &args.tokenizer {
        Some(tokenizer) => model.with_tokenizer(tokenizer),
        None => model,
    };
    let text = model.text()?;
    if !args.decode.is_empty() {
        return decoded(&text, args);
    }
    let given = match (&args.text, &args.file) {
        (Some(text), _) if text == "-" => read_stdin()?,
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_prompt(file)?,
        (None, None) => String::new(),
    };
    let tokenizer = text.tokenizer();
    let tokens = match args.bare {
        true => tokenizer.encode(&given)?,
        false => tokenizer.encode_prompt(&given)?,
    };
    Ok(if args.json {
        let pieces: Vec<_> = tokens.iter().map(|token| piece_json(&text, *token)).collect();
        json!({"n_tokens": tokens.len(), "n_bytes": given.len(), "tokens": pieces}).to_string()
    } else if args.ids {
        tokens.iter().map(|token| token.0.to_string()).collect::<Vec<_>>().join(",")
    } else {
        table(&text, &tokens, given.len())
    })
}

fn decoded(text: &ModelText, args: &TokenizeArgs) -> CommandResult<String> {
    let vocab = text.vocab();
    if let Some(at) = args.decode.iter().position(|token| token.0 as usize >= vocab) {
        let token = args.decode[at].0;
        let problem = format!("token {token} at index {at} is not in the vocabulary of {vocab}");
        return Err(Error::Input(problem).into());
    }
    let decoded = text.tokenizer().decode(&args.decode);
    Ok(if args.json { json!({"text": decoded}).to_string() } else { decoded })
}

/// Writes a line for each token: its id, and its text as a string of JSON. Bytes that are a part of
/// a character are written one by one.
fn table(text: &ModelText, tokens: &[TokenId], n_bytes: usize) -> String {
    let mut lines = String::new();
    for token in tokens {
        let bytes = text.tokenizer().token_bytes(*token);
        let piece = match std::str::from_utf8(&bytes) {
            Ok(piece) => json!(piece).to_string(),
            Err(_) => {
                bytes.iter().fold(String::new(), |text, byte| text + &format!("<{byte:02X}>"))
            }
        };
        let _ = writeln!(lines, "{:>8}  {piece}", token.0);
    }
    let n_tokens = tokens.len();
    let (tokens, bytes) = (plural(n_tokens, "token"), plural(n_bytes, "byte"));
    lines + &format!("{tokens} for {bytes}")
}

fn piece_json(text: &ModelText, token: TokenId) -> serde_json::Value {
    let bytes = text.tokenizer().token_bytes(token);
    json!({"id": token.0, "text": std::str::from_utf8(&bytes).ok(), "bytes": bytes})
}

fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
