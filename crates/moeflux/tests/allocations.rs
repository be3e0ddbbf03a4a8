//! Once warm, a token costs no allocation: neither its step, with experts in memory or streamed,
//! nor the choice of the next one.
//!
//! A binary of its own: its allocator counts, on the thread that asks. One thread computes.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use moeflux::backend::Arithmetic;
use moeflux::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::engine::Engine;
use moeflux::ids::TokenId;
use moeflux::sample::{Sampler, SamplerConfig};
use moeflux::session::{Session, Wanted};

const N_WARM: u32 = 80;
const N_COUNTED: u32 = 40;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(name)
}

fn open(dir: &Path, arithmetic: Arithmetic, n_slots_max: Option<usize>) -> Engine {
    let config = EngineConfig {
        backend: BackendKind::Cpu,
        arithmetic,
        kernels: None,
        n_threads: NonZeroUsize::MIN,
        n_rows_max: NonZeroUsize::new(32),
        streaming: StreamingConfig { n_slots_max, ..StreamingConfig::default() },
    };
    Engine::open(dir, &config, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Feeds a token and chooses the next.
fn step(session: &mut Session, sampler: &mut Sampler, logits: &mut Vec<f32>, token: TokenId) {
    logits.clear();
    let watch = &mut |_| ControlFlow::Continue(());
    session
        .feed(&[token], Wanted::Last, watch, &mut |_, row| {
            logits.extend_from_slice(row);
            Ok(())
        })
        .unwrap();
    sampler.sample(logits, session.tokens(), None).unwrap();
}

#[test]
fn a_warm_token_allocates_nothing() {
    for name in ["mlx-qwen3_5_moe-q4-g64-bf16", "mlx-deepseek_v3_yarn-q4-g64-bf16"] {
        for arithmetic in [Arithmetic::Int8, Arithmetic::F32] {
            for n_slots in [None, Some(9)] {
                let engine = open(&golden(name), arithmetic, n_slots);
                let mut session = engine.session(200).unwrap();
                let config = SamplerConfig { temperature: 0.8, ..SamplerConfig::greedy() };
                let mut sampler = Sampler::new(config, engine.spec().vocab).unwrap();
                let mut logits = Vec::new();
                let vocab = u32::try_from(engine.spec().vocab).unwrap();
                let mut run = |tokens: std::ops::Range<u32>| {
                    for token in tokens {
                        let token = TokenId(token * 7919 % vocab);
                        step(&mut session, &mut sampler, &mut logits, token);
                    }
                };
                run(0..N_WARM);
                let counted = allocation_counter::measure(|| run(N_WARM..N_WARM + N_COUNTED));
                assert_eq!(counted.count_total, 0, "{name} in {arithmetic:?}, slots {n_slots:?}");
            }
        }
    }
}
