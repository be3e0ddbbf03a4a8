//! A report as aligned text.
//!
//! **Invariant:** bytes are printed exactly and rounded in both units, so that they can be compared
//! with any other tool.

use std::fmt::Write as _;

use moeflux::ByteCount;
use moeflux::provider::error::grouped;
use moeflux::provider::spec::{
    BlockIndexerSpec, FfnSpec, MixerSpec, MoeSpec, PositionChoice, QkNorm, RopeScaling, RouterSpec,
    StreamSpec,
};
use moeflux::provider::weights::SkippedGroup;

use super::report::{
    InspectReport, KV_KIND, KV8_KIND, MainKind, N_POSITIONS, Quantised, reason_name, scaling_name,
};
use crate::output::page::Labels;

/// Width of the labels in every section.
const LABELS: Labels = Labels(30);

/// Renders the report, without a newline at its end.
pub(super) fn render(report: &InspectReport) -> String {
    let mut page = String::new();
    for line in lines(report) {
        page.push_str(line.trim_end());
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page
}

fn lines(report: &InspectReport) -> Vec<String> {
    let mut lines = title(report);
    lines.push(String::new());
    lines.extend(geometry(report));
    lines.push(String::new());
    lines.push(LABELS.header("tensors", "stored bytes"));
    for count in &report.tensors {
        lines.push(
            LABELS.size(&format!("{} x {}", grouped(count.n as u64), count.what), count.n_bytes),
        );
    }
    lines.push(LABELS.size("all", report.stored_bytes));
    lines.extend(skipped(report));
    lines.push(String::new());
    lines.extend(memory(report));
    lines
}

fn skipped(report: &InspectReport) -> Vec<String> {
    if report.skipped.is_empty() {
        return Vec::new();
    }
    let label = |group: &SkippedGroup| {
        let n_tensors = grouped(group.n_tensors as u64);
        format!("{n_tensors} x {} ({})", group.pattern, reason_name(group.reason))
    };
    let labels: Vec<String> = report.skipped.iter().map(label).collect();
    let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let width = longest.max(LABELS.0);
    let mut lines = vec![String::new(), Labels(width).header("not used", "stored bytes")];
    let rows = labels.iter().zip(&report.skipped);
    lines.extend(rows.map(|(label, group)| Labels(width).size(label, group.n_bytes)));
    lines
}

fn title(report: &InspectReport) -> Vec<String> {
    let mut name = report.family.to_owned();
    if report.model_type != report.family {
        let _ = write!(name, " (model_type {})", report.model_type);
    }
    let files = match report.files {
        Some(files) => {
            let plural = if files.n_files == 1 { "file" } else { "files" };
            let packed = if files.is_packed { "packed " } else { "" };
            format!("{} {packed}{plural}, {}", files.n_files, ByteCount(files.n_bytes))
        }
        None => "no weights: the sizes it would have".to_owned(),
    };
    vec![name, files, quantised(&report.quantised)]
}

fn quantised(quantised: &Quantised) -> String {
    let default = match (quantised.default, quantised.native, &quantised.mostly) {
        (Some(params), ..) => format!("{} bits in groups of {}", params.bits, params.group),
        (None, Some(native), _) => native.to_string(),
        (None, None, Some(MainKind { kind, percent: 100, has_codes: true })) => kind.clone(),
        (None, None, Some(MainKind { kind, percent, has_codes: true })) => {
            format!("mostly {kind} ({percent} % of the bytes)")
        }
        (None, None, _) => "not quantised".to_owned(),
    };
    match quantised.n_otherwise {
        0 => default,
        1 => format!("{default}, 1 matrix otherwise"),
        n => format!("{default}, {} matrices otherwise", grouped(n as u64)),
    }
}

fn geometry(report: &InspectReport) -> Vec<String> {
    let count = |n: usize| grouped(n as u64);
    let tied = if report.tied_embeddings { "tied" } else { "not tied" };
    let sizes = format!("{}, {}", count(report.hidden), count(report.vocab));
    let mut lines = vec!["geometry".to_owned()];
    lines.extend(LABELS.row("hidden, vocabulary", &sizes));
    if let Some(StreamSpec { n_streams, rank }) = report.streams {
        let words = format!("{n_streams}, read by weights of rank {rank}");
        lines.extend(LABELS.row("residual streams", &words));
    }
    for ngrams in &report.ngrams {
        let words = format!(
            "layer {}, {} rows per token, {} values together",
            ngrams.layer.0,
            ngrams.n_rows(),
            count(ngrams.width)
        );
        lines.extend(LABELS.row("n-grams", &words));
    }
    let longest = format!("{} tokens", count(report.context_max));
    lines.extend(LABELS.row("longest context", &longest));
    lines.extend(LABELS.row("embeddings", tied));
    lines.extend(LABELS.row("layers", &count(report.n_layers)));
    for (mixer, n_layers) in &report.mixers {
        let (name, details) = mixer_words(mixer);
        lines.extend(LABELS.row(&format!("  {n_layers} x {name}"), &details));
    }
    for (ffn, n_layers) in &report.ffns {
        let (name, details) = ffn_words(ffn);
        lines.extend(LABELS.row(&format!("  {n_layers} x {name}"), &details));
    }
    lines
}

fn mixer_words(mixer: &MixerSpec) -> (&'static str, String) {
    match mixer {
        MixerSpec::Attention(spec) => {
            let mut words = format!(
                "{} heads, {} key/value heads, {} channels, {} with position",
                spec.n_heads, spec.n_kv_heads, spec.head_dim, spec.rope.n_rotated
            );
            push_scaling(&mut words, &spec.rope.scaling);
            if spec.has_gate {
                words.push_str(", output gate");
            }
            match spec.norm {
                QkNorm::None => {}
                QkNorm::Heads => words.push_str(", normed by head"),
                QkNorm::Row => words.push_str(", normed by row"),
            }
            if let Some(window) = spec.window {
                let _ = write!(words, ", sees the last {}", grouped(window as u64));
            }
            if spec.has_sinks {
                words.push_str(", sinks");
            }
            push_blocks(&mut words, spec.indexer);
            ("attention", words)
        }
        MixerSpec::GatedDelta(spec) => {
            let words = format!(
                "{} key heads of {}, {} value heads of {}, {} taps",
                spec.n_k_heads, spec.k_dim, spec.n_v_heads, spec.v_dim, spec.n_taps
            );
            ("gated DeltaNet", words)
        }
        MixerSpec::Mla(spec) => {
            let q_rank = spec.q_rank.map_or_else(|| "full".to_owned(), |rank| rank.to_string());
            let mut words = format!(
                "{} heads, query rank {q_rank}, latent {} + {} with position, values {}",
                spec.n_heads, spec.kv_rank, spec.rope_dim, spec.v_dim
            );
            push_scaling(&mut words, &spec.rope.scaling);
            push_choice(&mut words, spec.choice);
            ("latent attention", words)
        }
    }
}

fn push_blocks(words: &mut String, indexer: Option<BlockIndexerSpec>) {
    let Some(indexer) = indexer else { return };
    let BlockIndexerSpec { n_heads, head_dim, n_blocks, block } = indexer;
    let _ = write!(
        words,
        ", to {} blocks of {block} positions that an indexer of {n_heads} heads of {head_dim} \
         chooses",
        grouped(n_blocks as u64)
    );
}

fn push_choice(words: &mut String, choice: Option<PositionChoice>) {
    let Some(choice) = choice else { return };
    let n_chosen = grouped(choice.n_chosen() as u64);
    let _ = match choice {
        PositionChoice::Own(indexer) => write!(
            words,
            ", to {n_chosen} positions that an indexer of {} heads of {} chooses",
            indexer.n_heads, indexer.head_dim
        ),
        PositionChoice::Shared { .. } => {
            write!(words, ", to the {n_chosen} positions of a layer below")
        }
    };
}

fn push_scaling(words: &mut String, scaling: &RopeScaling) {
    match scaling {
        RopeScaling::None => {}
        RopeScaling::Llama3(llama) => {
            let _ = write!(words, ", {} x{}", scaling_name(scaling), llama.factor);
        }
        RopeScaling::Stored => words.push_str(", scaled by numbers in the file"),
        RopeScaling::Linear { factor } => {
            let _ = write!(words, ", {} x{factor}", scaling_name(scaling));
        }
        RopeScaling::Yarn(yarn) => {
            let _ = write!(words, ", {} x{}", scaling_name(scaling), yarn.factor);
        }
    }
}

fn ffn_words(ffn: &FfnSpec) -> (&'static str, String) {
    match ffn {
        FfnSpec::Dense { inner, has_bias } => {
            let bias = if *has_bias { ", with biases" } else { "" };
            ("dense", format!("inner {}{bias}", grouped(*inner as u64)))
        }
        FfnSpec::Moe(moe) => ("experts", moe_words(moe)),
    }
}

fn moe_words(moe: &MoeSpec) -> String {
    let mut words = format!(
        "{} per token of {}, inner {}",
        moe.top_k,
        grouped(moe.n_experts as u64),
        grouped(moe.inner as u64)
    );
    if let Some(shared) = moe.shared {
        let gated = if shared.is_gated { " gated" } else { "" };
        let _ = write!(words, "; shared{gated}, inner {}", grouped(shared.inner as u64));
    }
    match moe.router {
        RouterSpec::Only => {}
        RouterSpec::Softmax { .. } => words.push_str("; softmax router"),
        RouterSpec::SigmoidGrouped { n_groups, n_groups_kept, .. } => {
            words.push_str("; sigmoid router");
            if n_groups > 1 {
                let _ = write!(words, ", {n_groups_kept} of {n_groups} groups");
            }
        }
    }
    words
}

fn memory(report: &InspectReport) -> Vec<String> {
    let mut lines = vec![LABELS.header("memory and traffic", "bytes")];
    lines.push(LABELS.size("resident weights", report.resident_bytes));
    if report.streamable_bytes > 0 {
        lines.push(LABELS.size("  may be streamed", report.streamable_bytes));
    }
    match report.expert_bytes {
        Some((min, max)) if min == max => lines.push(LABELS.size("one expert", min)),
        Some((min, max)) => {
            lines.push(LABELS.size("smallest expert", min));
            lines.push(LABELS.size("largest expert", max));
        }
        None => {}
    }
    if report.experts_bytes > 0 {
        lines.push(LABELS.size("all experts", report.experts_bytes));
        lines.push(LABELS.size("experts per token", report.routed_bytes_per_token));
    }
    if report.tables.1 > 0 {
        let (n_rows, table_bytes) = report.tables;
        lines.push(LABELS.size(&format!("table of {} rows", grouped(n_rows)), table_bytes));
        let (n_used, used_bytes) = report.rows_per_token;
        lines.push(LABELS.size(&format!("  {n_used} rows per token"), used_bytes));
    }
    for (kind, bytes) in [
        (KV_KIND, report.state_bytes_per_1000_tokens),
        (KV8_KIND, report.kv8_bytes_per_1000_tokens),
    ] {
        let label = format!("KV per {} tokens ({})", grouped(N_POSITIONS), kind.name());
        lines.push(LABELS.size(&label, bytes));
    }
    if report.state_fixed_bytes > 0 {
        lines.push(LABELS.size("recurrent state (f32)", report.state_fixed_bytes));
    }
    lines
}
