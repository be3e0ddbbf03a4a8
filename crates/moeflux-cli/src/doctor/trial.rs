//! How fast this machine computes models: small random ones are run on the CPU and on a GPU.
//!
//! Answers take a time per token, per layer and per byte of weights, prompts a time per byte and a
//! time per operation. Models of two depths and of two widths, and prompts of two lengths, tell
//! each from the others. **Invariant:** the models' folders are gone at the end, however it comes.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::budget::step_bytes;
use moeflux::provider::config::{BackendKind, DeviceMaker, n_threads_default};
use moeflux::{
    Engine, EngineBuilder, Error, Feed, Remedy, Result, Session, StepOutput, TokenId, step,
};
use moeflux_gpu::adapter::{Adapter, HostMemory};
use moeflux_gpu::device::Gpu;
use moeflux_gpu::maker::{GpuMaker, room_for_models};
use serde_json::{Value, json};

use super::products::float_rates;
use crate::bare_config::{BITS_DEFAULT, GROUP_DEFAULT};
use crate::cache;
use crate::clock;
use crate::interrupt::Interrupt;
use crate::measured::{Card, Computing};
use crate::needs::{Needs, float};
use crate::pace::Pace;
use crate::progress::Bar;
use crate::stats::median;
use crate::stream::Stream;
use crate::synth::{self, SynthArgs};

/// Less free memory has no room for a model that says anything.
const FREE_BYTES_MIN: u64 = 2 << 30;

/// Tokens of each round of answers.
const N_ANSWER_TOKENS: usize = 24;

/// Rounds that count, after one that does not; fewer where they take long.
const N_ROUNDS: usize = 5;

/// A GPU that was idle takes so long to its full speed, kernels compiled and clocks raised.
const GPU_WAKES_WITHIN: Duration = Duration::from_millis(1500);

/// Rounds of one kind end after this: a software driver takes seconds for each.
const ROUNDS_TIME: Duration = Duration::from_secs(2);

/// Lengths of prompts: on a CPU one step each, and experts get some 20 and 170 rows.
const PROMPTS_OF_CPU: [usize; 2] = [64, 512];

/// A GPU is busy with the longer one.
const PROMPTS_OF_GPU: [usize; 2] = [128, 1024];

/// Tokens that sessions hold.
const CONTEXT: usize = 1536;

/// Of a GPU's experts, those on the card where the others are read from memory.
const NEAR_SHARE: u64 = 4;

/// A geometry.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    hidden: u64,
    inner: u64,
    n_heads: u64,
    n_layers: u64,
    n_experts: u64,
}

/// Layers and experts as those of models with 30 billion weights.
const SMALL: Shape =
    Shape { name: "small", hidden: 2048, inner: 768, n_heads: 32, n_layers: 4, n_experts: 24 };

/// The same for GPUs: deep, as a token's own time is long for few layers.
const DEEP: Shape = Shape { name: "deep", n_layers: 12, ..SMALL };

/// And with few of the layers.
const SHALLOW: Shape = Shape { name: "shallow", n_layers: 2, ..SMALL };

/// As those of models with 235 billion.
const LARGE: Shape =
    Shape { name: "large", hidden: 4096, inner: 1536, n_heads: 64, n_layers: 2, n_experts: 12 };

impl Shape {
    fn config(&self) -> Value {
        json!({
            "model_type": "qwen3_moe",
            "vocab_size": 512,
            "hidden_size": self.hidden,
            "intermediate_size": 3 * self.hidden,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": false,
            "attention_bias": false,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": self.inner,
            "norm_topk_prob": true,
            "num_experts": self.n_experts,
            "num_experts_per_tok": 8,
            "use_sliding_window": false,
        })
    }
}

/// A random model, which removes itself.
#[derive(Debug)]
struct Model {
    root: PathBuf,
    dir: PathBuf,
    needs: Needs,
}

impl Model {
    fn write(shape: Shape, interrupt: &Interrupt) -> Result<Self> {
        let name = format!("trial-{}-{}", shape.name, std::process::id());
        let root = cache::folder().join(name);
        fs::create_dir_all(&root).map_err(Error::io("create", &root))?;
        let mut model = Self { dir: root.join("model"), root, needs: Needs::default() };
        let config = model.root.join("config.json");
        let text = shape.config().to_string();
        fs::write(&config, text).map_err(Error::io("write", &config))?;
        let args = SynthArgs {
            config,
            out: model.dir.clone(),
            bits: BITS_DEFAULT,
            group: GROUP_DEFAULT,
            seed: 1,
            shard_size: 1 << 40,
            threads: None,
        };
        synth::run(&args, interrupt.flag())?;
        let (blueprint, _) = Blueprint::open(&model.dir)?;
        model.needs = Needs::new(&blueprint);
        Ok(model)
    }

    fn builder(&self) -> EngineBuilder {
        Engine::builder(&self.dir).context(CONTEXT).configure(|config| {
            config.backend = BackendKind::Cpu;
            config.n_threads = n_threads_default();
        })
    }

    fn token_bytes(&self) -> f64 {
        float(self.needs.resident.n_bytes() + self.needs.routed_bytes())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.root));
    }
}

/// How fast the CPU computes.
pub(super) fn of_cpu(available_bytes: Option<u64>, interrupt: &Interrupt) -> Result<Pace> {
    check_free(available_bytes)?;
    let n_threads: NonZeroUsize = n_threads_default();
    let floats = float_rates(moeflux_kernels::best(), n_threads);
    let model = Model::write(SMALL, interrupt)?;
    let bar = Bar::steps("measuring the CPU", 3);
    let engine = model.builder().open()?;
    let mut run = Run::new(&engine, interrupt)?;
    let answer_s = run.answer_s()?;
    bar.add(1);
    let mut prompts = [0.0; 2];
    for (seconds, n_tokens) in prompts.iter_mut().zip(PROMPTS_OF_CPU) {
        *seconds = run.prompt_s(n_tokens)?;
        bar.add(1);
    }
    let answers = model.token_bytes() / answer_s;
    let times = prompt_times(&model.needs, PROMPTS_OF_CPU, prompts, floats.operations_per_s);
    Ok(Pace {
        answer_bytes_per_s: answers,
        answer_float_bytes_per_s: answers * floats.answer_ratio,
        step_s: 0.0,
        layer_s: 0.0,
        streamed_layer_s: 0.0,
        prompt_bytes_per_s: times.bytes_per_s,
        prompt_operations_per_s: times.operations_per_s,
        prompt_float_operations_per_s: floats.operations_per_s,
        far_bytes_per_s: answers,
    })
}

/// How fast a GPU computes.
pub(super) fn of_gpu(
    adapter: &Adapter,
    available_bytes: Option<u64>,
    interrupt: &Interrupt,
) -> Result<Card> {
    check_free(available_bytes)?;
    let facts = adapter.facts();
    let gpu = Gpu::open(adapter)?;
    gpu.keep_pipelines(&cache::folder());
    let room_bytes = facts.room_bytes().unwrap_or(0);
    if room_bytes == 0 {
        return Err(Error::Input(format!("{} does not say how much memory it has", facts.name)));
    }
    let bar = Bar::steps("measuring the GPU", 6);
    let [shallow, large] = [SHALLOW, LARGE].map(|shape| {
        let token = token_on_gpu(shape, &gpu, interrupt);
        bar.add(1);
        token
    });
    let (shallow, large) = (shallow?, large?);
    let model = Model::write(DEEP, interrupt)?;
    let needs = &model.needs;
    let engine = on_gpu(&model, &gpu, None)?.open()?;
    let mut run = Run::new(&engine, interrupt)?;
    run.wake(GPU_WAKES_WITHIN)?;
    let near_s = run.answer_s()?;
    bar.add(1);
    let mut prompts = [0.0; 2];
    for (seconds, n_tokens) in prompts.iter_mut().zip(PROMPTS_OF_GPU) {
        *seconds = run.prompt_s(n_tokens)?;
        bar.add(1);
    }
    let fixed_bytes = fixed_bytes(&engine);
    drop(run);
    drop(engine);
    let deep = Token { n_layers: float(needs.n_layers), n_bytes: model.token_bytes(), s: near_s };
    let TokenTimes { step_s, layer_s, bytes_per_s } = TokenTimes::of(&shallow, &deep, &large);
    let sees_host = facts.host_memory == HostMemory::Seen;
    let far = match sees_host {
        true => far_times(&model, &gpu, fixed_bytes, (near_s, bytes_per_s), interrupt)?,
        false => Far { bytes_per_s, streamed_layer_s: 0.0 },
    };
    bar.add(1);
    let times = prompt_times(needs, PROMPTS_OF_GPU, prompts, f64::INFINITY);
    let pace = Pace {
        answer_bytes_per_s: bytes_per_s,
        answer_float_bytes_per_s: bytes_per_s,
        step_s,
        layer_s,
        streamed_layer_s: far.streamed_layer_s,
        prompt_bytes_per_s: times.bytes_per_s,
        prompt_operations_per_s: times.operations_per_s,
        prompt_float_operations_per_s: times.operations_per_s,
        far_bytes_per_s: far.bytes_per_s,
    };
    let computing = Computing { pace, name: facts.name.clone(), age_s: 0 };
    let is_for_auto = crate::device::is_for_auto(facts);
    Ok(Card { computing, room_bytes, sees_host, is_for_auto })
}

fn check_free(available_bytes: Option<u64>) -> Result<()> {
    match available_bytes {
        Some(bytes) if bytes < FREE_BYTES_MIN => {
            let what = "a small model to measure with";
            Err(Error::no_room_in(bytes, what, FREE_BYTES_MIN, Remedy::FreeMemory))
        }
        _ => Ok(()),
    }
}

/// A model on a GPU, with at most so many bytes there.
fn on_gpu(model: &Model, gpu: &Arc<Gpu>, memory_bytes: Option<u64>) -> Result<EngineBuilder> {
    let maker = GpuMaker::new(Arc::clone(gpu), memory_bytes).staging_f16();
    let [.., longest] = PROMPTS_OF_GPU;
    let n_rows = NonZeroUsize::new(longest);
    Ok(model.builder().configure(|config| {
        config.device = Some(Arc::new(maker) as Arc<dyn DeviceMaker>);
        config.n_rows_max = n_rows;
    }))
}

/// What a model takes of a GPU besides experts.
fn fixed_bytes(engine: &Engine) -> u64 {
    let memory = engine.memory();
    memory.resident_bytes
        + step_bytes(memory.workspace_bytes)
        + 2 * memory.session_fixed_bytes
        + memory.session_bytes_per_position * CONTEXT.next_multiple_of(1024) as u64
}

/// Times of experts that are not on the card.
struct Far {
    bytes_per_s: f64,
    streamed_layer_s: f64,
}

fn far_times(
    model: &Model,
    gpu: &Arc<Gpu>,
    fixed_bytes: u64,
    (near_s, near_bytes_per_s): (f64, f64),
    interrupt: &Interrupt,
) -> Result<Far> {
    let needs = &model.needs;
    let overhead_bytes = (64 << 20) - room_for_models(64 << 20);
    let memory_bytes = fixed_bytes + needs.experts_bytes() / NEAR_SHARE + overhead_bytes;
    let (far_s, near_share) = {
        let engine = on_gpu(model, gpu, Some(memory_bytes))?.open()?;
        let far_s = Run::new(&engine, interrupt)?.answer_s()?;
        let tiers = engine.tier_stats();
        (far_s, tiers.as_ref().and_then(crate::tiers::near_share).unwrap_or(0.0))
    };
    let far_bytes = (1.0 - near_share) * float(needs.routed_bytes());
    let more_s = (far_s - near_s).max(0.0);
    let bytes_per_s = far_bytes / (more_s + far_bytes / near_bytes_per_s).max(1e-9);
    // All but one expert have a slot: what is read is little, and its time is known.
    let n_slots = usize::try_from(needs.n_experts()).unwrap_or(usize::MAX).saturating_sub(1);
    let engine = on_gpu(model, gpu, Some(memory_bytes))?;
    let engine = engine.configure(|config| config.streaming.n_slots_max = Some(n_slots)).open()?;
    let mut run = Run::new(&engine, interrupt)?;
    run.answer_s()?;
    let (before, n_before) = (engine.stream_stats(), run.n_drawn);
    let streamed_s = run.answer_s()?;
    let waited =
        engine.stream_stats().zip(before).map(|(now, before)| now.since(&before).read_wait);
    let n_tokens = float(run.n_drawn - n_before);
    let waited_s = waited.map_or(0.0, |it| it.as_secs_f64()) / n_tokens;
    let streamed_layer_s = (streamed_s - waited_s - far_s).max(0.0) / float(needs.n_layers);
    Ok(Far { bytes_per_s, streamed_layer_s })
}

/// A token of an answer: what it takes of a model, and how long.
#[derive(Clone, Copy, Debug)]
struct Token {
    n_layers: f64,
    n_bytes: f64,
    s: f64,
}

/// A token on a GPU that has all of a model.
fn token_on_gpu(shape: Shape, gpu: &Arc<Gpu>, interrupt: &Interrupt) -> Result<Token> {
    let model = Model::write(shape, interrupt)?;
    let engine = on_gpu(&model, gpu, None)?.open()?;
    let mut run = Run::new(&engine, interrupt)?;
    run.wake(GPU_WAKES_WITHIN)?;
    let n_layers = float(model.needs.n_layers);
    Ok(Token { n_layers, n_bytes: model.token_bytes(), s: run.answer_s()? })
}

/// Where the time of a token goes.
#[derive(Clone, Copy, Debug)]
struct TokenTimes {
    step_s: f64,
    layer_s: f64,
    bytes_per_s: f64,
}

impl TokenTimes {
    /// From models of one width and two depths, and from a wider one.
    fn of(shallow: &Token, deep: &Token, wide: &Token) -> Self {
        let each_s = (deep.s - shallow.s) / (deep.n_layers - shallow.n_layers);
        // Noise may say that a token or a layer costs nothing, or all.
        let step_s =
            (shallow.s - shallow.n_layers * each_s).clamp(0.0, 0.9 * shallow.s.min(wide.s));
        let [deep_s, wide_s] = [deep.s - step_s, wide.s - step_s];
        let determinant = deep.n_layers * wide.n_bytes - wide.n_layers * deep.n_bytes;
        let layer_s = (deep_s * wide.n_bytes - wide_s * deep.n_bytes) / determinant;
        let most_s = (deep_s / deep.n_layers).min(wide_s / wide.n_layers);
        let layer_s = layer_s.clamp(0.0, 0.95 * most_s);
        let for_bytes_s = deep_s + wide_s - (deep.n_layers + wide.n_layers) * layer_s;
        Self { step_s, layer_s, bytes_per_s: (deep.n_bytes + wide.n_bytes) / for_bytes_s.max(1e-9) }
    }
}

/// Rates of prompts.
struct PromptTimes {
    bytes_per_s: f64,
    operations_per_s: f64,
}

/// From the seconds of two lengths: what both have is for the weights, the rest is per token.
/// Attention is counted apart.
fn prompt_times(
    needs: &Needs,
    lengths: [usize; 2],
    seconds: [f64; 2],
    attention_operations_per_s: f64,
) -> PromptTimes {
    let lengths = lengths.map(|it| float(it as u64));
    let attention =
        |n: f64| float(needs.attention_operations) * n * n / 2.0 / attention_operations_per_s;
    let [short, long] = [0, 1].map(|idx| (seconds[idx] - attention(lengths[idx])).max(1e-9));
    let token_s = (long - short) / (lengths[1] - lengths[0]);
    // Noise may say that a longer prompt costs nothing, or the weights.
    let token_s = token_s.clamp(0.3 * long / lengths[1], long / lengths[1]);
    let weights_s = (long - lengths[1] * token_s).max(0.02 * long);
    let weights_bytes = float(needs.resident.n_bytes() + needs.experts_bytes());
    let operations = float(needs.resident.n_operations() + needs.routed.n_operations());
    PromptTimes { bytes_per_s: weights_bytes / weights_s, operations_per_s: operations / token_s }
}

/// One session over an engine.
struct Run<'a> {
    session: Session,
    tokens: Stream,
    n_drawn: u64,
    vocab: u64,
    output: StepOutput,
    interrupt: &'a Interrupt,
}

impl<'a> Run<'a> {
    fn new(engine: &Engine, interrupt: &'a Interrupt) -> Result<Self> {
        // What is read beside a step would be measured with it.
        crate::model::read_rest(engine, interrupt)?;
        Ok(Self {
            session: engine.session(CONTEXT)?,
            tokens: Stream::new(1, "trial"),
            n_drawn: 0,
            vocab: engine.spec().vocab as u64,
            output: StepOutput::default(),
            interrupt,
        })
    }

    fn draw(&mut self, n_tokens: usize) -> Vec<TokenId> {
        let first = self.n_drawn;
        self.n_drawn += n_tokens as u64;
        let token = |idx| TokenId(u32::try_from(self.tokens.word(idx) % self.vocab).unwrap_or(0));
        (first..self.n_drawn).map(token).collect()
    }

    /// Computes for so long before anything counts.
    fn wake(&mut self, time: Duration) -> Result<()> {
        let began = clock::instant();
        while began.elapsed() < time {
            self.answer_s()?;
        }
        Ok(())
    }

    /// Seconds per token of an answer.
    fn answer_s(&mut self) -> Result<f64> {
        let seconds = self.rounds(N_ANSWER_TOKENS, |run, tokens| {
            for token in tokens {
                let feed = Feed::answer(&mut run.session, token);
                let feed = feed.best(Some(1)).cancelled_by(Some(run.interrupt.flag()));
                let mut feeds = [feed];
                step(&mut feeds, &mut run.output)?;
                feeds[0].outcome()?;
            }
            Ok(())
        })?;
        Ok(seconds / float(N_ANSWER_TOKENS as u64))
    }

    /// Seconds of a prompt.
    fn prompt_s(&mut self, n_tokens: usize) -> Result<f64> {
        self.rounds(n_tokens, |run, tokens| {
            let Self { session, output, interrupt, .. } = run;
            session.feed_to_choose(tokens, Some(1), &mut |_| interrupt.poll(), output)
        })
    }

    fn rounds(
        &mut self,
        n_tokens: usize,
        round: impl Fn(&mut Self, &[TokenId]) -> Result<()>,
    ) -> Result<f64> {
        let mut seconds = Vec::new();
        let began_all = clock::instant();
        for round_idx in 0..=N_ROUNDS {
            if !seconds.is_empty() && began_all.elapsed() > ROUNDS_TIME {
                break;
            }
            let tokens = self.draw(n_tokens);
            self.session.clear();
            let began = clock::instant();
            round(self, &tokens)?;
            if round_idx > 0 {
                seconds.push(began.elapsed().as_secs_f64());
            }
        }
        Ok(median(&seconds).unwrap_or(f64::INFINITY).max(1e-9))
    }
}

/// Whether a folder of a trial that was killed is there; it is removed.
pub(super) fn remove_old(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_trial = name.to_string_lossy().starts_with("trial-");
        let is_old = entry
            .metadata()
            .and_then(|it| it.modified())
            .is_ok_and(|it| it.elapsed().is_ok_and(|age| age.as_secs() > 3600));
        if is_trial && is_old {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-6, "{found}, not {expected}");
    }

    #[test]
    fn times_of_answers_are_told_apart() {
        // 100 us a token, 50 us a layer and 400 GB/s.
        let token = |n_layers: f64, n_bytes: f64| Token {
            n_layers,
            n_bytes,
            s: 1e-4 + n_layers * 5e-5 + n_bytes / 4e11,
        };
        let times = TokenTimes::of(&token(2.0, 6e7), &token(12.0, 36e7), &token(2.0, 2.5e8));
        check_near(times.step_s, 1e-4);
        check_near(times.layer_s, 5e-5);
        check_near(times.bytes_per_s, 4e11);
        // Nothing for a token or a layer.
        let token = |n_layers: f64, n_bytes: f64| Token { n_layers, n_bytes, s: n_bytes / 4e11 };
        let times = TokenTimes::of(&token(2.0, 6e7), &token(12.0, 36e7), &token(2.0, 2.5e8));
        assert!(times.step_s < 1e-9 && times.layer_s < 1e-9, "{times:?}");
        check_near(times.bytes_per_s, 4e11);
    }

    #[test]
    fn times_of_prompts_are_told_apart() {
        let needs = Needs {
            attention_operations: 1000,
            resident: crate::needs::Work {
                codes: crate::needs::Load { n_bytes: 1_000_000, n_operations: 2_000_000 },
                ..Default::default()
            },
            ..Needs::default()
        };
        // 1 GB/s, 1 GOP/s, and attention at 100 MOP/s.
        let time = |n: f64| 1e-3 + n * 2e-3 + 1000.0 * n * n / 2.0 / 1e8;
        let times = prompt_times(&needs, [64, 512], [time(64.0), time(512.0)], 1e8);
        check_near(times.operations_per_s, 1e9);
        assert!(times.bytes_per_s > 0.0 && times.bytes_per_s <= 1e9, "{}", times.bytes_per_s);
    }

    #[test]
    fn only_old_trials_are_removed() {
        let dir = crate::test_dir::TestDir::new("trials");
        fs::create_dir(dir.path().join("trial-small-1")).unwrap();
        fs::create_dir(dir.path().join("other")).unwrap();
        remove_old(dir.path());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
