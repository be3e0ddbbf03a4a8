//! `moeflux eval`: how well a model predicts a text, and how close two backends are on it.
//!
//! The text is cut into windows of the context's length that share nothing; within a window every
//! token but the first is predicted from those before it, and only predicted bytes count.

use std::path::PathBuf;

use clap::Args;
use moeflux::engine::Engine;
use moeflux::error::{Error, Result};
use moeflux::ids::TokenId;
use moeflux::session::{Session, Wanted};
use moeflux::text::Tokenizer;
use serde_json::json;

use crate::args::{BackendName, ModelArgs};
use crate::interrupt::Interrupt;
use crate::model;
use crate::print;

/// Tokens whose logits are held at once: 64 rows of 248,320 take 61 MiB per backend.
const N_ROWS_HELD: usize = 64;

/// What `moeflux eval` is told.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// UTF-8 text
    #[arg(long, value_name = "TEXT")]
    file: PathBuf,
    /// Also compute with this backend, as the reference for top-1 agreement and mean KL
    #[arg(long, value_enum, value_name = "NAME")]
    compare_backend: Option<BackendName>,
    /// Evaluate at most so many tokens
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &EvalArgs) -> Result<()> {
    let interrupt = Interrupt::listen();
    let bytes = std::fs::read(&args.file).map_err(Error::io("read", &args.file))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::malformed(&args.file, format!("is not UTF-8: the byte at {at} fits no character"))
    })?;
    let engine = model::open(&args.model, &interrupt)?;
    let tokenizer = Tokenizer::open(&args.model.model, engine.spec().vocab)?;
    let mut tokens = tokenizer.encode(&text)?;
    tokens.truncate(args.limit.unwrap_or(usize::MAX));
    if tokens.len() < 2 {
        let problem = format!("{} tokens: at least 2 are needed", tokens.len());
        return Err(Error::malformed(&args.file, problem));
    }
    let other = match args.compare_backend {
        Some(name) => {
            Some(model::open_on(&args.model.model, &args.model, (name.into(), &interrupt))?)
        }
        None => None,
    };

    let context = model::context_for(&engine, &args.model, tokens.len());
    let mut session = engine.session(context)?;
    let mut other_session = other.as_ref().map(|other| other.session(context)).transpose()?;
    let mut scores = Scores::default();
    let mut n_bytes = 0;
    for window in tokens.chunks(context) {
        n_bytes += tokenizer.decode(&window[1..]).len();
        session.clear();
        if let Some(other) = &mut other_session {
            other.clear();
        }
        score_window(window, (&mut session, other_session.as_mut()), &interrupt, &mut scores)?;
    }
    print::line(&report(args, &engine, &scores, n_bytes))
}

fn score_window(
    window: &[TokenId],
    (session, mut other): (&mut Session, Option<&mut Session>),
    interrupt: &Interrupt,
    scores: &mut Scores,
) -> Result<()> {
    for first in (0..window.len()).step_by(N_ROWS_HELD) {
        let fed = &window[first..window.len().min(first + N_ROWS_HELD)];
        let rows = rows_of(session, fed, interrupt)?;
        let reference = match &mut other {
            Some(other) => Some(rows_of(other, fed, interrupt)?),
            None => None,
        };
        for (idx, row) in rows.iter().enumerate() {
            let Some(next) = window.get(first + idx + 1) else { break };
            scores.add(row, *next);
            if let Some(reference) = &reference {
                scores.compare(row, &reference[idx]);
            }
        }
    }
    Ok(())
}

fn rows_of(
    session: &mut Session,
    tokens: &[TokenId],
    interrupt: &Interrupt,
) -> Result<Vec<Vec<f32>>> {
    let mut rows = Vec::with_capacity(tokens.len());
    session.feed(tokens, Wanted::All, &mut |_| interrupt.poll(), &mut |_, logits| {
        rows.push(logits.to_vec());
        Ok(())
    })?;
    Ok(rows)
}

/// Sums over predicted tokens.
#[derive(Debug, Default)]
struct Scores {
    n_predicted: usize,
    nats: f64,
    n_compared: usize,
    n_same_top: usize,
    kl: f64,
}

impl Scores {
    fn add(&mut self, logits: &[f32], next: TokenId) {
        self.n_predicted += 1;
        self.nats += log_sum_exp(logits) - f64::from(logits[next.0 as usize]);
    }

    /// KL(reference || tested), and whether both would choose the same token.
    fn compare(&mut self, tested: &[f32], reference: &[f32]) {
        let (log_z, log_z_reference) = (log_sum_exp(tested), log_sum_exp(reference));
        let terms = tested.iter().zip(reference).map(|(&tested, &reference)| {
            let log_p = f64::from(reference) - log_z_reference;
            log_p.exp() * (log_p - (f64::from(tested) - log_z))
        });
        self.kl += terms.sum::<f64>();
        self.n_compared += 1;
        self.n_same_top += usize::from(top(tested) == top(reference));
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    max + sum.ln()
}

/// The lowest index of the largest logit.
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
fn report(args: &EvalArgs, engine: &Engine, scores: &Scores, n_bytes: usize) -> String {
    let mean = |sum: f64, n: usize| sum / n as f64;
    let perplexity = mean(scores.nats, scores.n_predicted).exp();
    let bits_per_byte = mean(scores.nats / std::f64::consts::LN_2, n_bytes);
    let (device, arithmetic) = engine.device_names();
    let agreement = (scores.n_compared > 0).then(|| {
        let top1 = mean(scores.n_same_top as f64, scores.n_compared);
        (top1, mean(scores.kl, scores.n_compared))
    });
    if args.json {
        let mut object = json!({
            "backend": device,
            "arithmetic": arithmetic,
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
        format!("backend         {device} ({arithmetic})"),
        format!("tokens          {} predicted, {n_bytes} bytes", scores.n_predicted),
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
        let mut scores = Scores::default();
        scores.add(&[3.0; 8], TokenId(5));
        assert!((scores.nats - 8.0_f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn a_distribution_has_no_distance_from_itself() {
        let mut scores = Scores::default();
        let logits = [0.5, -1.0, 2.0, 2.0];
        scores.compare(&logits, &logits);
        assert!(scores.kl.abs() < 1e-15);
        assert_eq!((scores.n_same_top, scores.n_compared), (1, 1));
    }

    #[test]
    fn kl_of_a_hand_computed_pair() {
        // p = (1/2, 1/2), q = (3/4, 1/4): KL(p || q) = ln 2 - ln 3 / 2.
        let mut scores = Scores::default();
        scores.compare(&[3.0_f32.ln(), 0.0], &[0.0, 0.0]);
        assert!((scores.kl - (2.0_f64.ln() - 3.0_f64.ln() / 2.0)).abs() < 1e-7);
    }
}
