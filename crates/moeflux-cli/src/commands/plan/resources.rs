//! The machine as input of a forecast: memory as the engine divides it, and ranges of rates.
//!
//! **Invariant:** independent of models; the width of a rate's range follows from its source.

use std::num::NonZeroUsize;

use moeflux::provider::backend::Backend;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::budget::{Host, MemoryLayout};
use moeflux::provider::config::{
    BackendKind, DeviceMaker, DeviceParts, EngineConfig, StreamingConfig,
};
use moeflux::provider::text::tokenizer_bytes;
use moeflux::{Arithmetic, Budget, Error, Result};

use crate::system::compute_profile::ComputeProfile;
use crate::system::network::Cluster;

/// The bounds of the error of a rate, as factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Certainty {
    low: f64,
    high: f64,
}

/// For measured compute rates: the spread between models of different shapes, and from one hour to
/// the next (`benches/record/plan.md`).
pub(crate) const MEASURED: Certainty = Certainty { low: 0.78, high: 1.15 };

/// For compute rates that are guessed from the kernels.
pub(crate) const ASSUMED: Certainty = Certainty { low: 0.5, high: 1.5 };

/// Additional factors for prompts on a card: small matrices were up to 1.02 times as fast as the
/// range allows.
const CARD_PROMPTS: Certainty = Certainty { low: 1.0, high: 1.1 };

/// Additional factors for a prompt's experts in host memory: a card reads many gigabytes there at
/// two thirds of the rate for one gigabyte (`benches/record/plan.md`).
const FAR_PROMPTS: Certainty = Certainty { low: 0.8, high: 1.0 };

/// While computing, the drive is slower, and part of its reads are wrong guesses.
const DRIVE: Certainty = Certainty { low: 0.68, high: 1.0 };

/// A rate and the bounds of its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Uncertain<T> {
    pub(crate) value: T,
    pub(crate) certainty: Certainty,
}

/// A card next to the CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CardResources {
    pub(crate) room_bytes: u64,
    pub(crate) sees_host: bool,
}

/// The resources of a machine: memory, and the rates of its devices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resources {
    pub(crate) host: Host,
    pub(crate) budget: Budget,
    /// The card that computes, if it is not the CPU.
    pub(crate) card: Option<CardResources>,
    /// The rates of the computing device.
    pub(crate) profile: Uncertain<ComputeProfile>,
    /// Bytes per second.
    pub(crate) drive: Uncertain<f64>,
    /// Bytes per second of the memory that holds the sessions.
    pub(crate) memory_bytes_per_s: f64,
    /// Set if the machine is one of several.
    pub(crate) cluster: Option<Cluster>,
}

/// One end of all ranges: the lowest or the highest of each rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RangeEnd {
    pub(super) is_low: bool,
    pub(super) profile: ComputeProfile,
    pub(super) drive_bytes_per_s: f64,
    pub(super) session_bytes_per_s: f64,
}

impl Uncertain<f64> {
    /// A drive's rate.
    pub(crate) const fn of_drive(value: f64) -> Self {
        Self { value, certainty: DRIVE }
    }
}

impl Resources {
    /// Returns whether a card computes.
    pub(super) fn is_on_card(&self) -> bool {
        self.card.is_some()
    }

    /// Returns the same machine with another budget, regardless of the memory available.
    pub(super) fn with_budget(&self, n_bytes: u64) -> Self {
        let host = Host { available_bytes: None, ..self.host };
        Self { host, budget: Budget::Bytes(n_bytes), ..self.clone() }
    }

    pub(super) fn low(&self) -> RangeEnd {
        self.end(true)
    }

    pub(super) fn high(&self) -> RangeEnd {
        self.end(false)
    }

    fn end(&self, is_low: bool) -> RangeEnd {
        let factor = |it: Certainty| if is_low { it.low } else { it.high };
        let of_profile = factor(self.profile.certainty);
        let session_bytes_per_s = if self.is_on_card() {
            self.profile.value.answer_bytes_per_s
        } else {
            self.memory_bytes_per_s
        };
        let mut profile = self.profile.value.times(of_profile);
        if self.is_on_card() {
            let of_prompts = factor(CARD_PROMPTS);
            profile.prompt_bytes_per_s *= of_prompts;
            profile.prompt_operations_per_s *= of_prompts;
            profile.prompt_float_operations_per_s *= of_prompts;
            profile.far_prompt_bytes_per_s *= factor(FAR_PROMPTS);
        }
        RangeEnd {
            is_low,
            profile,
            drive_bytes_per_s: self.drive.value * factor(self.drive.certainty),
            session_bytes_per_s: session_bytes_per_s * of_profile,
        }
    }

    /// Returns whether the engine would stream the layers of a dense model, or refuse it even then.
    pub(super) fn streams_layers(&self, blueprint: &Blueprint, context: u64) -> bool {
        let (host, config) = (self.host_with(blueprint), self.config(context));
        let chosen = MemoryLayout::choose(host, blueprint, &config);
        chosen.map_or(true, |(chosen, _)| chosen.streamed.is_none())
    }

    /// Returns how the engine would divide this memory.
    pub(super) fn layout(&self, blueprint: &Blueprint, context: u64) -> Result<MemoryLayout> {
        MemoryLayout::on(self.host_with(blueprint), blueprint, &self.config(context))
    }

    pub(super) fn least_bytes(&self, blueprint: &Blueprint, context: u64) -> Result<u64> {
        MemoryLayout::least_bytes(self.host_with(blueprint), blueprint, &self.config(context))
    }

    /// Returns the host after a model's tokenizer has been read, which happens before the model is
    /// loaded.
    pub(super) fn host_with(&self, blueprint: &Blueprint) -> Host {
        let program_bytes = self.host.program_bytes + tokenizer_bytes(blueprint.spec.vocab);
        Host { program_bytes, ..self.host }
    }

    fn config(&self, context: u64) -> EngineConfig {
        let device = self.card.map(|card| std::sync::Arc::new(PlannedCard(card)));
        EngineConfig {
            ranks: None,
            backend: BackendKind::Cpu,
            device: device.map(|it| it as std::sync::Arc<dyn DeviceMaker>),
            arithmetic: Arithmetic::Int8,
            kernels: None,
            n_threads: NonZeroUsize::MIN,
            n_rows_max: None,
            streaming: StreamingConfig {
                budget: self.budget,
                context: usize::try_from(context).unwrap_or(usize::MAX),
                ..StreamingConfig::default()
            },
        }
    }
}

/// A stand-in that reports memory and computes nothing.
#[derive(Debug)]
struct PlannedCard(CardResources);

impl DeviceMaker for PlannedCard {
    fn room_bytes(&self) -> Option<u64> {
        Some(moeflux_gpu::maker::room_for_models(self.0.room_bytes))
    }

    fn sees_host(&self) -> bool {
        self.0.sees_host
    }

    fn make(&self, _: &DeviceParts<'_>) -> Result<Box<dyn Backend>> {
        Err(Error::Unsupported("a card that is planned computes nothing".to_owned()))
    }
}
