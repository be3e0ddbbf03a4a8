//! Sampling options: what is not given comes from the model's `generation_config.json`.

use std::path::Path;

use clap::Args;
use moeflux::provider::error::{Error, Result};
use moeflux::provider::format::read_file_if_there;
use moeflux::provider::ids::TokenId;
use moeflux::provider::sample::{SamplerConfig, SamplerDefaults};

use crate::clock;
use crate::ranges;

/// How tokens are chosen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling (defaults: the model's generation_config.json)")]
pub(crate) struct SamplingArgs {
    /// Divide the logits by T; 0 always takes the most likely token
    #[arg(
        long,
        value_name = "T",
        value_parser = ranges::temperature,
        allow_negative_numbers = true
    )]
    temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Keep the most likely tokens whose probabilities add up to P
    #[arg(long, value_name = "P", value_parser = ranges::share, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens whose probability is at least P times that of the most likely one
    #[arg(long, value_name = "P", value_parser = ranges::share, allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divide the logits of tokens that occurred before by X
    #[arg(long, value_name = "X", value_parser = ranges::factor, allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Subtract X from a token's logit for each time that it occurred before
    #[arg(long, value_name = "X", value_parser = ranges::penalty, allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Subtract X from a token's logit if it occurred before
    #[arg(long, value_name = "X", value_parser = ranges::penalty, allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Consider only the last N tokens for the penalties [default: all]
    #[arg(long, value_name = "N")]
    penalty_window: Option<usize>,
    /// Add X to a token's logit; may be given several times
    #[arg(long, value_name = "ID=X", value_parser = ranges::bias, allow_hyphen_values = true)]
    logit_bias: Vec<(TokenId, f32)>,
    /// Seed for the random numbers; the same seed gives the same text [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// With --json: report log-probabilities of the chosen and the N most likely tokens
    #[arg(long, value_name = "N", value_parser = ranges::logprobs, requires = "json")]
    logprobs: Option<usize>,
}

impl SamplingArgs {
    /// The model's defaults, overridden by what was typed.
    pub(crate) fn config(&self, dir: &Path) -> Result<SamplerConfig> {
        let seed = self.seed.unwrap_or_else(seed_of_the_clock);
        let defaults = defaults_of(dir)?.config(seed);
        Ok(SamplerConfig {
            temperature: self.temp.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            penalty_window: self.penalty_window.or(defaults.penalty_window),
            logit_bias: self.logit_bias.clone(),
            seed,
            n_logprobs: self.logprobs,
        })
    }
}

/// Published ones have a few hundred bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

fn defaults_of(dir: &Path) -> Result<SamplerDefaults> {
    let path = dir.join("generation_config.json");
    let Some(bytes) = read_file_if_there(&path, CONFIG_BYTES_MAX)? else {
        return Ok(SamplerDefaults::default());
    };
    let json = serde_json::from_slice(&bytes)
        .map_err(|error| Error::malformed(&path, format!("is not JSON: {error}")))?;
    SamplerDefaults::from_generation_config(&json).map_err(|error| {
        let problem = error.to_string();
        let problem = problem.strip_prefix("generation_config.json: ").unwrap_or(&problem);
        Error::malformed(&path, problem)
    })
}

/// Few digits, so that a seed can be typed again.
fn seed_of_the_clock() -> u64 {
    u64::from(clock::nanoseconds_of_the_second())
}
