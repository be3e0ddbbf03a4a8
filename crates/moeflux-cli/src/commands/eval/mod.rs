//! `moeflux eval`: how well a model predicts a text, and how close two backends are on it.
//!
//! The text is cut into windows. The bytes of predicted tokens count; separators of documents are
//! predicted too, but are not text, so theirs do not.

mod windows;
mod logprobs;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use moeflux::provider::backend::DeviceNames;
use moeflux::provider::format::read_file;
use moeflux::provider::forward::StepProgress;
use moeflux::step::Wanted;
use moeflux::{Engine, Error, Model, Result, Session, TokenId, Tokenizer};
use serde_json::json;

use crate::commands::eval::logprobs::Logprobs;
use crate::commands::eval::windows::{TextWindows, WindowParams};
use crate::failure::{CommandFailure, CommandResult};
use crate::model;
use crate::options::args::{BackendName, ModelArgs};
use crate::options::ranges;
use crate::output::print;
use crate::output::progress::{Bar, tokens_done};
use crate::system::interrupt::Interrupt;

/// Default tokens of a window: perplexities are comparable only for equal windows.
const WINDOW_DEFAULT: usize = 2048;

/// Upper bound on the logits held while two backends are compared.
const HELD_BYTES_MAX: usize = 512 << 20;

/// The arguments of `moeflux eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens per window, 2 or more [default: 2048, or the model's limit if that is lower]
    #[arg(long, value_name = "N", value_parser = ranges::tokens, allow_negative_numbers = true)]
    context: Option<NonZeroUsize>,
    /// Tokens from the start of one window to the start of the next. The rest of a window serves as
    /// context, and no token is scored twice [default: the window, so that windows do not overlap]
    #[arg(long, value_name = "N", value_parser = ranges::tokens, allow_negative_numbers = true)]
    stride: Option<NonZeroUsize>,
    /// Token that ends each document of the text, for example `<|endoftext|>`. Documents share no
    /// window. Each begins after this token (or after the model's start token, if it has one), and
    /// its own end is predicted but adds no bytes
    #[arg(long, value_name = "TOKEN")]
    separator: Option<String>,
    /// File with UTF-8 text
    #[arg(long, value_name = "TEXT")]
    file: PathBuf,
    /// Also compute with this backend, as the reference for top-1 agreement and mean KL
    #[arg(long, value_enum, value_name = "NAME")]
    compare_backend: Option<BackendName>,
    /// Maximum number of tokens to evaluate
    #[arg(long, value_name = "N", value_parser = ranges::whole, allow_negative_numbers = true)]
    limit: Option<usize>,
    /// Also write each token with its natural log-probability to this file, one JSON object per
    /// line; the first token of a window has none
    #[arg(long, value_name = "FILE")]
    logprobs: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &EvalArgs) -> CommandResult {
    let interrupt = Interrupt::listen();
    let text = read_text(args)?;
    let opened = model::open(&args.model)?;
    let model_text = opened.text()?;
    let (windows, n_bytes) = cut_windows(args, &opened, (model_text.tokenizer(), &text))?;
    drop(text);
    let n_held_max = (HELD_BYTES_MAX / (size_of::<f32>() * opened.vocab())).max(1);
    let longest = windows.lens().max().unwrap_or(1);
    let compared = args.compare_backend.map(|name| (name, opened.clone()));
    let engine = model::load(opened, &args.model, longest, &interrupt)?;
    let reference = match compared {
        Some((name, opened)) => {
            let alone = args.model.alone();
            Some(model::load_on(name, (opened, longest.into()), &alone, &interrupt)?)
        }
        None => None,
    };
    let logprobs = args.logprobs.as_deref().map(Logprobs::create).transpose()?;
    let mut run = EvalRun {
        logprobs,
        session: engine.session(longest)?,
        reference: reference.as_ref().map(|engine| engine.session(longest)).transpose()?,
        n_rows: engine.n_rows_max().min(n_held_max),
        bar: Bar::tokens("evaluating", windows.lens().sum()),
        n_done: 0,
        interrupt: &interrupt,
        scores: EvalScores::default(),
    };
    for window in &windows.windows {
        run.score_window(&windows.tokens(window), window.first_predicted)?;
    }
    let EvalRun { scores, bar, logprobs, .. } = run;
    logprobs.map_or(Ok(()), Logprobs::finish)?;
    drop(bar);
    engine.end_trace()?;
    Ok(print::line(&report(args, &engine, &scores, (&windows, n_bytes)))?)
}

/// Upper bound on the text: more would take too long.
const TEXT_BYTES_MAX: u64 = 1 << 30;

fn read_text(args: &EvalArgs) -> Result<String> {
    let is_model = model::has_weights(&args.file)? || args.file.join("config.json").is_file();
    if is_model {
        let problem = "is a model: pass it with --model, and a text to evaluate with --file";
        return Err(Error::malformed(&args.file, problem));
    }
    let bytes = read_file(&args.file, TEXT_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::malformed(&args.file, format!("is not UTF-8 at byte {at}"))
    })
}

/// Cuts the text into windows. Also returns the number of bytes of all predicted tokens.
fn cut_windows(
    args: &EvalArgs,
    opened: &Model,
    (tokenizer, text): (&Tokenizer, &str),
) -> CommandResult<(TextWindows, usize)> {
    let context = model::context_for(opened, args.context, WINDOW_DEFAULT)?;
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
    let mut tokens = tokenizer.encode(text)?;
    tokens.truncate(args.limit.unwrap_or(usize::MAX));
    let n_tokens_min = n_needed - prefix.len();
    let windows = TextWindows::of(&tokens, WindowParams { prefix, separator, context, stride });
    if windows.windows.is_empty() {
        let problem = format!("tokens: {}, and at least {n_tokens_min} are needed", tokens.len());
        return Err(Error::malformed(&args.file, problem).into());
    }
    let of_text = windows.predicted().filter(|token| Some(*token) != separator);
    let n_bytes = of_text.map(|token| tokenizer.token_bytes(token).len()).sum();
    Ok((windows, n_bytes))
}

/// The evaluation while it runs.
struct EvalRun<'a> {
    logprobs: Option<Logprobs>,
    session: Session,
    /// The session of the backend to compare with, if any.
    reference: Option<Session>,
    /// Tokens computed together while two backends are compared.
    n_rows: usize,
    bar: Bar,
    n_done: u64,
    interrupt: &'a Interrupt,
    scores: EvalScores,
}

impl EvalRun<'_> {
    fn score_window(&mut self, window: &[TokenId], first_predicted: usize) -> Result<()> {
        self.session.clear();
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.begin(&window[..first_predicted.min(window.len())])?;
        }
        // With one backend nothing is held; with two, the logits of both for the same tokens are
        // held together.
        let n_rows = if self.reference.is_some() { self.n_rows } else { window.len() };
        if let Some(reference) = &mut self.reference {
            reference.clear();
        }
        for first in (0..window.len()).step_by(n_rows) {
            let fed = &window[first..window.len().min(first + n_rows)];
            self.score_part(window, (first, fed), first_predicted)?;
            self.n_done += fed.len() as u64;
        }
        Ok(())
    }

    fn score_part(
        &mut self,
        window: &[TokenId],
        (first, fed): (usize, &[TokenId]),
        first_predicted: usize,
    ) -> Result<()> {
        let Self { session, reference, bar, n_done, interrupt, scores, logprobs, .. } = self;
        let is_held = reference.is_some();
        let mut held: Vec<Vec<f32>> = Vec::new();
        // A token's logits predict the next one.
        let next_of = |position: usize| {
            let next = window.get(position + 1).copied();
            next.filter(|_| position + 1 >= first_predicted).map(|token| (position + 1, token))
        };
        let watch = &mut |progress: StepProgress| -> ControlFlow<()> {
            bar.set(*n_done + tokens_done(progress));
            interrupt.poll()
        };
        let mut position = first;
        session.feed(fed, Wanted::All, watch, &mut |_, logits| {
            if let Some(next) = next_of(position) {
                scores.add(logits, next)?;
                if let Some(logprobs) = logprobs {
                    logprobs.add(logits, next.1)?;
                }
                if is_held {
                    held.push(logits.to_vec());
                }
            }
            position += 1;
            Ok(())
        })?;
        let Some(reference) = reference else { return Ok(()) };
        let mut tested = held.iter();
        position = first;
        reference.feed(fed, Wanted::All, &mut |_| interrupt.poll(), &mut |_, logits| {
            if let Some(next) = next_of(position) {
                let tested = tested.next().expect("a row is held for each that is predicted");
                scores.compare(tested, logits, next)?;
            }
            position += 1;
            Ok(())
        })
    }
}

/// Sums over predicted tokens.
#[derive(Debug, Default)]
struct EvalScores {
    n_predicted: usize,
    nats: f64,
    n_compared: usize,
    n_same_top: usize,
    kl: f64,
}

impl EvalScores {
    /// Adds a token; `next` is the predicted token and its position in its window.
    fn add(&mut self, logits: &[f32], (position, next): (usize, TokenId)) -> Result<()> {
        let nats = log_sum_exp(logits) - f64::from(logits[next.0 as usize]);
        if !nats.is_finite() {
            return Err(Error::Input(format!(
                "the score of token {} at position {position} of its window is {nats}: the \
                 model's weights or arithmetic are broken; try --backend reference",
                next.0
            )));
        }
        self.n_predicted += 1;
        self.nats += nats;
        Ok(())
    }

    /// Adds KL(reference || tested), and whether both would choose the same token.
    fn compare(
        &mut self,
        tested: &[f32],
        reference: &[f32],
        (position, next): (usize, TokenId),
    ) -> Result<()> {
        let (log_z, log_z_reference) = (log_sum_exp(tested), log_sum_exp(reference));
        let terms = tested.iter().zip(reference).map(|(&tested, &reference)| {
            let log_p = f64::from(reference) - log_z_reference;
            let term = log_p.exp() * (log_p - (f64::from(tested) - log_z));
            // Tokens that the reference excludes contribute nothing, whatever their tested
            // probability.
            if reference == f32::NEG_INFINITY { 0.0 } else { term }
        });
        let kl = terms.sum::<f64>();
        if !kl.is_finite() {
            return Err(Error::Input(format!(
                "the KL divergence between the two backends for token {} at position {position} \
                 of its window is {kl}: one of them computed an invalid value",
                next.0
            )));
        }
        self.kl += kl;
        self.n_compared += 1;
        self.n_same_top += usize::from(top(tested) == top(reference));
        Ok(())
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    max + sum.ln()
}

/// Returns the lowest index of the largest logit.
fn top(logits: &[f32]) -> usize {
    let mut best = 0;
    for (idx, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = idx;
        }
    }
    best
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens and bytes, for display")]
fn report(
    args: &EvalArgs,
    engine: &Engine,
    scores: &EvalScores,
    (windows, n_bytes): (&TextWindows, usize),
) -> String {
    let WindowParams { context, stride, .. } = windows.params;
    let n_documents = windows.n_documents;
    let mean = |sum: f64, n: usize| sum / n as f64;
    let perplexity = mean(scores.nats, scores.n_predicted).exp();
    let bits_per_byte = mean(scores.nats / std::f64::consts::LN_2, n_bytes);
    let DeviceNames { backend: device, arithmetic, .. } = engine.device_names();
    let agreement = (scores.n_compared > 0).then(|| {
        let top1 = mean(scores.n_same_top as f64, scores.n_compared);
        (top1, mean(scores.kl, scores.n_compared))
    });
    if args.json {
        let mut object = json!({
            "backend": device,
            "arithmetic": arithmetic.name(),
            "window_tokens": context,
            "stride_tokens": stride,
            "n_documents": n_documents,
            "n_predicted": scores.n_predicted,
            "n_bytes": n_bytes,
            "perplexity": perplexity,
            "bits_per_byte": bits_per_byte,
        });
        if let Some((top1, kl)) = agreement {
            object["top1_agreement"] = json!(top1);
            object["mean_kl"] = json!(kl);
        }
        return object.to_string();
    }
    let mut lines = vec![
        format!("backend         {device} ({})", arithmetic.name()),
        format!("window          {context} tokens at most, the next {stride} on"),
        format!("documents       {n_documents}"),
        format!("predicted       tokens: {}, bytes: {n_bytes}", scores.n_predicted),
        format!("perplexity      {perplexity:.4}"),
        format!("bits per byte   {bits_per_byte:.4}"),
    ];
    if let Some((top1, kl)) = agreement {
        lines.push(format!("top-1 the same  {:.2} %", 100.0 * top1));
        lines.push(format!("mean KL         {kl:.3e}"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_cost_the_logarithm_of_the_vocabulary() {
        let mut scores = EvalScores::default();
        scores.add(&[3.0; 8], (1, TokenId(5))).unwrap();
        assert!((scores.nats - 8.0_f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn a_distribution_has_no_distance_from_itself() {
        let mut scores = EvalScores::default();
        let logits = [0.5, -1.0, 2.0, 2.0];
        scores.compare(&logits, &logits, (1, TokenId(0))).unwrap();
        assert!(scores.kl.abs() < 1e-15);
        assert_eq!((scores.n_same_top, scores.n_compared), (1, 1));
    }

    #[test]
    fn kl_of_a_hand_computed_pair() {
        // p = (1/2, 1/2), q = (3/4, 1/4): KL(p || q) = ln 2 - ln 3 / 2.
        let mut scores = EvalScores::default();
        scores.compare(&[3.0_f32.ln(), 0.0], &[0.0, 0.0], (1, TokenId(0))).unwrap();
        assert!((scores.kl - (2.0_f64.ln() - 3.0_f64.ln() / 2.0)).abs() < 1e-7);
    }

    #[test]
    fn values_that_are_not_finite_are_reported() {
        let mut scores = EvalScores::default();
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = scores.add(&[0.0, broken], (7, TokenId(1))).unwrap_err().to_string();
            assert!(error.contains("token 1 at position 7"), "{error}");
        }
        assert!(scores.compare(&[f32::NAN, 0.0], &[0.0, 0.0], (7, TokenId(1))).is_err());
        assert_eq!((scores.n_predicted, scores.n_compared), (0, 0));
        let ruled_out = [0.0, f32::NEG_INFINITY];
        scores.compare(&ruled_out, &ruled_out, (7, TokenId(0))).unwrap();
    }
}
