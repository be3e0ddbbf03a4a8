//! What a machine gives to a forecast: memory as the engine divides it, and rates from slow to
//! fast.
//!
//! **Invariant:** knows no model; how wide a rate's range is follows from where it is from.

use std::num::NonZeroUsize;

use moeflux::provider::backend::Backend;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::budget::{Host, Layout};
use moeflux::provider::config::{
    BackendKind, DeviceMaker, DeviceParts, EngineConfig, StreamingConfig,
};
use moeflux::provider::text::tokenizer_bytes;
use moeflux::{Arithmetic, Budget, Error, Result};

use crate::network::Job;
use crate::pace::Pace;

/// How far off a rate may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Certainty {
    low: f64,
    high: f64,
}

/// Of a computer's rates that were measured: between models of different shapes, and from one hour
/// to the next (`benches/record/plan.md`).
pub(crate) const MEASURED: Certainty = Certainty { low: 0.78, high: 1.15 };

/// Of a computer's rates that are guessed from its kernels.
pub(crate) const ASSUMED: Certainty = Certainty { low: 0.5, high: 1.5 };

/// Besides, of prompts on a card: small matrices were up to 1.02 times as fast as the range says.
const CARD_PROMPTS: Certainty = Certainty { low: 1.0, high: 1.1 };

/// Besides, of a prompt's experts in the host's memory: a card reads many gigabytes there at two
/// thirds of the rate of one (`benches/record/plan.md`).
const FAR_PROMPTS: Certainty = Certainty { low: 0.8, high: 1.0 };

/// A drive gives less beside computing, and reads experts that nobody asks for then.
const DRIVE: Certainty = Certainty { low: 0.68, high: 1.0 };

/// A rate and how far off it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Uncertain<T> {
    pub(crate) value: T,
    pub(crate) certainty: Certainty,
}

/// A card beside the CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CardGives {
    pub(crate) room_bytes: u64,
    pub(crate) sees_host: bool,
}

/// What a machine gives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gives {
    pub(crate) host: Host,
    pub(crate) budget: Budget,
    /// What computes, if not the CPU.
    pub(crate) card: Option<CardGives>,
    /// Of what computes.
    pub(crate) pace: Uncertain<Pace>,
    /// Bytes per second.
    pub(crate) drive: Uncertain<f64>,
    /// Bytes per second of the memory that sessions are in.
    pub(crate) memory_bytes_per_s: f64,
    /// Where it is one of several.
    pub(crate) job: Option<Job>,
}

/// One end of all ranges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    pub(super) is_low: bool,
    pub(super) pace: Pace,
    pub(super) drive_bytes_per_s: f64,
    pub(super) session_bytes_per_s: f64,
}

impl Uncertain<f64> {
    /// Of a drive.
    pub(crate) const fn of_drive(value: f64) -> Self {
        Self { value, certainty: DRIVE }
    }
}

impl Gives {
    /// Whether a card computes.
    pub(super) fn is_on_card(&self) -> bool {
        self.card.is_some()
    }

    /// The same with another budget, whatever this machine has.
    pub(super) fn with_budget(&self, n_bytes: u64) -> Self {
        let host = Host { available_bytes: None, ..self.host };
        Self { host, budget: Budget::Bytes(n_bytes), ..self.clone() }
    }

    pub(super) fn low(&self) -> End {
        self.end(true)
    }

    pub(super) fn high(&self) -> End {
        self.end(false)
    }

    fn end(&self, is_low: bool) -> End {
        let factor = |it: Certainty| if is_low { it.low } else { it.high };
        let of_pace = factor(self.pace.certainty);
        let session_bytes_per_s = if self.is_on_card() {
            self.pace.value.answer_bytes_per_s
        } else {
            self.memory_bytes_per_s
        };
        let mut pace = self.pace.value.times(of_pace);
        if self.is_on_card() {
            let of_prompts = factor(CARD_PROMPTS);
            pace.prompt_bytes_per_s *= of_prompts;
            pace.prompt_operations_per_s *= of_prompts;
            pace.prompt_float_operations_per_s *= of_prompts;
            pace.far_prompt_bytes_per_s *= factor(FAR_PROMPTS);
        }
        End {
            is_low,
            pace,
            drive_bytes_per_s: self.drive.value * factor(self.drive.certainty),
            session_bytes_per_s: session_bytes_per_s * of_pace,
        }
    }

    /// How the engine would divide this memory.
    pub(super) fn layout(&self, blueprint: &Blueprint, context: u64) -> Result<Layout> {
        Layout::on(self.host_with(blueprint), blueprint, &self.config(context))
    }

    pub(super) fn least_bytes(&self, blueprint: &Blueprint, context: u64) -> Result<u64> {
        Layout::least_bytes(self.host_with(blueprint), blueprint, &self.config(context))
    }

    /// The host when a model's tokenizer has been read, which is in memory before the model.
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

/// Has room, and computes nothing.
#[derive(Debug)]
struct PlannedCard(CardGives);

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
