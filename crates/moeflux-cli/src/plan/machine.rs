//! What the machine gives: as told, as `moeflux doctor` measured it, or assumed.
//!
//! **Invariant:** a figure never stands without where it is from. Nothing is measured here: a plan
//! answers at once.

use std::num::NonZeroUsize;

use moeflux::provider::budget::Host;
use moeflux::{Budget, ByteCount};
use moeflux_gpu::adapter::room_of_card;

use super::cards::{KnownCard, usual_bytes_per_s};
use super::gives::{ASSUMED, CardGives, Gives, MEASURED, Uncertain};
use crate::machine;
use crate::measured::{Card, Measured, Rate};
use crate::needs::float;
use crate::network::Job;
use crate::pace::Pace;
use crate::size::binary;

/// A drive of which nothing is known: that of a usual laptop.
const DRIVE_GBPS: f64 = 3.0;

/// Memory of which nothing is known: two channels of DDR5-5600 give 60 to 70 % of 90 GB/s.
const MEMORY_GBPS: f64 = 60.0;

/// Of the rate that a vendor states for a card's memory, what answers read: an H100 reads a third
/// of its 3,350 GB/s, as it waits for each of many small products; a card with a slower memory
/// waits less. The range of what is assumed reaches from half of this share to one and a half.
const SHARE_OF_CARD: f64 = 0.6;

/// Of a link's rate, what answers and prompts read of the host's memory: an H100 reads 46 and 23
/// to 35 of 63 GB/s (`benches/record/plan.md`).
const SHARE_OF_LINK: f64 = 0.7;
const SHARE_OF_LINK_FOR_PROMPTS: f64 = 0.5;

/// What a GPU of which nothing is known reads of the host's memory: PCIe 4 with 16 lanes.
const LINK_GBPS: f64 = 31.5;

/// Operations per second and core, in 10^9, that reading a prompt of a 2 GB model reached with
/// these kernels on two cores of a server (`benches/record/cpu.md`), or a guess from their width;
/// then those of weights that are no codes, and of attention.
const GOPS_PER_CORE: [(&str, f64, f64); 7] = [
    ("amx", 430.0, 60.0),
    ("avx512vnni", 200.0, 60.0),
    ("avx512", 165.0, 60.0),
    ("avxvnni", 165.0, 35.0),
    ("avx2", 165.0, 35.0),
    ("i8mm", 150.0, 25.0),
    ("dotprod", 80.0, 25.0),
];

/// Scalar code, or NEON alone.
const GOPS_PER_CORE_OTHERWISE: (f64, f64) = (20.0, 10.0);

/// Of memory's rate, what answers read of weights.
const SHARE_OF_MEMORY: f64 = 0.8;

/// A core reads no more weights of an answer, in 10^9 bytes per second.
const GBPS_PER_CORE: f64 = 18.0;

/// Operations of prompts for each byte that answers read: an H100 has 35 to 50. Without matrices
/// of half precision a card has fewer; no such card was measured.
const GPU_OPERATIONS_PER_BYTE: f64 = 25.0;
const GPU_OPERATIONS_PER_BYTE_WITHOUT_MATRICES: f64 = 15.0;

/// What a token of an answer, a layer of it, and a layer whose experts are streamed cost a GPU
/// besides reading.
const GPU_STEP_S: f64 = 200e-6;
const GPU_LAYER_S: f64 = 60e-6;
const GPU_STREAMED_LAYER_S: f64 = 500e-6;

/// Commands that run a model have more in memory when they open it than a plan has: 11 to 13 MB.
const PROGRAM_BYTES: u64 = 16 << 20;

/// What a GPU's driver takes of the process: llvmpipe 63 to 79 MB; others were not measured.
const DRIVER_BYTES: u64 = 80 << 20;

/// What the user says of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// All of its memory.
    pub(crate) ram_bytes: Option<u64>,
    /// What the process may use.
    pub(crate) budget_bytes: Option<u64>,
    pub(crate) drive_gbps: Option<f64>,
    pub(crate) memory_gbps: Option<f64>,
    pub(crate) n_cores: Option<NonZeroUsize>,
    /// Of all cores together.
    pub(crate) gops: Option<f64>,
    /// None is not 0: without a word the GPU of this machine counts.
    pub(crate) gpu_bytes: Option<u64>,
    pub(crate) gpu_gbps: Option<f64>,
    /// A card by its name.
    pub(crate) gpu: Option<&'static KnownCard>,
    /// Machines like it that run a model together.
    pub(crate) job: Option<Job>,
}

/// A figure and where it is from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) source: String,
}

/// What computes, and where its rates are from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Computer {
    pub(crate) pace: Uncertain<Pace>,
    /// Of what answers take.
    pub(crate) source: String,
    /// Of what prompts take.
    pub(crate) prompts_source: String,
}

/// A GPU that is planned with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanCard {
    pub(crate) gives: CardGives,
    pub(crate) computer: Computer,
    /// It was asked for; otherwise it computes what fits there whole.
    pub(crate) is_told: bool,
    /// What its vendor says of it, where it was asked for by name.
    pub(crate) known: Option<&'static KnownCard>,
    /// What to say behind the rates of its memory and of the host's: which of them are guesses.
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
    /// What is to be said against the figures.
    pub(crate) doubts: Vec<String>,
    pub(crate) cpu: Computer,
    pub(crate) card: Option<PlanCard>,
    /// Machines like this one, if there are several.
    pub(crate) job: Option<Job>,
}

impl PlanMachine {
    /// This machine, but for what is told; `drive_key` names the drive of a model's folder.
    pub(crate) fn here(told: &Told, measured: &Measured, drive_key: Option<&str>) -> Self {
        let here = Host::here();
        let here = Host { program_bytes: here.program_bytes.max(PROGRAM_BYTES), ..here };
        let (host, budget, budget_source) = match (told.budget_bytes, told.ram_bytes) {
            // Another machine may have more than this one.
            (Some(bytes), _) => {
                (Host { available_bytes: None, ..here }, Budget::Bytes(bytes), "from --memory")
            }
            (None, Some(bytes)) => {
                (Host { available_bytes: Some(bytes), ..here }, Budget::Auto, "from --ram")
            }
            (None, None) => (here, Budget::Auto, "available on this machine now"),
        };
        let memory = figure(told.memory_gbps, "--mem-gbps", measured.memory(), MEMORY_GBPS);
        Self {
            doubts: doubts(told, measured, drive_key),
            host,
            budget,
            budget_source,
            drive: figure(told.drive_gbps, "--disk-gbps", measured.drive(drive_key), DRIVE_GBPS),
            cpu: cpu(told, measured, &memory),
            // Ranks compute on their CPUs.
            card: card(told, measured).filter(|_| told.job.is_none()),
            job: told.job,
            memory,
        }
    }

    /// The same without other machines.
    pub(crate) fn alone(&self) -> Self {
        Self { job: None, ..self.clone() }
    }

    /// What a forecast takes, where the CPU computes.
    pub(crate) fn of_cpu(&self) -> Gives {
        Gives {
            host: self.host,
            budget: self.budget,
            card: None,
            pace: self.cpu.pace,
            drive: Uncertain::of_drive(self.drive.value),
            memory_bytes_per_s: self.memory.value,
            job: self.job,
        }
    }

    /// The same where the card does.
    pub(crate) fn of_card(&self, card: &PlanCard) -> Gives {
        let program_bytes = self.host.program_bytes + DRIVER_BYTES;
        let host = Host { program_bytes, ..self.host };
        Gives { host, card: Some(card.gives), pace: card.computer.pace, ..self.of_cpu() }
    }

    /// What there is, if that is known.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        match self.budget {
            Budget::Bytes(n_bytes) => Some(n_bytes),
            Budget::Auto => self.host.available_bytes,
        }
    }

    /// Where that is from.
    pub(crate) fn memory_source(&self) -> &'static str {
        self.budget_source
    }

    /// Whether it is the memory of a machine, of which a part is left to others.
    pub(crate) fn leaves_a_part(&self) -> bool {
        self.budget == Budget::Auto
    }

    /// The memory, for people.
    pub(crate) fn memory_text(&self) -> String {
        let Some(bytes) = self.memory_bytes() else {
            return "unknown: this system does not report it; give --ram SIZE".to_owned();
        };
        let left = if self.leaves_a_part() { "; 1/16 is left to others" } else { "" };
        let (rounded, source) = (ByteCount(bytes).rounded(), self.budget_source);
        format!("{rounded} ({}), {source}{left}", binary(bytes))
    }
}

/// Of a CPU's usual rates, less than one part of so many is no slow machine any more: old laptops
/// have a third.
const DOUBTFUL_SHARE: f64 = 5.0;

/// What is to be said against what was measured, where that counts.
fn doubts(told: &Told, measured: &Measured, drive_key: Option<&str>) -> Vec<String> {
    let kernels = moeflux_kernels::best().name();
    let cpu = measured.cpu(kernels);
    let is_doubtful = |rate: Option<Rate>| rate.is_some_and(|it| it.is_doubtful);
    let of_card = measured.card().is_some_and(|it| it.computing.is_doubtful);
    let parts = [
        ("memory", told.memory_gbps.is_none() && is_doubtful(measured.memory())),
        ("the drive", told.drive_gbps.is_none() && is_doubtful(measured.drive(drive_key))),
        ("the CPU", cpu.as_ref().is_some_and(|it| it.is_doubtful)),
        ("the GPU", told.gpu_bytes.is_none() && told.gpu.is_none() && of_card),
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
        let answers = usual.answer_bytes_per_s / it.pace.answer_bytes_per_s;
        answers.max(usual.prompt_operations_per_s / it.pace.prompt_operations_per_s)
    });
    doubts.extend(slowest.filter(|times| *times > DOUBTFUL_SHARE).map(|times| {
        format!(
            "what was measured of the CPU is {times:.0} times less than usual for its cores; if \
             the machine was busy then, `moeflux doctor` measures again, and `moeflux doctor \
             --forget` removes the figures"
        )
    }));
    doubts
}

impl PlanCard {
    /// What says how much a model may use, before the number.
    pub(crate) fn allowed_by(&self) -> String {
        match self.known {
            Some(known) if self.gives.room_bytes == room_of_card(known.memory_bytes()) => {
                format!("the {} has room for", known.name)
            }
            _ => "--gpu-memory allows".to_owned(),
        }
    }
}

/// As measured, or by memory's rate and the kernels. A number of cores, or rates that were told,
/// describe another machine.
fn cpu(told: &Told, measured: &Measured, memory: &Figure) -> Computer {
    let kernels = moeflux_kernels::best().name();
    let n_here = float(machine::n_cores().get() as u64);
    let n_cores = told.n_cores.map_or(n_here, |it| float(it.get() as u64));
    let known = measured.cpu(kernels);
    let is_measured = known.is_some();
    let (pace, mut source) = match known {
        Some(known) => {
            let pace = scaled(&known.pace, n_cores / n_here, memory.value);
            (pace, format!("measured by {}", known.when()))
        }
        None => (
            assumed_cpu(kernels, n_cores, memory.value),
            "assumed: `moeflux doctor` measures it".to_owned(),
        ),
    };
    if told.n_cores.is_some() {
        source = format!("{source}, for {n_cores} cores");
    }
    let (mut pace, mut prompts_source) = (pace, source.clone());
    if let Some(gops) = told.gops {
        let factor = gops * 1e9 / pace.prompt_operations_per_s;
        pace.prompt_operations_per_s *= factor;
        pace.prompt_float_operations_per_s *= factor;
        pace.prompt_bytes_per_s *= factor;
        prompts_source = "from --gops".to_owned();
    }
    if told.memory_gbps.is_some() {
        let limit = SHARE_OF_MEMORY * memory.value;
        pace.answer_bytes_per_s = limit.min(n_cores * GBPS_PER_CORE * 1e9);
        pace.answer_float_bytes_per_s = pace.answer_bytes_per_s;
        pace.answer_plain_bytes_per_s = pace.answer_bytes_per_s;
        source = "from --mem-gbps".to_owned();
    }
    let certainty = if is_measured { MEASURED } else { ASSUMED };
    Computer { pace: Uncertain { value: pace, certainty }, source, prompts_source }
}

/// As many cores more or fewer give of a pace: memory has its own limit.
fn scaled(pace: &Pace, factor: f64, memory_bytes_per_s: f64) -> Pace {
    let wanted = pace.times(factor);
    let limit = |it: f64, now: f64| it.min(memory_bytes_per_s.max(now));
    Pace {
        answer_bytes_per_s: limit(wanted.answer_bytes_per_s, pace.answer_bytes_per_s),
        answer_float_bytes_per_s: limit(
            wanted.answer_float_bytes_per_s,
            pace.answer_float_bytes_per_s,
        ),
        answer_plain_bytes_per_s: limit(
            wanted.answer_plain_bytes_per_s,
            pace.answer_plain_bytes_per_s,
        ),
        ..wanted
    }
}

fn assumed_cpu(kernels: &str, n_cores: f64, memory_bytes_per_s: f64) -> Pace {
    let known = GOPS_PER_CORE.iter().find(|(name, ..)| *name == kernels);
    let (codes, floats) =
        known.map_or(GOPS_PER_CORE_OTHERWISE, |(_, codes, floats)| (*codes, *floats));
    let answers = (SHARE_OF_MEMORY * memory_bytes_per_s).min(n_cores * GBPS_PER_CORE * 1e9);
    Pace {
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

/// The GPU that was asked for, or that of this machine; none of a machine that is described.
fn card(told: &Told, measured: &Measured) -> Option<PlanCard> {
    let known = told.gpu;
    // A card that is named is not the one of this machine, unless that has its name.
    let is_named = |card: &Card| known.is_none_or(|known| known.is_called(&card.computing.name));
    let here = measured.card().filter(is_named);
    let is_here = told.ram_bytes.is_none() && told.n_cores.is_none();
    let (room_bytes, is_told) = match (told.gpu_bytes, known, &here) {
        (Some(0), _, _) => return None,
        (Some(n_bytes), _, _) => (n_bytes, true),
        (None, Some(_), Some(here)) => (here.room_bytes, true),
        (None, Some(known), None) => (room_of_card(known.memory_bytes()), true),
        (None, None, Some(here)) if is_here && here.is_for_auto => (here.room_bytes, false),
        (None, None, _) => return None,
    };
    let sees_host = here.as_ref().is_none_or(|here| here.sees_host);
    let guesses = match (told.gpu_gbps, &here) {
        (None, Some(_)) => "",
        (None, None) => ", both assumed",
        (Some(_), _) => " (this one is assumed)",
    };
    let computer = card_computer(told, room_bytes, here);
    let gives = CardGives { room_bytes, sees_host };
    Some(PlanCard { gives, computer, is_told, known, guesses })
}

fn card_computer(told: &Told, room_bytes: u64, here: Option<Card>) -> Computer {
    if let (None, Some(Card { computing, .. })) = (told.gpu_gbps, here) {
        let pace = Uncertain { value: computing.pace, certainty: MEASURED };
        let source = format!("{}, measured by {}", computing.name, computing.when());
        return Computer { pace, prompts_source: source.clone(), source };
    }
    let (bytes_per_s, source) = match (told.gpu_gbps, told.gpu) {
        (Some(gbps), _) => (gbps * 1e9, "from --gpu-gbps".to_owned()),
        (None, Some(known)) => (SHARE_OF_CARD * known.memory_bytes_per_s(), known.text()),
        (None, None) => (
            SHARE_OF_CARD * usual_bytes_per_s(room_bytes),
            "as usual cards of this size: --gpu NAME or --gpu-gbps says more, `moeflux doctor` \
             measures one"
                .to_owned(),
        ),
    };
    let pace = assumed_card(bytes_per_s, told.gpu);
    Computer {
        pace: Uncertain { value: pace, certainty: ASSUMED },
        prompts_source: source.clone(),
        source,
    }
}

fn assumed_card(bytes_per_s: f64, known: Option<&KnownCard>) -> Pace {
    let per_byte = match known {
        Some(known) if !known.has_matrices => GPU_OPERATIONS_PER_BYTE_WITHOUT_MATRICES,
        _ => GPU_OPERATIONS_PER_BYTE,
    };
    let link = known.map_or(LINK_GBPS * 1e9, |known| known.link.bytes_per_s());
    Pace {
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

fn figure(told: Option<f64>, option: &str, measured: Option<Rate>, assumed_gbps: f64) -> Figure {
    match (told, measured) {
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
    fn told_goes_before_measured_and_measured_before_assumed() {
        let rate = || {
            Some(Rate {
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
        let pace = assumed_cpu("avx2", 2.0, 60e9);
        let more = scaled(&pace, 4.0, 60e9);
        assert!((more.prompt_operations_per_s / pace.prompt_operations_per_s - 4.0).abs() < 1e-9);
        assert!((more.answer_bytes_per_s - 60e9).abs() < 1.0, "{more:?}");
        assert!(scaled(&pace, 0.5, 60e9).answer_bytes_per_s < pace.answer_bytes_per_s);
    }

    #[test]
    fn cores_and_gops_describe_another_machine() {
        let none = Measured::default();
        let operations = |told: &Told| {
            PlanMachine::here(told, &none, None).cpu.pace.value.prompt_operations_per_s
        };
        let cores = |n| Told { n_cores: NonZeroUsize::new(n), ..Told::default() };
        assert!((operations(&cores(32)) / operations(&cores(8)) - 4.0).abs() < 1e-9);
        let told = Told { gops: Some(750.0), ..cores(8) };
        assert!((operations(&told) - 7.5e11).abs() < 1.0);
    }

    #[test]
    fn a_gpu_counts_if_it_is_told_or_was_measured_here() {
        let none = Measured::default();
        let card = |told: &Told| PlanMachine::here(told, &none, None).card;
        assert_eq!(card(&Told::default()), None);
        assert_eq!(card(&Told { gpu_bytes: Some(0), ..Told::default() }), None);
        let told = card(&Told { gpu_bytes: Some(24 << 30), ..Told::default() }).unwrap();
        assert!(told.is_told && told.gives.room_bytes == 24 << 30 && told.gives.sees_host);
        let machine = PlanMachine::here(&Told::default(), &none, None);
        let program_bytes = |gives: Gives| gives.host.program_bytes;
        let [with, without] = [machine.of_card(&told), machine.of_cpu()].map(program_bytes);
        assert_eq!(with - without, 80 << 20, "its driver");
    }
}
