//! The speed of a GPU: with all of a model on the card, with experts in host memory, and streamed.
//!
//! **Invariant:** every time is finite, however noisy the measurement is.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use moeflux::provider::budget::step_bytes;
use moeflux::provider::config::Configure;
use moeflux::provider::config::DeviceMaker;
use moeflux::{Engine, EngineBuilder, Error, Result};
use moeflux_gpu::adapter::{Adapter, HostMemory};
use moeflux_gpu::device::Gpu;
use moeflux_gpu::maker::{GpuMaker, room_for_models};

use super::model::{CONTEXT, DEEP, LARGE, MANY, SHALLOW, TrialModel, TrialShape};
use super::run::TrialRun;
use super::{PromptRates, check_free, prompt_rates};
use crate::model::needs::{Needs, float};
use crate::output::progress::Bar;
use crate::system::cache;
use crate::system::compute_profile::ComputeProfile;
use crate::system::interrupt::Interrupt;
use crate::system::measurements::{MeasuredCard, MeasuredDevice};

/// Upper bound on the time in which an idle GPU reaches full speed, with kernels compiled and
/// clocks raised.
const GPU_WAKES_WITHIN: Duration = Duration::from_millis(1500);

/// The prompt lengths that `plan` reports; experts of [`MANY`] get about 32 and 128 rows.
const PROMPTS_OF_GPU: [usize; 2] = [512, 2048];

/// The divisor for the share of experts on the card when the others are read from host memory.
const NEAR_SHARE: u64 = 4;

/// Measures a GPU.
pub(crate) fn of_gpu(
    adapter: &Adapter,
    available_bytes: Option<u64>,
    interrupt: &Interrupt,
) -> Result<MeasuredCard> {
    check_free(available_bytes)?;
    let facts = adapter.facts();
    let gpu = Gpu::open(adapter)?;
    gpu.cache_pipelines(&cache::folder());
    let room_bytes = facts.room_bytes().unwrap_or(0);
    if room_bytes == 0 {
        return Err(Error::Input(format!("{} does not report its memory size", facts.name)));
    }
    let sees_host = facts.host_memory == HostMemory::Seen;
    let trial = GpuTrial { gpu: &gpu, sees_host, interrupt };
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
    let profile = ComputeProfile {
        answer_bytes_per_s: bytes_per_s,
        answer_float_bytes_per_s: bytes_per_s,
        answer_plain_bytes_per_s: bytes_per_s,
        step_s,
        layer_s,
        streamed_layer_s: answers.streamed_layer_s,
        prompt_bytes_per_s: prompts.near.bytes_per_s,
        prompt_operations_per_s: prompts.near.operations_per_s,
        prompt_float_operations_per_s: prompts.near.operations_per_s,
        far_bytes_per_s: answers.far_bytes_per_s,
        far_prompt_bytes_per_s: prompts.far_bytes_per_s,
    };
    let computing =
        MeasuredDevice { profile, name: facts.name.clone(), age_s: 0, is_doubtful: false };
    let is_for_auto = moeflux_gpu::auto::is_for_auto(facts);
    Ok(MeasuredCard { computing, room_bytes, sees_host, is_for_auto })
}

/// A GPU that trial models run on.
struct GpuTrial<'a> {
    gpu: &'a Arc<Gpu>,
    sees_host: bool,
    interrupt: &'a Interrupt,
}

/// The measured costs of answers.
struct AnswerCosts {
    times: TokenTimes,
    /// The rate for experts that are not on the card.
    far_bytes_per_s: f64,
    streamed_layer_s: f64,
}

/// The measured costs of prompts.
struct PromptCosts {
    near: PromptRates,
    far_bytes_per_s: f64,
}

impl GpuTrial<'_> {
    /// Returns a builder for a model with at most `memory_bytes` on the card.
    fn builder(&self, model: &TrialModel, memory_bytes: Option<u64>) -> Result<EngineBuilder> {
        let maker = GpuMaker::new(Arc::clone(self.gpu), memory_bytes).staging_f16();
        let [.., longest] = PROMPTS_OF_GPU;
        Ok(model.builder()?.configure(|config| {
            config.device = Some(Arc::new(maker) as Arc<dyn DeviceMaker>);
            config.n_rows_max = NonZeroUsize::new(longest);
        }))
    }

    /// Returns the memory for everything that an engine puts on the card except experts, and for a
    /// share of the experts.
    fn few_bytes(&self, engine: &Engine, needs: &Needs) -> u64 {
        let overhead_bytes = (64 << 20) - room_for_models(64 << 20);
        fixed_bytes(engine) + needs.experts_bytes() / NEAR_SHARE + overhead_bytes
    }

    /// Measures a token with all of a model on the card.
    fn token(&self, shape: TrialShape) -> Result<TokenSample> {
        let model = TrialModel::write(shape, self.interrupt)?;
        let engine = self.builder(&model, None)?.load()?;
        TokenSample::of(&model, &engine, self.interrupt)
    }

    fn answers(&self, shallow: &TokenSample, large: &TokenSample) -> Result<AnswerCosts> {
        let model = TrialModel::write(DEEP, self.interrupt)?;
        let engine = self.builder(&model, None)?.load()?;
        let deep = TokenSample::of(&model, &engine, self.interrupt)?;
        let memory_bytes = self.few_bytes(&engine, &model.needs);
        drop(engine);
        let times = TokenTimes::of(shallow, &deep, large);
        if !self.sees_host {
            let far_bytes_per_s = times.bytes_per_s;
            return Ok(AnswerCosts { times, far_bytes_per_s, streamed_layer_s: 0.0 });
        }
        let (far_s, near_share) = {
            let engine = self.builder(&model, Some(memory_bytes))?.load()?;
            let far_s = TrialRun::new(&engine, self.interrupt)?.answer_s()?;
            (far_s, near_share(&engine))
        };
        let far_bytes = (1.0 - near_share) * float(model.needs.routed_bytes());
        let more_s = (far_s - deep.s).max(0.0);
        let far_bytes_per_s = far_bytes / (more_s + far_bytes / times.bytes_per_s).max(1e-9);
        let streamed_layer_s = self.streamed_layer_s(&model, memory_bytes, far_s)?;
        Ok(AnswerCosts { times, far_bytes_per_s, streamed_layer_s })
    }

    /// Measures the additional time per layer when its experts are streamed.
    fn streamed_layer_s(&self, model: &TrialModel, memory_bytes: u64, far_s: f64) -> Result<f64> {
        // All but one expert have a slot, so little is read and its time is known.
        let n_experts = usize::try_from(model.needs.n_experts()).unwrap_or(usize::MAX);
        let engine = self.builder(model, Some(memory_bytes))?;
        let engine = engine
            .configure(|config| config.streaming.n_slots_max = Some(n_experts.saturating_sub(1)))
            .load()?;
        let mut run = TrialRun::new(&engine, self.interrupt)?;
        run.answer_s()?;
        let (before, n_before) = (engine.stream_stats(), run.n_drawn);
        let streamed_s = run.answer_s()?;
        let waited =
            engine.stream_stats().zip(before).map(|(now, before)| now.since(&before).read_wait);
        let n_tokens = float(run.n_drawn - n_before);
        let waited_s = waited.map_or(0.0, |it| it.as_secs_f64()) / n_tokens;
        Ok((streamed_s - waited_s - far_s).max(0.0) / float(model.needs.n_layers))
    }

    fn prompts(&self) -> Result<PromptCosts> {
        let model = TrialModel::write(MANY, self.interrupt)?;
        let needs = &model.needs;
        let engine = self.builder(&model, None)?.load()?;
        let near_s = TrialRun::new(&engine, self.interrupt)?.prompts_s(PROMPTS_OF_GPU)?;
        let memory_bytes = self.few_bytes(&engine, needs);
        drop(engine);
        let near = prompt_rates(needs, PROMPTS_OF_GPU, near_s, f64::INFINITY);
        if !self.sees_host {
            let far_bytes_per_s = near.bytes_per_s;
            return Ok(PromptCosts { near, far_bytes_per_s });
        }
        let engine = self.builder(&model, Some(memory_bytes))?.load()?;
        let far_s = TrialRun::new(&engine, self.interrupt)?.prompts_s(PROMPTS_OF_GPU)?;
        let n_prompts = float(PROMPTS_OF_GPU.len() as u64);
        let far_bytes = n_prompts * (1.0 - near_share(&engine)) * float(needs.experts_bytes());
        let more_s = far_s.iter().sum::<f64>() - near_s.iter().sum::<f64>();
        // Noise may make far experts appear free, or absent.
        let most = near.bytes_per_s;
        let is_known = far_bytes > 0.0 && far_bytes / most < more_s;
        Ok(PromptCosts { near, far_bytes_per_s: if is_known { far_bytes / more_s } else { most } })
    }
}

/// Returns the share of used experts that were on the card.
fn near_share(engine: &Engine) -> f64 {
    engine.tier_stats().as_ref().and_then(crate::stats::tiers::near_share).unwrap_or(0.0)
}

/// Returns the memory that a model takes on the GPU besides experts.
fn fixed_bytes(engine: &Engine) -> u64 {
    let memory = engine.memory();
    memory.resident_bytes
        + step_bytes(memory.workspace_bytes)
        + 2 * memory.session_fixed_bytes
        + memory.session_bytes_per_position * CONTEXT.next_multiple_of(1024) as u64
}

/// A token of an answer: the layers and bytes of the model that it uses, and its time.
#[derive(Clone, Copy, Debug)]
struct TokenSample {
    n_layers: f64,
    n_bytes: f64,
    s: f64,
}

impl TokenSample {
    fn of(model: &TrialModel, engine: &Engine, interrupt: &Interrupt) -> Result<Self> {
        let mut run = TrialRun::new(engine, interrupt)?;
        run.wake(GPU_WAKES_WITHIN)?;
        let n_layers = float(model.needs.n_layers);
        Ok(Self { n_layers, n_bytes: model.token_bytes(), s: run.answer_s()? })
    }
}

/// The components of a token's time.
#[derive(Clone, Copy, Debug)]
struct TokenTimes {
    step_s: f64,
    layer_s: f64,
    bytes_per_s: f64,
}

impl TokenTimes {
    /// Solves for the components, given models of one width and two depths and a wider one.
    fn of(shallow: &TokenSample, deep: &TokenSample, wide: &TokenSample) -> Self {
        let each_s = (deep.s - shallow.s) / (deep.n_layers - shallow.n_layers);
        // Noise may make a token or a layer appear to cost nothing, or everything.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-6, "{found}, not {expected}");
    }

    #[test]
    fn answer_times_are_split_into_their_parts() {
        // 100 us a token, 50 us a layer and 400 GB/s.
        let token = |n_layers: f64, n_bytes: f64| TokenSample {
            n_layers,
            n_bytes,
            s: 1e-4 + n_layers * 5e-5 + n_bytes / 4e11,
        };
        let times = TokenTimes::of(&token(2.0, 6e7), &token(12.0, 36e7), &token(2.0, 2.5e8));
        check_near(times.step_s, 1e-4);
        check_near(times.layer_s, 5e-5);
        check_near(times.bytes_per_s, 4e11);
        // A token and a layer that cost nothing.
        let token =
            |n_layers: f64, n_bytes: f64| TokenSample { n_layers, n_bytes, s: n_bytes / 4e11 };
        let times = TokenTimes::of(&token(2.0, 6e7), &token(12.0, 36e7), &token(2.0, 2.5e8));
        assert!(times.step_s < 1e-9 && times.layer_s < 1e-9, "{times:?}");
        check_near(times.bytes_per_s, 4e11);
    }
}
