//! The figures of the machine: as given by the user, as measured by `moeflux doctor`, or assumed.
//!
//! **Invariant:** every figure carries its source. Nothing is measured here, so that a plan answers
//! at once.

use std::num::NonZeroUsize;

use moeflux::provider::budget::Host;
use moeflux::{Budget, ByteCount};
use moeflux_gpu::adapter::room_of_card;

use super::cards::{KnownCard, usual_bytes_per_s};
use super::resources::{ASSUMED, CardResources, MEASURED, Resources, Uncertain};
use crate::model::needs::float;
use crate::output::size::binary;
use crate::system::compute_profile::ComputeProfile;
use crate::system::machine;
use crate::system::measurements::{MeasuredCard, MeasuredRate, Measurements};
use crate::system::network::Cluster;

/// The rate of an unknown drive: that of a usual laptop.
const DRIVE_GBPS: f64 = 3.0;

/// The rate of unknown memory: two channels of DDR5-5600 reach 60 to 70 % of 90 GB/s.
const MEMORY_GBPS: f64 = 60.0;

/// The fraction of a card's stated memory rate that answers reach: an H100 reaches a third of its
/// 3,350 GB/s, because it waits for each of many small products; a card with slower memory waits
/// less. The range of an assumed rate spans half of this fraction to one and a half times it.
const SHARE_OF_CARD: f64 = 0.6;

/// The fractions of a link's rate at which answers and prompts read host memory: an H100 reads 46
/// and 23 to 35 of 63 GB/s (`benches/record/plan.md`).
const SHARE_OF_LINK: f64 = 0.7;
const SHARE_OF_LINK_FOR_PROMPTS: f64 = 0.5;

/// The link of an unknown GPU to host memory: PCIe 4 with 16 lanes.
const LINK_GBPS: f64 = 31.5;

/// Operations per second and core, in 10^9, that prompts of a 2 GB model reached with these kernels
/// on two cores of a server (`benches/record/cpu.md`), or a guess from their width; then the figure
/// for floating-point weights and attention.
const GOPS_PER_CORE: [(&str, f64, f64); 7] = [
    ("amx", 430.0, 60.0),
    ("avx512vnni", 200.0, 60.0),
    ("avx512", 165.0, 60.0),
    ("avxvnni", 165.0, 35.0),
    ("avx2", 165.0, 35.0),
    ("i8mm", 150.0, 25.0),
    ("dotprod", 80.0, 25.0),
];

/// For scalar code, or plain NEON.
const GOPS_PER_CORE_OTHERWISE: (f64, f64) = (20.0, 10.0);

/// The fraction of the memory rate at which answers read weights.
const SHARE_OF_MEMORY: f64 = 0.8;

/// Upper bound on the weights that one core reads for answers, in 10^9 bytes per second.
const GBPS_PER_CORE: f64 = 18.0;

/// Operations of prompts for each byte that answers read: an H100 has 35 to 50. A card without
/// half-precision matrices has fewer; no such card was measured.
const GPU_OPERATIONS_PER_BYTE: f64 = 25.0;
const GPU_OPERATIONS_PER_BYTE_WITHOUT_MATRICES: f64 = 15.0;

/// The fixed costs on a GPU, besides reading, of a token of an answer, of a layer, and of a layer
/// whose experts are streamed.
const GPU_STEP_S: f64 = 200e-6;
const GPU_LAYER_S: f64 = 60e-6;
const GPU_STREAMED_LAYER_S: f64 = 500e-6;

/// Lower bound on a process's own memory: commands that run a model use more when they open it than
/// a plan does, 11 to 13 MB.
const PROGRAM_BYTES: u64 = 16 << 20;

/// Memory that a GPU's driver takes in the process: llvmpipe 63 to 79 MB; others were not measured.
const DRIVER_BYTES: u64 = 80 << 20;

/// The user's description of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MachineOverrides {
    /// Its total memory.
    pub(crate) ram_bytes: Option<u64>,
    /// The memory that the process may use.
    pub(crate) budget_bytes: Option<u64>,
    pub(crate) drive_gbps: Option<f64>,
    pub(crate) memory_gbps: Option<f64>,
    pub(crate) n_cores: Option<NonZeroUsize>,
    /// Over all cores.
    pub(crate) gops: Option<f64>,
    /// `None` differs from 0: it stands for the GPU of this machine.
    pub(crate) gpu_bytes: Option<u64>,
    pub(crate) gpu_gbps: Option<f64>,
    /// A card given by name.
    pub(crate) gpu: Option<&'static KnownCard>,
    /// The machines of this kind that run the model together, if there are several.
    pub(crate) cluster: Option<Cluster>,
}

/// A figure and its source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) source: String,
}

/// A computing device, and the sources of its rates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeviceEstimate {
    pub(crate) profile: Uncertain<ComputeProfile>,
    /// For answers.
    pub(crate) source: String,
    /// For prompts.
    pub(crate) prompts_source: String,
}

/// A GPU in a plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanCard {
    pub(crate) resources: CardResources,
    pub(crate) estimate: DeviceEstimate,
    /// Whether it was explicitly requested; otherwise it is used only if the whole model fits.
    pub(crate) is_requested: bool,
    /// The vendor's figures, if the card was given by name.
    pub(crate) known: Option<&'static KnownCard>,
    /// Text after the rates of its memory and of host memory that marks guesses.
    pub(crate) guesses: &'static str,
}

/// The machine of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanMachine {
    pub(crate) host: Host,
    pub(crate) budget: Budget,
    budget_source: &'static str,
    pub(crate) drive: Figure,
    pub(crate) memory: Figure,
    /// Reservations about the figures.
    pub(crate) doubts: Vec<String>,
    pub(crate) cpu: DeviceEstimate,
    pub(crate) card: Option<PlanCard>,
    /// Set if several machines run the model.
    pub(crate) cluster: Option<Cluster>,
}

impl PlanMachine {
    /// Returns this machine, with the user's changes. `drive_key` identifies the drive of a model's
    /// folder.
    pub(crate) fn here(
        overrides: &MachineOverrides,
        measured: &Measurements,
        drive_key: Option<&str>,
    ) -> Self {
        let here = Host::here();
        let here = Host { program_bytes: here.program_bytes.max(PROGRAM_BYTES), ..here };
        let (host, budget, budget_source) = match (overrides.budget_bytes, overrides.ram_bytes) {
            // Another machine may have more memory than this one.
            (Some(bytes), _) => {
                (Host { available_bytes: None, ..here }, Budget::Bytes(bytes), "from --memory")
            }
            (None, Some(bytes)) => {
                (Host { available_bytes: Some(bytes), ..here }, Budget::Auto, "from --ram")
            }
            (None, None) => (here, Budget::Auto, "available on this machine now"),
        };
        let memory = figure(overrides.memory_gbps, "--mem-gbps", measured.memory(), MEMORY_GBPS);
        Self {
            doubts: doubts(overrides, measured, drive_key),
            host,
            budget,
            budget_source,
            drive: figure(
                overrides.drive_gbps,
                "--disk-gbps",
                measured.drive(drive_key),
                DRIVE_GBPS,
            ),
            cpu: cpu(overrides, measured, &memory),
            // Ranks compute on their CPUs.
            card: card(overrides, measured).filter(|_| overrides.cluster.is_none()),
            cluster: overrides.cluster,
            memory,
        }
    }

    /// Returns the same machine without the others.
    pub(crate) fn alone(&self) -> Self {
        Self { cluster: None, ..self.clone() }
    }

    /// Returns the input of a forecast for the CPU.
    pub(crate) fn of_cpu(&self) -> Resources {
        Resources {
            host: self.host,
            budget: self.budget,
            card: None,
            profile: self.cpu.profile,
            drive: Uncertain::of_drive(self.drive.value),
            memory_bytes_per_s: self.memory.value,
            cluster: self.cluster,
        }
    }

    /// Returns the input of a forecast for the card.
    pub(crate) fn of_card(&self, card: &PlanCard) -> Resources {
        let program_bytes = self.host.program_bytes + DRIVER_BYTES;
        let host = Host { program_bytes, ..self.host };
        Resources {
            host,
            card: Some(card.resources),
            profile: card.estimate.profile,
            ..self.of_cpu()
        }
    }

    /// Returns the memory, if it is known.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        match self.budget {
            Budget::Bytes(n_bytes) => Some(n_bytes),
            Budget::Auto => self.host.available_bytes,
        }
    }

    /// Returns the source of that figure.
    pub(crate) fn memory_source(&self) -> &'static str {
        self.budget_source
    }

    /// Returns whether this is a machine's whole memory, part of which is left to other programs.
    pub(crate) fn leaves_a_part(&self) -> bool {
        self.budget == Budget::Auto
    }

    /// Describes the memory as text.
    pub(crate) fn memory_text(&self) -> String {
        let Some(bytes) = self.memory_bytes() else {
            return "unknown: this system does not report it; give --ram SIZE".to_owned();
        };
        let left = if self.leaves_a_part() { "; 1/16 is left for other programs" } else { "" };
        let (rounded, source) = (ByteCount(bytes).rounded(), self.budget_source);
        format!("{rounded} ({}), {source}{left}", binary(bytes))
    }
}

/// A rate below the usual one divided by this is doubtful rather than slow: old laptops reach a
/// third.
const DOUBTFUL_SHARE: f64 = 5.0;

/// Lists reservations about measured figures that affect the plan.
fn doubts(
    overrides: &MachineOverrides,
    measured: &Measurements,
    drive_key: Option<&str>,
) -> Vec<String> {
    let kernels = moeflux_kernels::best().name();
    let cpu = measured.cpu(kernels);
    let is_doubtful = |rate: Option<MeasuredRate>| rate.is_some_and(|it| it.is_doubtful);
    let of_card = measured.card().is_some_and(|it| it.computing.is_doubtful);
    let parts = [
        ("memory", overrides.memory_gbps.is_none() && is_doubtful(measured.memory())),
        ("the drive", overrides.drive_gbps.is_none() && is_doubtful(measured.drive(drive_key))),
        ("the CPU", cpu.as_ref().is_some_and(|it| it.is_doubtful)),
        ("the GPU", overrides.gpu_bytes.is_none() && overrides.gpu.is_none() && of_card),
    ];
    let parts: Vec<&str> = parts.iter().filter(|(_, is)| *is).map(|(part, _)| *part).collect();
    let mut doubts = Vec::new();
    if !parts.is_empty() {
        doubts.push(format!(
            "the figures of {} are too low, as the machine was busy when `moeflux doctor` measured \
             them; it replaces them when the machine is idle",
            parts.join(", ")
        ));
    }
    let usual = assumed_cpu(kernels, float(machine::n_cores().get() as u64), MEMORY_GBPS * 1e9);
    let slowest = cpu.map(|it| {
        let answers = usual.answer_bytes_per_s / it.profile.answer_bytes_per_s;
        answers.max(usual.prompt_operations_per_s / it.profile.prompt_operations_per_s)
    });
    doubts.extend(slowest.filter(|times| *times > DOUBTFUL_SHARE).map(|times| {
        format!(
            "the measured CPU rate is {times:.0} times lower than usual for its cores; if \
             the machine was busy then, `moeflux doctor` measures again, and `moeflux doctor \
             --forget` removes the figures"
        )
    }));
    doubts
}

impl PlanCard {
    /// Returns the text before the number of bytes that a model may use.
    pub(crate) fn allowed_by(&self) -> String {
        match self.known {
            Some(known) if self.resources.room_bytes == room_of_card(known.memory_bytes()) => {
                format!("the {} has room for", known.name)
            }
            _ => "--gpu-memory allows".to_owned(),
        }
    }
}

/// Returns the CPU as measured, or estimated from the memory rate and the kernels. An explicit
/// number of cores, or explicit rates, describe another machine.
fn cpu(overrides: &MachineOverrides, measured: &Measurements, memory: &Figure) -> DeviceEstimate {
    let kernels = moeflux_kernels::best().name();
    let n_here = float(machine::n_cores().get() as u64);
    let n_cores = overrides.n_cores.map_or(n_here, |it| float(it.get() as u64));
    let known = measured.cpu(kernels);
    let is_measured = known.is_some();
    let (profile, mut source) = match known {
        Some(known) => {
            let profile = scaled(&known.profile, n_cores / n_here, memory.value);
            (profile, format!("measured by {}", known.when()))
        }
        None => (
            assumed_cpu(kernels, n_cores, memory.value),
            "assumed: `moeflux doctor` measures it".to_owned(),
        ),
    };
    if overrides.n_cores.is_some() {
        source = format!("{source}, for {n_cores} cores");
    }
    let (mut profile, mut prompts_source) = (profile, source.clone());
    if let Some(gops) = overrides.gops {
        let factor = gops * 1e9 / profile.prompt_operations_per_s;
        profile.prompt_operations_per_s *= factor;
        profile.prompt_float_operations_per_s *= factor;
        profile.prompt_bytes_per_s *= factor;
        prompts_source = "from --gops".to_owned();
    }
    if overrides.memory_gbps.is_some() {
        let limit = SHARE_OF_MEMORY * memory.value;
        profile.answer_bytes_per_s = limit.min(n_cores * GBPS_PER_CORE * 1e9);
        profile.answer_float_bytes_per_s = profile.answer_bytes_per_s;
        profile.answer_plain_bytes_per_s = profile.answer_bytes_per_s;
        source = "from --mem-gbps".to_owned();
    }
    let certainty = if is_measured { MEASURED } else { ASSUMED };
    DeviceEstimate { profile: Uncertain { value: profile, certainty }, source, prompts_source }
}

/// Scales a profile by the number of cores, up to the limit of the memory rate.
fn scaled(profile: &ComputeProfile, factor: f64, memory_bytes_per_s: f64) -> ComputeProfile {
    let wanted = profile.times(factor);
    let limit = |it: f64, now: f64| it.min(memory_bytes_per_s.max(now));
    ComputeProfile {
        answer_bytes_per_s: limit(wanted.answer_bytes_per_s, profile.answer_bytes_per_s),
        answer_float_bytes_per_s: limit(
            wanted.answer_float_bytes_per_s,
            profile.answer_float_bytes_per_s,
        ),
        answer_plain_bytes_per_s: limit(
            wanted.answer_plain_bytes_per_s,
            profile.answer_plain_bytes_per_s,
        ),
        ..wanted
    }
}

fn assumed_cpu(kernels: &str, n_cores: f64, memory_bytes_per_s: f64) -> ComputeProfile {
    let known = GOPS_PER_CORE.iter().find(|(name, ..)| *name == kernels);
    let (codes, floats) =
        known.map_or(GOPS_PER_CORE_OTHERWISE, |(_, codes, floats)| (*codes, *floats));
    let answers = (SHARE_OF_MEMORY * memory_bytes_per_s).min(n_cores * GBPS_PER_CORE * 1e9);
    ComputeProfile {
        answer_bytes_per_s: answers,
        answer_float_bytes_per_s: answers,
        answer_plain_bytes_per_s: answers,
        step_s: 0.0,
        layer_s: 0.0,
        streamed_layer_s: 0.0,
        prompt_bytes_per_s: answers,
        prompt_operations_per_s: codes * 1e9 * n_cores,
        prompt_float_operations_per_s: floats * 1e9 * n_cores,
        far_bytes_per_s: answers,
        far_prompt_bytes_per_s: answers,
    }
}

/// Returns the requested GPU, or that of this machine; `None` if another machine is described.
fn card(overrides: &MachineOverrides, measured: &Measurements) -> Option<PlanCard> {
    let known = overrides.gpu;
    // A card given by name is this machine's only if the names match.
    let is_named =
        |card: &MeasuredCard| known.is_none_or(|known| known.is_called(&card.computing.name));
    let here = measured.card().filter(is_named);
    let is_here = overrides.ram_bytes.is_none() && overrides.n_cores.is_none();
    let (room_bytes, is_requested) = match (overrides.gpu_bytes, known, &here) {
        (Some(0), _, _) => return None,
        (Some(n_bytes), _, _) => (n_bytes, true),
        (None, Some(_), Some(here)) => (here.room_bytes, true),
        (None, Some(known), None) => (room_of_card(known.memory_bytes()), true),
        (None, None, Some(here)) if is_here && here.is_for_auto => (here.room_bytes, false),
        (None, None, _) => return None,
    };
    let sees_host = here.as_ref().is_none_or(|here| here.sees_host);
    let guesses = match (overrides.gpu_gbps, &here) {
        (None, Some(_)) => "",
        (None, None) => ", both assumed",
        (Some(_), _) => " (this one is assumed)",
    };
    let estimate = card_estimate(overrides, room_bytes, here);
    let resources = CardResources { room_bytes, sees_host };
    Some(PlanCard { resources, estimate, is_requested, known, guesses })
}

fn card_estimate(
    overrides: &MachineOverrides,
    room_bytes: u64,
    here: Option<MeasuredCard>,
) -> DeviceEstimate {
    if let (None, Some(MeasuredCard { computing, .. })) = (overrides.gpu_gbps, here) {
        let profile = Uncertain { value: computing.profile, certainty: MEASURED };
        let source = format!("{}, measured by {}", computing.name, computing.when());
        return DeviceEstimate { profile, prompts_source: source.clone(), source };
    }
    let (bytes_per_s, source) = match (overrides.gpu_gbps, overrides.gpu) {
        (Some(gbps), _) => (gbps * 1e9, "from --gpu-gbps".to_owned()),
        (None, Some(known)) => (SHARE_OF_CARD * known.memory_bytes_per_s(), known.text()),
        (None, None) => (
            SHARE_OF_CARD * usual_bytes_per_s(room_bytes),
            "as for usual cards of this size: --gpu NAME or --gpu-gbps is more precise, \
             `moeflux doctor` measures one"
                .to_owned(),
        ),
    };
    let profile = assumed_card(bytes_per_s, overrides.gpu);
    DeviceEstimate {
        profile: Uncertain { value: profile, certainty: ASSUMED },
        prompts_source: source.clone(),
        source,
    }
}

fn assumed_card(bytes_per_s: f64, known: Option<&KnownCard>) -> ComputeProfile {
    let per_byte = match known {
        Some(known) if !known.has_matrices => GPU_OPERATIONS_PER_BYTE_WITHOUT_MATRICES,
        _ => GPU_OPERATIONS_PER_BYTE,
    };
    let link = known.map_or(LINK_GBPS * 1e9, |known| known.link.bytes_per_s());
    ComputeProfile {
        answer_bytes_per_s: bytes_per_s,
        answer_float_bytes_per_s: bytes_per_s,
        answer_plain_bytes_per_s: bytes_per_s,
        step_s: GPU_STEP_S,
        layer_s: GPU_LAYER_S,
        streamed_layer_s: GPU_STREAMED_LAYER_S,
        prompt_bytes_per_s: bytes_per_s,
        prompt_operations_per_s: per_byte * bytes_per_s,
        prompt_float_operations_per_s: per_byte * bytes_per_s,
        far_bytes_per_s: SHARE_OF_LINK * link,
        far_prompt_bytes_per_s: SHARE_OF_LINK_FOR_PROMPTS * link,
    }
}

fn figure(
    given: Option<f64>,
    option: &str,
    measured: Option<MeasuredRate>,
    assumed_gbps: f64,
) -> Figure {
    match (given, measured) {
        (Some(gbps), _) => Figure { value: gbps * 1e9, source: format!("from {option}") },
        (None, Some(rate)) => {
            let of = if rate.of.is_empty() { String::new() } else { format!(" of {}", rate.of) };
            let source = format!("measured{of} by {}", rate.when());
            Figure { value: rate.bytes_per_s, source }
        }
        (None, None) => Figure {
            value: assumed_gbps * 1e9,
            source: format!("assumed: `moeflux doctor` measures it, {option} sets it"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_figures_precede_measured_and_measured_precede_assumed() {
        let rate = || {
            Some(MeasuredRate {
                bytes_per_s: 2e9,
                of: "/dev/x ext4".into(),
                age_s: 7300,
                is_doubtful: false,
            })
        };
        let check = |figure: Figure, value: f64, words: &str| {
            assert!((figure.value - value).abs() < 1.0, "{figure:?}");
            assert_eq!(figure.source, words);
        };
        check(figure(Some(1.5), "--disk-gbps", rate(), 3.0), 1.5e9, "from --disk-gbps");
        let words = "measured of /dev/x ext4 by `moeflux doctor` 2 hours ago";
        check(figure(None, "--disk-gbps", rate(), 3.0), 2e9, words);
        let words = "assumed: `moeflux doctor` measures it, --disk-gbps sets it";
        check(figure(None, "--disk-gbps", None, 3.0), 3e9, words);
    }

    #[test]
    fn every_table_of_kernels_has_a_rate() {
        let rate = |kernels: &str| assumed_cpu(kernels, 2.0, 60e9).prompt_operations_per_s;
        for table in moeflux_kernels::available() {
            assert!(rate(table.name()) > 1e9, "{}", table.name());
        }
        assert!(rate("amx") > rate("avx2"));
    }

    #[test]
    fn more_cores_compute_more_and_read_as_much_as_memory_gives() {
        let profile = assumed_cpu("avx2", 2.0, 60e9);
        let more = scaled(&profile, 4.0, 60e9);
        assert!(
            (more.prompt_operations_per_s / profile.prompt_operations_per_s - 4.0).abs() < 1e-9
        );
        assert!((more.answer_bytes_per_s - 60e9).abs() < 1.0, "{more:?}");
        assert!(scaled(&profile, 0.5, 60e9).answer_bytes_per_s < profile.answer_bytes_per_s);
    }

    #[test]
    fn cores_and_gops_describe_another_machine() {
        let none = Measurements::default();
        let operations = |overrides: &MachineOverrides| {
            PlanMachine::here(overrides, &none, None).cpu.profile.value.prompt_operations_per_s
        };
        let cores =
            |n| MachineOverrides { n_cores: NonZeroUsize::new(n), ..MachineOverrides::default() };
        assert!((operations(&cores(32)) / operations(&cores(8)) - 4.0).abs() < 1e-9);
        let overrides = MachineOverrides { gops: Some(750.0), ..cores(8) };
        assert!((operations(&overrides) - 7.5e11).abs() < 1.0);
    }

    #[test]
    fn a_gpu_counts_if_it_is_given_or_was_measured() {
        let none = Measurements::default();
        let card = |overrides: &MachineOverrides| PlanMachine::here(overrides, &none, None).card;
        assert_eq!(card(&MachineOverrides::default()), None);
        assert_eq!(
            card(&MachineOverrides { gpu_bytes: Some(0), ..MachineOverrides::default() }),
            None
        );
        let requested =
            card(&MachineOverrides { gpu_bytes: Some(24 << 30), ..MachineOverrides::default() })
                .unwrap();
        assert!(
            requested.is_requested
                && requested.resources.room_bytes == 24 << 30
                && requested.resources.sees_host
        );
        let machine = PlanMachine::here(&MachineOverrides::default(), &none, None);
        let program_bytes = |resources: Resources| resources.host.program_bytes;
        let [with, without] = [machine.of_card(&requested), machine.of_cpu()].map(program_bytes);
        assert_eq!(with - without, 80 << 20, "its driver");
    }
}
