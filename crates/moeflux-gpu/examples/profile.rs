//! Prints the time of a prompt and of an answer on a GPU, kernel by kernel:
//! `cargo run --release -p moeflux-gpu --example profile -- MODEL [GPU [PROMPT_TOKENS [TOKENS
//! [ROWS_AT_ONCE [MIB_OF_THE_GPU [MIB_OF_MEMORY]]]]]]`.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, Budget, EngineConfig, StreamingConfig};
use moeflux::provider::engine::{Engine, EngineSpec};
use moeflux::provider::error::{Error, Result};
use moeflux::provider::ids::TokenId;
use moeflux::provider::model::Model;
use moeflux_gpu::adapter::choose;
use moeflux_gpu::device::Gpu;
use moeflux_gpu::device::profile::Profile;
use moeflux_gpu::maker::GpuMaker;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(dir) = args.first() else {
        return Err(Error::Input("name a model's folder".to_owned()));
    };
    let number = |at: usize, otherwise: usize| {
        args.get(at).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (n_prompt, n_answer) = (number(2, 512), number(3, 32));
    let gpu = Gpu::open(&choose(args.get(1).map(String::as_str))?)?;
    gpu.begin_profile()?;
    let memory_bytes = args.get(5).and_then(|text| text.parse::<u64>().ok()).map(|it| it << 20);
    let budget = match args.get(6).and_then(|text| text.parse::<u64>().ok()) {
        Some(mib) => Budget::Bytes(mib << 20),
        None => Budget::Auto,
    };
    let config = EngineConfig {
        ranks: None,
        backend: BackendKind::Cpu,
        device: Some(Arc::new(GpuMaker::new(Arc::clone(&gpu), memory_bytes).staging_f16())),
        arithmetic: Arithmetic::F32,
        kernels: None,
        n_threads: NonZeroUsize::MIN,
        n_rows_max: NonZeroUsize::new(number(4, 0)),
        streaming: StreamingConfig { budget, ..StreamingConfig::default() },
    };
    let go_on = &mut |_| ControlFlow::Continue(());
    let engine = Engine::load(Model::open(Path::new(dir))?, &config, go_on)?;
    let mut session = engine.session(n_prompt + n_answer)?;
    let vocab = engine.spec().vocab;
    // Any tokens do: they choose experts as evenly as those of a text.
    let mut tokens = (0_u32..).map(|it| TokenId(it.wrapping_mul(2_654_435_761) % narrow(vocab)));
    let prompt: Vec<TokenId> = tokens.by_ref().take(n_prompt).collect();
    session.feed_last(&prompt)?;
    print(&format!("prompt of {n_prompt} tokens"), n_prompt, &gpu.take_profile());
    for token in tokens.take(n_answer) {
        session.feed_last(&[token])?;
    }
    print(&format!("{n_answer} tokens after it"), n_answer, &gpu.take_profile());
    if let Some(tiers) = engine.tier_stats() {
        println!("{tiers:?}");
    }
    Ok(())
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Prints a table, sorted by descending time.
fn print(what: &str, n_tokens: usize, profile: &Profile) {
    let mut lines: Vec<_> = profile.iter().collect();
    lines.sort_by(|x, y| y.1.ns.total_cmp(&x.1.ns));
    let all: f64 = lines.iter().map(|(_, took)| took.ns).sum();
    println!("{what}: {:.3} ms on the device, {:.1} us each", all / 1e6, each(all, n_tokens));
    println!("  {:24} {:>9} {:>12} {:>10} {:>6}", "kernel", "n", "us each", "ms", "%");
    for (name, took) in lines {
        println!(
            "  {name:24} {:>9} {:>12.2} {:>10.3} {:>6.1}",
            took.n,
            took.ns / took.n as f64 / 1e3,
            took.ns / 1e6,
            100.0 * took.ns / all
        );
    }
}

/// Returns the microseconds per token.
fn each(ns: f64, n_tokens: usize) -> f64 {
    ns / 1e3 / n_tokens.max(1) as f64
}
