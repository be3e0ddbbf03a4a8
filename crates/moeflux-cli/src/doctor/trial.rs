//! How fast this machine computes models: small random ones are run on the CPU and on a GPU.
//!
//! Answers take a time per token, per layer and per byte of weights, prompts a time per byte and a
//! time per operation. Models of two depths and of two widths, and prompts of two lengths, tell
//! each from the others. On a GPU a prompt's time depends on how many rows an expert gets, so its
//! model has as many experts as real ones. **Invariant:** the models' folders are gone at the end, however it comes.

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

/// Those that `plan` tells of; experts of [`MANY`] get some 32 and 128 rows.
const PROMPTS_OF_GPU: [usize; 2] = [512, 2048];

/// Tokens that sessions hold.
const CONTEXT: usize = 2048;

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

/// And for prompts.
const MANY: Shape = Shape { name: "many", n_layers: 2, n_experts: 128, ..SMALL };

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
            gguf: None,
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
    let bar = Bar::steps("measuring the CPU", 2);
    let engine = model.builder().open()?;
    let mut run = Run::new(&engine, interrupt)?;
    let answer_s = run.answer_s()?;
    bar.add(1);
    let prompts = run.prompts_s(PROMPTS_OF_CPU)?;
    bar.add(1);
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
        far_prompt_bytes_per_s: answers,
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
    let sees_host = facts.host_memory == HostMemory::Seen;
    let trial = OnGpu { gpu: &gpu, sees_host, interrupt };
    let bar = Bar::steps("measuring the GPU", 4);
    let [shallow, large] = [SHALLOW, LARGE].map(|shape| {
        let token = trial.token(shape);
        bar.add(1);
        token
    });
    let answers = trial.answers(&shallow?, &large?)?;
    bar.add(1);
    let prompts = trial.prompts()?;
    bar.add(1);
    let TokenTimes { step_s, layer_s, bytes_per_s } = answers.times;
    let pace = Pace {
        answer_bytes_per_s: bytes_per_s,
        answer_float_bytes_per_s: bytes_per_s,
        step_s,
        layer_s,
        streamed_layer_s: answers.streamed_layer_s,
        prompt_bytes_per_s: prompts.near.bytes_per_s,
        prompt_operations_per_s: prompts.near.operations_per_s,
        prompt_float_operations_per_s: prompts.near.operations_per_s,
        far_bytes_per_s: answers.far_bytes_per_s,
        far_prompt_bytes_per_s: prompts.far_bytes_per_s,
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

/// A GPU that models are tried on.
struct OnGpu<'a> {
    gpu: &'a Arc<Gpu>,
    sees_host: bool,
    interrupt: &'a Interrupt,
}

/// What answers take of a GPU.
struct Answers {
    times: TokenTimes,
    /// Of experts that are not on the card.
    far_bytes_per_s: f64,
    streamed_layer_s: f64,
}

/// What prompts take of a GPU.
struct Prompts {
    near: PromptTimes,
    far_bytes_per_s: f64,
}

impl OnGpu<'_> {
    /// A model with at most so many bytes on the card.
    fn builder(&self, model: &Model, memory_bytes: Option<u64>) -> EngineBuilder {
        let maker = GpuMaker::new(Arc::clone(self.gpu), memory_bytes).staging_f16();
        let [.., longest] = PROMPTS_OF_GPU;
        model.builder().configure(|config| {
            config.device = Some(Arc::new(maker) as Arc<dyn DeviceMaker>);
            config.n_rows_max = NonZeroUsize::new(longest);
        })
    }

    /// Room for what an engine takes of the card besides experts, and for a share of those.
    fn few_bytes(&self, engine: &Engine, needs: &Needs) -> u64 {
        let overhead_bytes = (64 << 20) - room_for_models(64 << 20);
        fixed_bytes(engine) + needs.experts_bytes() / NEAR_SHARE + overhead_bytes
    }

    /// A token on a card that has all of a model.
    fn token(&self, shape: Shape) -> Result<Token> {
        let model = Model::write(shape, self.interrupt)?;
        let engine = self.builder(&model, None).open()?;
        Token::of(&model, &engine, self.interrupt)
    }

    fn answers(&self, shallow: &Token, large: &Token) -> Result<Answers> {
        let model = Model::write(DEEP, self.interrupt)?;
        let engine = self.builder(&model, None).open()?;
        let deep = Token::of(&model, &engine, self.interrupt)?;
        let memory_bytes = self.few_bytes(&engine, &model.needs);
        drop(engine);
        let times = TokenTimes::of(shallow, &deep, large);
        if !self.sees_host {
            let far_bytes_per_s = times.bytes_per_s;
            return Ok(Answers { times, far_bytes_per_s, streamed_layer_s: 0.0 });
        }
        let (far_s, near_share) = {
            let engine = self.builder(&model, Some(memory_bytes)).open()?;
            let far_s = Run::new(&engine, self.interrupt)?.answer_s()?;
            (far_s, near_share(&engine))
        };
        let far_bytes = (1.0 - near_share) * float(model.needs.routed_bytes());
        let more_s = (far_s - deep.s).max(0.0);
        let far_bytes_per_s = far_bytes / (more_s + far_bytes / times.bytes_per_s).max(1e-9);
        let streamed_layer_s = self.streamed_layer_s(&model, memory_bytes, far_s)?;
        Ok(Answers { times, far_bytes_per_s, streamed_layer_s })
    }

    /// What each layer takes besides when its experts are streamed.
    fn streamed_layer_s(&self, model: &Model, memory_bytes: u64, far_s: f64) -> Result<f64> {
        // All but one expert have a slot: what is read is little, and its time is known.
        let n_experts = usize::try_from(model.needs.n_experts()).unwrap_or(usize::MAX);
        let engine = self.builder(model, Some(memory_bytes));
        let engine = engine
            .configure(|config| config.streaming.n_slots_max = Some(n_experts.saturating_sub(1)))
            .open()?;
        let mut run = Run::new(&engine, self.interrupt)?;
        run.answer_s()?;
        let (before, n_before) = (engine.stream_stats(), run.n_drawn);
        let streamed_s = run.answer_s()?;
        let waited =
            engine.stream_stats().zip(before).map(|(now, before)| now.since(&before).read_wait);
        let n_tokens = float(run.n_drawn - n_before);
        let waited_s = waited.map_or(0.0, |it| it.as_secs_f64()) / n_tokens;
        Ok((streamed_s - waited_s - far_s).max(0.0) / float(model.needs.n_layers))
    }

    fn prompts(&self) -> Result<Prompts> {
        let model = Model::write(MANY, self.interrupt)?;
        let needs = &model.needs;
        let engine = self.builder(&model, None).open()?;
        let near_s = Run::new(&engine, self.interrupt)?.prompts_s(PROMPTS_OF_GPU)?;
        let memory_bytes = self.few_bytes(&engine, needs);
        drop(engine);
        let near = prompt_times(needs, PROMPTS_OF_GPU, near_s, f64::INFINITY);
        if !self.sees_host {
            let far_bytes_per_s = near.bytes_per_s;
            return Ok(Prompts { near, far_bytes_per_s });
        }
        let engine = self.builder(&model, Some(memory_bytes)).open()?;
        let far_s = Run::new(&engine, self.interrupt)?.prompts_s(PROMPTS_OF_GPU)?;
        let far_bytes = (1.0 - near_share(&engine)) * float(needs.experts_bytes());
        let more_s: f64 = far_s.iter().sum::<f64>() - near_s.iter().sum::<f64>();
        // Noise may say that they cost nothing.
        let more_s = more_s.max(far_bytes / near.bytes_per_s);
        let n_prompts = float(PROMPTS_OF_GPU.len() as u64);
        Ok(Prompts { near, far_bytes_per_s: n_prompts * far_bytes / more_s.max(1e-9) })
    }
}

/// Of the experts that were used, those on the card.
fn near_share(engine: &Engine) -> f64 {
    engine.tier_stats().as_ref().and_then(crate::tiers::near_share).unwrap_or(0.0)
}

/// What a model takes of a GPU besides experts.
fn fixed_bytes(engine: &Engine) -> u64 {
    let memory = engine.memory();
    memory.resident_bytes
        + step_bytes(memory.workspace_bytes)
        + 2 * memory.session_fixed_bytes
        + memory.session_bytes_per_position * CONTEXT.next_multiple_of(1024) as u64
}

/// A token of an answer: what it takes of a model, and how long.
#[derive(Clone, Copy, Debug)]
struct Token {
    n_layers: f64,
    n_bytes: f64,
    s: f64,
}

impl Token {
    fn of(model: &Model, engine: &Engine, interrupt: &Interrupt) -> Result<Self> {
        let mut run = Run::new(engine, interrupt)?;
        run.wake(GPU_WAKES_WITHIN)?;
        let n_layers = float(model.needs.n_layers);
        Ok(Self { n_layers, n_bytes: model.token_bytes(), s: run.answer_s()? })
    }
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

    /// Seconds of prompts of two lengths.
    fn prompts_s(&mut self, lengths: [usize; 2]) -> Result<[f64; 2]> {
        Ok([self.prompt_s(lengths[0])?, self.prompt_s(lengths[1])?])
    }

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
