//! Once warm, a token costs no allocation: neither its step, with experts in memory or streamed,
//! nor the choice of the next one.
//!
//! A binary of its own: its allocator counts, on the thread that asks. One thread computes.
#![cfg(test)]

use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::{Engine, EngineSpec};
use moeflux::provider::ids::TokenId;
use moeflux::provider::model::Model;
use moeflux::provider::sample::{Sampler, SamplerConfig};
use moeflux::provider::session::{Session, Wanted};

const N_WARM: u32 = 80;
const N_COUNTED: u32 = 40;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(name)
}

fn open(dir: &Path, arithmetic: Arithmetic, n_slots_max: Option<usize>) -> Engine {
    let config = EngineConfig {
        ranks: None,
        backend: BackendKind::Cpu,
        device: None,
        arithmetic,
        kernels: None,
        n_threads: NonZeroUsize::MIN,
        n_rows_max: NonZeroUsize::new(32),
        streaming: StreamingConfig { n_slots_max, ..StreamingConfig::default() },
    };
    let engine =
        Engine::load(Model::open(dir).unwrap(), &config, &mut |_| ControlFlow::Continue(()))
            .unwrap();
    engine.read_rest(&mut |_| ControlFlow::Continue(())).unwrap();
    engine
}

/// A session with all that a token needs.
struct Run {
    session: Session,
    sampler: Sampler,
    logits: Vec<f32>,
    vocab: u32,
}

impl Run {
    fn new(engine: &Engine) -> Self {
        let vocab = engine.spec().vocab;
        let mut config = SamplerConfig::greedy();
        config.temperature = 0.8;
        let session = engine.session(200).unwrap();
        let sampler = Sampler::new(config, vocab).unwrap();
        Self { session, sampler, logits: Vec::new(), vocab: vocab.try_into().unwrap() }
    }

    /// Feeds tokens one by one and chooses after each.
    fn steps(&mut self, numbers: Range<u32>) {
        for number in numbers {
            let Self { session, sampler, logits, vocab } = self;
            logits.clear();
            let token = TokenId(number * 7919 % *vocab);
            let watch = &mut |_| ControlFlow::Continue(());
            let fed = session.feed(&[token], Wanted::Last, watch, &mut |_, row| {
                logits.extend_from_slice(row);
                Ok(())
            });
            fed.unwrap();
            sampler.sample(logits, session.tokens(), None).unwrap();
        }
    }
}

#[test]
fn a_warm_token_allocates_nothing() {
    for name in ["mlx-qwen3_5_moe-q4-g64-bf16", "mlx-deepseek_v3_yarn-q4-g64-bf16"] {
        for arithmetic in [Arithmetic::Int8, Arithmetic::F32] {
            for n_slots in [None, Some(9)] {
                let engine = open(&golden(name), arithmetic, n_slots);
                let mut run = Run::new(&engine);
                run.steps(0..N_WARM);
                let counted = allocation_counter::measure(|| run.steps(N_WARM..N_WARM + N_COUNTED));
                assert_eq!(counted.count_total, 0, "{name} in {arithmetic:?}, slots {n_slots:?}");
            }
        }
    }
}
