//! The result of `moeflux eval`, as a table or as JSON.

use moeflux::provider::backend::DeviceNames;
use moeflux_io::OneLine;
use serde_json::{Value, json};

use crate::commands::eval::Evaluation;
use crate::commands::eval::scores::{Agreement, EvalScores};
use crate::commands::eval::texts::EvalText;
use crate::commands::eval::windows::WindowParams;

/// Returns the result as one JSON object.
pub(crate) fn json(evaluation: &Evaluation) -> String {
    let Evaluation { device, texts, scores } = evaluation;
    let WindowParams { context, stride, .. } = evaluation.params();
    let mut object = numbers((n_documents(texts), n_bytes(texts)), &EvalScores::total(scores));
    object["backend"] = json!(device.backend);
    object["arithmetic"] = json!(device.arithmetic.name());
    object["window_tokens"] = json!(context);
    object["stride_tokens"] = json!(stride);
    let of_text = |(text, scores): (&EvalText, &EvalScores)| {
        let mut object = numbers((text.windows.n_documents, text.n_bytes), scores);
        object["file"] = json!(text.path.to_string_lossy());
        object
    };
    object["texts"] = texts.iter().zip(scores).map(of_text).collect();
    object.to_string()
}

fn n_documents(texts: &[EvalText]) -> usize {
    texts.iter().map(|text| text.windows.n_documents).sum()
}

fn n_bytes(texts: &[EvalText]) -> usize {
    texts.iter().map(|text| text.n_bytes).sum()
}

fn numbers((n_documents, n_bytes): (usize, usize), scores: &EvalScores) -> Value {
    let mut object = json!({
        "n_documents": n_documents,
        "n_predicted": scores.n_predicted,
        "n_bytes": n_bytes,
        "perplexity": scores.perplexity(),
        "bits_per_byte": scores.bits_per_byte(n_bytes),
    });
    if let Some(agreement) = scores.agreement() {
        let Agreement { perplexity, top1, mean_kl, median_kl, kl_99 } = agreement;
        object["other_perplexity"] = json!(perplexity);
        object["top1_agreement"] = json!(top1);
        object["mean_kl"] = json!(mean_kl);
        object["median_kl"] = json!(median_kl);
        object["kl_99"] = json!(kl_99);
    }
    object
}

/// Returns the result as a table.
pub(crate) fn table(evaluation: &Evaluation) -> String {
    let Evaluation { device, texts, scores } = evaluation;
    let WindowParams { context, stride, .. } = evaluation.params();
    let DeviceNames { backend, arithmetic, .. } = device;
    let (total, n_bytes) = (EvalScores::total(scores), n_bytes(texts));
    let mut lines = vec![
        format!("backend         {backend} ({})", arithmetic.name()),
        format!("window          {context} tokens at most, the next {stride} on"),
        format!("documents       {}", n_documents(texts)),
        format!("predicted       tokens: {}, bytes: {n_bytes}", total.n_predicted),
        format!("perplexity      {:.4}", total.perplexity()),
        format!("bits per byte   {:.4}", total.bits_per_byte(n_bytes)),
    ];
    if let Some(agreement) = total.agreement() {
        let Agreement { perplexity, top1, mean_kl, median_kl, kl_99 } = agreement;
        lines.push(format!("of the other    perplexity {perplexity:.4}"));
        lines.push(format!("top-1 the same  {:.2} %", 100.0 * top1));
        lines.push(format!("mean KL         {mean_kl:.3e}"));
        lines.push(format!("median KL       {median_kl:.3e}, 99 % of tokens up to {kl_99:.3e}"));
    }
    if texts.len() > 1 {
        lines.push(String::new());
        lines.extend(rows(texts, scores));
    }
    lines.join("\n")
}

/// Returns one row for each text, below a heading.
fn rows(texts: &[EvalText], scores: &[EvalScores]) -> Vec<String> {
    let names = texts.iter().map(|text| OneLine::name(&text.path.to_string_lossy()).to_string());
    let names: Vec<String> = names.collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(4);
    let is_compared = scores.iter().any(|scores| scores.agreement().is_some());
    let more = if is_compared { "   the other   top-1    mean KL" } else { "" };
    let heading = format!("{:width$}   tokens  perplexity{more}", "text");
    let row = |(name, scores): (&String, &EvalScores)| {
        let numbers = format!("{:>7}  {:>10.4}", scores.n_predicted, scores.perplexity());
        let compared = scores.agreement().map(|Agreement { perplexity, top1, mean_kl, .. }| {
            format!("  {perplexity:>10.4}  {:>5.2}%  {mean_kl:>9.3e}", 100.0 * top1)
        });
        format!("{name:width$}  {numbers}{}", compared.unwrap_or_default())
    };
    std::iter::once(heading).chain(names.iter().zip(scores).map(row)).collect()
}
