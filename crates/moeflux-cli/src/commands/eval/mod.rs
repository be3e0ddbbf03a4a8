//! `moeflux eval`: how well a model predicts texts, and how close two backends or two models are on
//! them.

mod windows;
mod logprobs;
mod texts;
mod scores;
mod feeder;
mod base;
mod compare;
mod report;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use moeflux::provider::backend::DeviceNames;
use moeflux::{Model, Result, TokenId};

use crate::commands::eval::feeder::{WindowFeeder, WindowPart};
use crate::commands::eval::logprobs::Logprobs;
use crate::commands::eval::scores::{EvalScores, TokenScore};
use crate::commands::eval::texts::{EvalText, TextFile};
use crate::commands::eval::windows::WindowParams;
use crate::failure::CommandResult;
use crate::model;
use crate::options::args::{BackendName, ModelArgs};
use crate::options::ranges;
use crate::output::print;
use crate::output::progress::Bar;
use crate::system::interrupt::Interrupt;

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
    /// File with UTF-8 text; may be given several times, and each text has a result of its own
    #[arg(long, value_name = "TEXT", required = true)]
    file: Vec<PathBuf>,
    /// Also compute with this backend, as the reference for top-1 agreement and mean KL
    #[arg(long, value_enum, value_name = "NAME")]
    compare_backend: Option<BackendName>,
    /// Also compute with this model (OTHER), which must have the same tokenizer, and show how close
    /// --model is to it: how often both have the same most probable token, and KL(OTHER || MODEL)
    /// in nats per token, which is 0 for equal models. OTHER runs first, so that the two are never
    /// in memory together; other options apply to both, but --mirror only to --model
    #[arg(long, value_name = "DIR|FILE.gguf|OWNER/NAME[:QUANT]")]
    #[arg(conflicts_with_all = ["compare_backend", "logprobs", "trace"])]
    pub(crate) compare_model: Option<PathBuf>,
    /// File for the logits of OTHER, as --kl-divergence-base of llama.cpp, in f32: predicted tokens
    /// x vocabulary x 4 bytes, 0.6 GB for 1,000 tokens of a vocabulary of 150,000. An interrupted
    /// run goes on from it, and another --model is compared with it without OTHER being computed
    /// again [default: a file in the cache folder, removed at the end]
    #[arg(long, value_name = "FILE", requires = "compare_model")]
    compare_base: Option<PathBuf>,
    /// Maximum number of tokens of each text to evaluate
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

/// The result of the command.
#[derive(Debug)]
struct Evaluation {
    device: DeviceNames,
    texts: Vec<EvalText>,
    /// The scores of each text.
    scores: Vec<EvalScores>,
}

impl Evaluation {
    /// Returns how all texts were cut.
    fn params(&self) -> &WindowParams {
        &self.texts.first().expect("a command line names a text").windows.params
    }
}

/// Runs the command.
pub(crate) fn run(args: &EvalArgs) -> CommandResult {
    let interrupt = Interrupt::listen();
    let files = texts::read(&args.file)?;
    let opened = model::open(&args.model)?;
    let evaluation = match args.compare_model.clone() {
        Some(other) => compare::run(args, (other, &files), opened, &interrupt)?,
        None => evaluate(args, files, opened, &interrupt)?,
    };
    Ok(print::line(&match args.json {
        true => report::json(&evaluation),
        false => report::table(&evaluation),
    })?)
}

/// Evaluates one model, perhaps on two backends.
fn evaluate(
    args: &EvalArgs,
    files: Vec<TextFile>,
    opened: Model,
    interrupt: &Interrupt,
) -> CommandResult<Evaluation> {
    let context = texts::context_of(args, &opened)?;
    let texts = texts::cut(args, &files, (&opened, context))?;
    drop(files);
    let n_held_max = (HELD_BYTES_MAX / (size_of::<f32>() * opened.vocab())).max(1);
    let longest = texts::longest(&texts);
    let compared = args.compare_backend.map(|name| (name, opened.clone()));
    let engine = model::load(opened, &args.model, longest, interrupt)?;
    let reference = match compared {
        Some((name, opened)) => {
            let alone = args.model.alone();
            Some(model::load_on(name, (opened, longest.into()), &alone, interrupt)?)
        }
        None => None,
    };
    let logprobs = args.logprobs.as_deref().map(Logprobs::create).transpose()?;
    let bar = Some(Bar::tokens("evaluating", texts::n_tokens(&texts)));
    let session = engine.session(longest)?;
    let reference = reference.as_ref().map(|engine| engine.session(longest)).transpose()?;
    let mut run = EvalRun {
        logprobs,
        tested: WindowFeeder { session, bar, n_done: 0, interrupt },
        reference: reference.map(|session| WindowFeeder {
            session,
            bar: None,
            n_done: 0,
            interrupt,
        }),
        n_rows: engine.n_rows_max().min(n_held_max),
        scores: EvalScores::default(),
    };
    let mut scores = Vec::new();
    for text in &texts {
        for window in &text.windows.windows {
            run.score_window(&text.windows.tokens(window), window.first_predicted)?;
        }
        scores.push(std::mem::take(&mut run.scores));
    }
    run.logprobs.map_or(Ok(()), Logprobs::finish)?;
    drop((run.tested, run.reference));
    engine.end_trace()?;
    Ok(Evaluation { device: engine.device_names(), texts, scores })
}

/// The evaluation while it runs.
struct EvalRun<'a> {
    logprobs: Option<Logprobs>,
    tested: WindowFeeder<'a>,
    /// The backend to compare with, if any.
    reference: Option<WindowFeeder<'a>>,
    /// Tokens computed together while two backends are compared.
    n_rows: usize,
    scores: EvalScores,
}

impl EvalRun<'_> {
    fn score_window(&mut self, window: &[TokenId], first_predicted: usize) -> Result<()> {
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.begin(&window[..first_predicted.min(window.len())])?;
        }
        // With one backend nothing is held; with two, the logits of both for the same tokens are
        // held together.
        let n_rows = if self.reference.is_some() { self.n_rows } else { window.len() };
        for first in (0..window.len()).step_by(n_rows) {
            let range = first..window.len().min(first + n_rows);
            self.score_part(&WindowPart { window, range, first_predicted })?;
        }
        Ok(())
    }

    fn score_part(&mut self, part: &WindowPart<'_>) -> Result<()> {
        let Self { tested, reference, scores, logprobs, .. } = self;
        let mut held: Vec<Vec<f32>> = Vec::new();
        tested.feed(part.clone(), &mut |next, logits| {
            let score = TokenScore::of(logits, next)?;
            match reference {
                Some(_) => held.push(logits.to_vec()),
                None => scores.add(score),
            }
            logprobs.as_mut().map_or(Ok(()), |logprobs| logprobs.add(logits, next.token))
        })?;
        let Some(reference) = reference else { return Ok(()) };
        let mut tested = held.iter();
        reference.feed(part.clone(), &mut |next, logits| {
            let tested = tested.next().expect("a row is held for each that is predicted");
            scores.add(TokenScore::compared(tested, logits, next)?);
            Ok(())
        })
    }
}
