//! What a model needs and what a machine gives, as expected tokens per second.
//!
//! Two ends: routing that no cache can guess, nothing overlapped, the context full, drive and
//! memory below their rates; and routing as skewed as that of the model in the box, all overlapped,
//! the context empty. **Invariant:** arithmetic alone: asks no file and no clock.

use moeflux::provider::config::{N_ROWS_DEFAULT, N_ROWS_MAX};

use crate::needs::{Needs, float};

/// Prompts that a forecast is made for, as far as the context reaches.
const PROMPTS: [u64; 2] = [512, 2048];

/// Of the drive's rate, what the low end counts on.
const DRIVE_SHARE_LOW: f64 = 0.85;

/// Of memory's rate, what the low end counts on: decoding reached 77 to 100 % of a plain sum's.
const MEMORY_SHARE_LOW: f64 = 0.75;

/// What a machine gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gives {
    /// Memory for all of it.
    pub(crate) budget_bytes: u64,
    /// Of the drive.
    pub(crate) drive_bytes_per_s: f64,
    /// Of memory, all cores together.
    pub(crate) memory_bytes_per_s: f64,
    /// Of all cores together.
    pub(crate) operations_per_s: f64,
}

/// What takes the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Drive,
    Memory,
    Compute,
}

impl Bound {
    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Drive => "drive",
            Self::Memory => "memory",
            Self::Compute => "compute",
        }
    }
}

/// One end of what is expected of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speed {
    /// Experts found in memory.
    pub(crate) hit_rate: f64,
    /// Read from the drive for a token.
    pub(crate) drive_bytes_per_token: f64,
    /// What comes out.
    pub(crate) tokens_per_s: f64,
    /// Why it is not more.
    pub(crate) bound: Bound,
}

/// What is expected of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prompt {
    /// Its length.
    pub(crate) n_tokens: u64,
    /// How often the experts that cannot stay are read.
    pub(crate) n_passes: u64,
    /// Read from the drive, all passes together.
    pub(crate) drive_bytes: f64,
    /// Until it is read.
    pub(crate) seconds: f64,
    /// Why it is not less.
    pub(crate) bound: Bound,
}

/// What is expected.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forecast {
    /// Experts that fit.
    pub(crate) n_slots: u64,
    /// Of all experts, these.
    pub(crate) share: f64,
    /// Of what can be expected, the least.
    pub(crate) low: Speed,
    /// The most.
    pub(crate) high: Speed,
    /// By length.
    pub(crate) prompts: Vec<Prompt>,
    /// Until the first token can be read: what stays, and experts while there is room.
    pub(crate) load_seconds: f64,
}

/// Seconds by what is waited for.
#[derive(Clone, Copy, Debug)]
struct Seconds {
    drive: f64,
    memory: f64,
    compute: f64,
}

impl Seconds {
    fn bound(self) -> Bound {
        let Self { drive, memory, compute } = self;
        if drive >= memory.max(compute) {
            Bound::Drive
        } else if memory >= compute {
            Bound::Memory
        } else {
            Bound::Compute
        }
    }

    /// All at the same time.
    fn overlapped(self) -> f64 {
        self.drive.max(self.computing())
    }

    /// Reading from the drive, then computing.
    fn in_turn(self) -> f64 {
        self.drive + self.computing()
    }

    /// Weights come from memory while others are multiplied.
    fn computing(self) -> f64 {
        self.memory.max(self.compute)
    }
}

/// How many experts fit beside all else, with steps of `n_rows`.
fn n_slots(needs: &Needs, budget_bytes: u64, (context, n_rows): (u64, u64)) -> u64 {
    let held = needs.resident_bytes.saturating_add(needs.session_bytes(context));
    let held = held.saturating_add(needs.workspace_bytes(n_rows));
    let slots = budget_bytes.saturating_sub(held).checked_div(needs.slot_bytes);
    slots.unwrap_or(0).min(needs.n_experts())
}

/// How often an expert is found if routing is as skewed as that of the model in the box, whose hit
/// rates by `lfu` are 37, 62, 81 and 94 % at shares of 1/8, 1/4, 1/2 and 3/4.
fn skewed_hit_rate(share: f64) -> f64 {
    1.0 - (1.0 - share).powi(3)
}

/// The forecast; none if the budget is below [`Needs::least_bytes`].
pub(crate) fn forecast(needs: &Needs, gives: &Gives, context: u64) -> Option<Forecast> {
    if gives.budget_bytes < needs.least_bytes(context) {
        return None;
    }
    let usual = (context, N_ROWS_DEFAULT as u64);
    let n_slots = n_slots(needs, gives.budget_bytes, usual);
    let share = share(needs, n_slots);
    let low_gives = Gives {
        drive_bytes_per_s: DRIVE_SHARE_LOW * gives.drive_bytes_per_s,
        memory_bytes_per_s: MEMORY_SHARE_LOW * gives.memory_bytes_per_s,
        ..*gives
    };
    let low = decode(needs, &low_gives, share, needs.session_bytes(context));
    let high = decode(needs, gives, skewed_hit_rate(share), needs.session_bytes(0));
    let lengths = PROMPTS.iter().filter(|length| **length <= context);
    let prompts = lengths.map(|length| prompt(needs, gives, context, *length)).collect();
    let loaded = float(needs.resident_bytes) + share * float(needs.experts_bytes());
    Some(Forecast {
        n_slots,
        share,
        low: low.speed(Seconds::in_turn),
        high: high.speed(Seconds::overlapped),
        prompts,
        load_seconds: loaded / gives.drive_bytes_per_s,
    })
}

/// A model without experts has all of them.
fn share(needs: &Needs, n_slots: u64) -> f64 {
    match needs.n_experts() {
        0 => 1.0,
        n_experts => float(n_slots) / float(n_experts),
    }
}

struct Token {
    hit_rate: f64,
    drive_bytes: f64,
    seconds: Seconds,
}

impl Token {
    fn speed(&self, together: impl Fn(Seconds) -> f64) -> Speed {
        Speed {
            hit_rate: self.hit_rate,
            drive_bytes_per_token: self.drive_bytes,
            tokens_per_s: 1.0 / together(self.seconds),
            bound: self.seconds.bound(),
        }
    }
}

fn decode(needs: &Needs, gives: &Gives, hit_rate: f64, session_bytes: u64) -> Token {
    let drive_bytes = (1.0 - hit_rate) * float(needs.routed_bytes());
    let memory_bytes = needs.resident_read_bytes + needs.routed_bytes() + session_bytes;
    let seconds = Seconds {
        drive: drive_bytes / gives.drive_bytes_per_s,
        memory: float(memory_bytes) / gives.memory_bytes_per_s,
        compute: float(needs.operations_per_token) / gives.operations_per_s,
    };
    Token { hit_rate, drive_bytes, seconds }
}

/// In one step if the activations of so many tokens leave room for enough slots.
fn prompt(needs: &Needs, gives: &Gives, context: u64, n_tokens: u64) -> Prompt {
    let has_room = |n_rows: &u64| {
        n_slots(needs, gives.budget_bytes, (context, *n_rows)) >= needs.n_slots_min()
    };
    let whole = n_tokens.min(N_ROWS_MAX as u64);
    let n_rows = if has_room(&whole) { whole } else { whole.min(N_ROWS_DEFAULT as u64) };
    let n_passes = n_tokens.div_ceil(n_rows);
    let stays = share(needs, n_slots(needs, gives.budget_bytes, (context, n_rows)));
    let chosen = needs.chosen_bytes(n_rows) * float(n_passes);
    let drive_bytes = chosen * (1.0 - stays);
    let seconds = Seconds {
        drive: drive_bytes / gives.drive_bytes_per_s,
        memory: (chosen + float(needs.resident_read_bytes * n_passes)) / gives.memory_bytes_per_s,
        compute: float(needs.operations_per_token) * float(n_tokens) / gives.operations_per_s,
    };
    Prompt {
        n_tokens,
        n_passes,
        drive_bytes,
        seconds: seconds.overlapped(),
        bound: seconds.bound(),
    }
}
