//! Sampling options: values that are not given come from the model's `generation_config.json`.

use clap::Args;
use moeflux::sample::SamplerConfig;
use moeflux::{ModelText, TokenId};

use crate::options::ranges;
use crate::system::clock;

/// How tokens are chosen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling (defaults: the model's generation_config.json; without \
                               values there, --temp 0.7 --top-p 0.95)")]
pub(crate) struct SamplingArgs {
    /// Divide the logits by T; 0 always takes the most likely token
    #[arg(
        long,
        alias = "temperature",
        value_name = "T",
        value_parser = ranges::temperature,
        allow_negative_numbers = true
    )]
    temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", value_parser = ranges::whole, allow_negative_numbers = true)]
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
    #[arg(long, value_name = "N", value_parser = ranges::whole, allow_negative_numbers = true)]
    penalty_window: Option<usize>,
    /// Add X to a token's logit; may be given several times
    #[arg(long, value_name = "ID=X", value_parser = ranges::bias, allow_hyphen_values = true)]
    logit_bias: Vec<(TokenId, f32)>,
    /// Seed for the random numbers; the same seed gives the same text [default: from the clock]
    #[arg(long, value_name = "N", value_parser = ranges::seed, allow_negative_numbers = true)]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// Returns the model's defaults, overridden by the command line.
    pub(crate) fn config(&self, text: &ModelText) -> SamplerConfig {
        let mut config = text.sampling(self.seed.unwrap_or_else(seed_of_the_clock));
        config.temperature = self.temp.unwrap_or(config.temperature);
        config.top_k = self.top_k.unwrap_or(config.top_k);
        config.top_p = self.top_p.unwrap_or(config.top_p);
        config.min_p = self.min_p.unwrap_or(config.min_p);
        config.repetition_penalty = self.repetition_penalty.unwrap_or(config.repetition_penalty);
        config.frequency_penalty = self.frequency_penalty.unwrap_or(config.frequency_penalty);
        config.presence_penalty = self.presence_penalty.unwrap_or(config.presence_penalty);
        config.penalty_window = self.penalty_window.or(config.penalty_window);
        config.logit_bias.clone_from(&self.logit_bias);
        config
    }
}

/// Returns a seed with few digits, so that it can be typed again.
fn seed_of_the_clock() -> u64 {
    u64::from(clock::nanoseconds_of_the_second())
}
