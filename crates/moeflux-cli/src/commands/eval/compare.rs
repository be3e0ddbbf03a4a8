//! `moeflux eval --compare-model`: the same windows through two models, one after the other.
//!
//! The other model runs first and leaves its logits in a work file; then the tested model runs, and
//! its logits are compared with these, a token at a time. **Invariant:** the two models are never
//! in memory together, and an interrupted run goes on at a window with the same result.

use std::hash::Hasher as _;
use std::path::PathBuf;

use moeflux::provider::backend::DeviceNames;
use moeflux::provider::model::Headers as _;
use moeflux::{ByteCount, Engine, Error, Model, Result};
use twox_hash::XxHash3_64;

use crate::commands::eval::base::{BaseFile, BaseOrigin};
use crate::commands::eval::feeder::{OnLogits, WindowFeeder, WindowPart};
use crate::commands::eval::scores::{EvalScores, TokenScore};
use crate::commands::eval::texts::{self, EvalText, TextFile};
use crate::commands::eval::{EvalArgs, Evaluation};
use crate::failure::{CommandFailure, CommandResult};
use crate::model;
use crate::options::args::ModelArgs;
use crate::output::print;
use crate::output::progress::Bar;
use crate::system::cache;
use crate::system::interrupt::Interrupt;

/// Blocks of each file of a model that tell it from others; files up to 256 KiB are read whole.
const N_SAMPLES: u64 = 64;
const SAMPLE_BYTES: usize = 4096;

/// Runs both models over the texts.
pub(crate) fn run(
    args: &EvalArgs,
    (other, files): (PathBuf, &[TextFile]),
    tested: Model,
    interrupt: &Interrupt,
) -> CommandResult<Evaluation> {
    if args.model.group.is_some() {
        let problem = "--compare-model compares on one machine: start it without an MPI launcher";
        return Err(CommandFailure::Usage(problem.to_owned()));
    }
    let mut other_args = args.model.alone();
    other_args.model = Some(other);
    other_args.mirror = None;
    let other = model::open(&other_args)?;
    let (vocab, vocab_other) = (tested.vocab(), other.vocab());
    if vocab != vocab_other {
        return Err(Error::Input(format!(
            "the two models have vocabularies of {vocab} and {vocab_other} tokens: only models \
             with the same tokenizer can be compared"
        ))
        .into());
    }
    let context = texts::context_of(args, &tested)?.min(texts::context_of(args, &other)?);
    let texts = texts::cut(args, files, (&tested, context))?;
    texts::check_same(&texts, &texts::cut(args, files, (&other, context))?)?;

    let origin = BaseOrigin {
        model: hash_of(&other)?,
        run: format!("{:?}, {}", args.model.backend()?, args.model.arithmetic().name()),
        texts: texts::hash_of(&texts),
        vocab,
        n_predicted: texts::all_windows(&texts)
            .map(|(idx, window)| texts[idx].windows.n_predicted(window))
            .collect(),
    };
    let path = match &args.compare_base {
        Some(path) => path.clone(),
        None => temporary_path(&origin)?,
    };
    let run = ComparedRun { args, texts: &texts, path, interrupt };
    let mut base = BaseFile::open(&run.path, origin)?;
    let compared = run.compute(&mut base, (tested, other, &other_args));
    let n_windows = base.n_windows();
    if args.compare_base.is_none() && (compared.is_ok() || n_windows == 0) {
        base.remove()?;
    }
    let (device, scores) = compared.map_err(|failure| match failure {
        CommandFailure::Interrupted(_) if n_windows > 0 => {
            let path = run.path.display();
            let kept = format!("interrupted; the same command goes on with the work in {path}");
            CommandFailure::Interrupted(kept)
        }
        failure => failure,
    })?;
    Ok(Evaluation { device, texts, scores })
}

fn temporary_path(origin: &BaseOrigin) -> Result<PathBuf> {
    let folder = cache::folder();
    std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    Ok(folder.join(origin.name()))
}

/// Two models on their way through the texts.
struct ComparedRun<'a> {
    args: &'a EvalArgs,
    texts: &'a [EvalText],
    path: PathBuf,
    interrupt: &'a Interrupt,
}

impl ComparedRun<'_> {
    fn compute(
        &self,
        base: &mut BaseFile,
        (tested, other, other_args): (Model, Model, &ModelArgs),
    ) -> CommandResult<(DeviceNames, Vec<EvalScores>)> {
        let longest = texts::longest(self.texts);
        let tested_hash = hash_of(&tested)?;
        if !base.is_complete() {
            let engine = model::load(other, other_args, longest, self.interrupt)?;
            self.write_base(base, &engine)?;
        }
        let engine = model::load(tested, &self.args.model, longest, self.interrupt)?;
        let device = engine.device_names();
        let tested = format!("{tested_hash:016x} {}", described(device));
        let scores = self.compare(base, (&engine, &tested))?;
        Ok((device, scores))
    }

    /// Computes the logits of the other model.
    fn write_base(&self, base: &mut BaseFile, engine: &Engine) -> CommandResult {
        base.begin(&described(engine.device_names()))?;
        let (path, n_windows) = (self.path.display(), base.n_windows());
        let n_bytes = ByteCount(base.full_bytes());
        print::stderr_line(&match n_windows {
            0 => format!("note: {path} will have the logits of the other model: {n_bytes}"),
            n => format!("note: {path} has the logits of {n} windows: going on there"),
        });
        let mut feeder = self.feeder(engine, "evaluating OTHER")?;
        for (at, (text, window)) in texts::all_windows(self.texts).enumerate() {
            let window_tokens = self.texts[text].windows.tokens(window);
            if at < n_windows {
                feeder.skip(window_tokens.len());
                continue;
            }
            base.begin_window()?;
            let part = WindowPart::whole(&window_tokens, window.first_predicted);
            feeder.feed(part, &mut |_, logits| base.write_row(logits))?;
            base.end_window()?;
        }
        Ok(())
    }

    /// Computes the logits of the tested model, and compares.
    fn compare(
        &self,
        base: &mut BaseFile,
        (engine, tested): (&Engine, &str),
    ) -> CommandResult<Vec<EvalScores>> {
        let mut totals = vec![EvalScores::default(); self.texts.len()];
        let done = base.read_scores(tested)?;
        let mut feeder = self.feeder(engine, "evaluating")?;
        let mut other = Vec::new();
        for (at, (text, window)) in texts::all_windows(self.texts).enumerate() {
            let window_tokens = self.texts[text].windows.tokens(window);
            if let Some(scores) = done.get(at) {
                feeder.skip(window_tokens.len());
                scores.iter().for_each(|score| totals[text].add(*score));
                continue;
            }
            let mut scores = Vec::new();
            base.begin_reading(at)?;
            let on_logits: &mut OnLogits<'_> = &mut |next, logits| {
                base.read_row(&mut other)?;
                scores.push(TokenScore::compared(logits, &other, next)?);
                Ok(())
            };
            let part = WindowPart::whole(&window_tokens, window.first_predicted);
            feeder.feed(part, on_logits)?;
            base.end_reading(at)?;
            base.add_scores((tested, at), &scores)?;
            scores.into_iter().for_each(|score| totals[text].add(score));
        }
        Ok(totals)
    }

    fn feeder(&self, engine: &Engine, what: &str) -> Result<WindowFeeder<'_>> {
        Ok(WindowFeeder {
            session: engine.session(texts::longest(self.texts))?,
            bar: Some(Bar::tokens(what, texts::n_tokens(self.texts))),
            n_done: 0,
            interrupt: self.interrupt,
        })
    }
}

/// Returns what the bits of logits depend on besides model and tokens.
fn described(device: DeviceNames) -> String {
    let DeviceNames { backend, arithmetic, bits_version, .. } = device;
    format!("{backend}, {}, version {bits_version}", arithmetic.name())
}

/// Returns a hash that tells a model from others, from headers and samples of its files. The time
/// of the last write counts too: variants of a model may differ in a few tensors only.
fn hash_of(model: &Model) -> Result<u64> {
    let mut hash = XxHash3_64::new();
    let checkpoint = model.checkpoint();
    hash.write_u64(model.blueprint().header_fingerprint(checkpoint));
    for shard in &checkpoint.files {
        let modified = shard.identity.and_then(|it| it.modified);
        let since = modified.and_then(|it| it.duration_since(std::time::UNIX_EPOCH).ok());
        hash.write(&since.map_or(0, |it| it.as_nanos()).to_le_bytes());
        let file = shard.open()?;
        let len_bytes = file.len_bytes();
        let stride = (len_bytes / N_SAMPLES).max(SAMPLE_BYTES as u64);
        let mut at = 0;
        while at < len_bytes {
            let mut sample = [0; SAMPLE_BYTES];
            let n_bytes =
                usize::try_from(len_bytes - at).map_or(SAMPLE_BYTES, |it| it.min(SAMPLE_BYTES));
            let sample = &mut sample[..n_bytes];
            file.read_exact_at(at, sample).map_err(|error| {
                Error::malformed(&shard.path, format!("cannot be read: {error}"))
            })?;
            hash.write(sample);
            at += stride;
        }
    }
    Ok(hash.finish())
}
