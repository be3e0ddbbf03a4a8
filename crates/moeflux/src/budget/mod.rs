//! How the memory of a process is divided: first the weights that every token uses, then routed
//! experts in the rest.
//!
//! **Invariant:** pure arithmetic; the parts never add up to more than there is, and a budget that
//! is too small is refused with the minimum that works.

mod layout;
mod lender;

pub(crate) use layout::PAGE_CACHE_SHARE;
pub use layout::{Host, Memory, MemoryLayout, n_experts_of_chunk, step_bytes};
pub(crate) use lender::n_slots_of_prompt;
pub use lender::{PromptSteps, PromptTerms, SessionRoom, SessionTerms, SlotLender};

use crate::config::Budget;
use crate::error::{Error, Need, Remedy, Result};
use crate::experts::stream::SlotShape;

/// Memory needed for everything but experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedNeeds {
    /// Bytes of the process before the model is loaded.
    pub program_bytes: u64,
    /// Bytes that the program reserves for work outside the engine.
    pub beside_bytes: u64,
    /// Bytes of rows of tables, which are in host memory.
    pub table_bytes: u64,
    /// Bytes of the weights that every token uses.
    pub resident_bytes: u64,
    /// Bytes of the activations of one step and its scratch.
    pub workspace_bytes: u64,
    /// Bytes of the state of sessions.
    pub session_bytes: u64,
    /// Tokens of those sessions, for messages.
    pub n_positions: usize,
}

/// Memory needed for the routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertNeeds {
    /// What they are called in messages.
    pub name: &'static str,
    /// Bytes of all experts in memory from the start.
    pub all_bytes: u64,
    /// Size of slots.
    pub shape: SlotShape,
    /// Minimum number of slots.
    pub n_slots_min: usize,
}

/// Where the experts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the compute device, or in memory that its kernels can read.
    OnDevice {
        /// Bytes of the experts in host memory.
        host_bytes: u64,
    },
    /// In memory.
    Resident,
    /// On the drive, with `n_slots` of them in memory.
    Streaming {
        /// Number of slots.
        n_slots: usize,
    },
}

/// Host memory for experts that a device computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostExpertBudget {
    /// Its kernels cannot read host memory.
    Unreadable,
    /// Upper bound on bytes of the whole process.
    Bytes(u64),
}

/// Without an explicit budget, one part in this many of the available memory is left to others.
const ROOM_SHARE: u64 = 16;

/// Lower bound on the memory left to others.
const ROOM_BYTES_MIN: u64 = 256 << 20;

/// Budget on a system that does not report how much memory is free: unknown is not unlimited. Few
/// machines have less than this and room for a model.
pub const UNSAID_BYTES: u64 = 4 << 30;

/// Upper bound on the variation of a process's size between runs: the minimum that an error reports
/// must suffice in the next run.
const PROGRAM_MARGIN_BYTES: u64 = 4 << 20;

impl FixedNeeds {
    /// Returns the total.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.host_bytes().saturating_add(self.model_bytes())
    }

    /// Returns the bytes needed in host memory wherever the model is computed.
    #[must_use]
    pub(crate) fn host_bytes(&self) -> u64 {
        (self.program_bytes + self.beside_bytes).saturating_add(self.table_bytes)
    }

    /// Returns the bytes needed where the model is computed.
    #[must_use]
    pub(crate) fn model_bytes(&self) -> u64 {
        self.resident_bytes + self.workspace_bytes + self.session_bytes
    }

    /// Returns the needs that remain in host memory beside a device with its own memory. Resident
    /// weights only pass through host memory, before slots are allocated.
    #[must_use]
    pub(crate) fn of_host(self, host_budget: HostExpertBudget) -> Self {
        match host_budget {
            HostExpertBudget::Unreadable => self,
            HostExpertBudget::Bytes(_) => Self { resident_bytes: 0, ..self },
        }
    }
}

/// Returns the bytes that a process of `program_bytes` may have. `available_bytes` are available
/// beside those, if the system reports it.
#[must_use]
pub(crate) fn limit(budget: Budget, program_bytes: u64, available_bytes: Option<u64>) -> u64 {
    match (budget, available_bytes) {
        (Budget::Bytes(n_bytes), _) => n_bytes,
        (Budget::Auto, Some(available_bytes)) => {
            let room_bytes = (available_bytes / ROOM_SHARE).max(ROOM_BYTES_MIN);
            program_bytes.saturating_add(available_bytes.saturating_sub(room_bytes))
        }
        (Budget::Auto, None) => UNSAID_BYTES,
    }
}

/// Returns the placement of experts within `budget_bytes`.
///
/// # Errors
///
/// [`Error::NoRoom`] with the minimum that works.
pub(crate) fn place(
    needs: &FixedNeeds,
    experts: &ExpertNeeds,
    budget_bytes: u64,
) -> Result<Placement> {
    let needed_bytes = needs.bytes();
    if needed_bytes.saturating_add(experts.all_bytes) <= budget_bytes || experts.all_bytes == 0 {
        return check(needs, experts, budget_bytes).map(|()| Placement::Resident);
    }
    check(needs, experts, budget_bytes)?;
    let n_slots = experts.shape.n_slots(budget_bytes - needed_bytes);
    Ok(Placement::Streaming { n_slots })
}

/// Returns the placement as [`place`] does, but with slots for all the host memory that is left
/// once the device has its part.
///
/// # Errors
///
/// As [`place`].
pub(crate) fn place_beside_device(
    needs: &FixedNeeds,
    experts: &ExpertNeeds,
    (budget_bytes, host_budget): (u64, HostExpertBudget),
) -> Result<Placement> {
    let placement = place(needs, experts, budget_bytes)?;
    Ok(match placement {
        Placement::Streaming { .. } => {
            let room_bytes = budget_bytes.saturating_sub(needs.of_host(host_budget).bytes());
            Placement::Streaming { n_slots: experts.shape.n_slots(room_bytes) }
        }
        placement => placement,
    })
}

/// Returns the placement of experts beside a device that has room for `device_bytes` of them:
/// there, and in host memory if its kernels can read it; `None` if both together have no room.
#[must_use]
pub(crate) fn place_on_device(
    needs: &FixedNeeds,
    experts: &ExpertNeeds,
    device_bytes: u64,
    host_budget: HostExpertBudget,
) -> Option<Placement> {
    let host_bytes = experts.all_bytes.saturating_sub(device_bytes);
    // The host holds the resident weights only until they are on the device.
    let needed_host_bytes = needs.host_bytes() + needs.resident_bytes.max(host_bytes);
    let has_room = match host_budget {
        _ if host_bytes == 0 => true,
        HostExpertBudget::Unreadable => false,
        HostExpertBudget::Bytes(limit_bytes) => needed_host_bytes <= limit_bytes,
    };
    has_room.then_some(Placement::OnDevice { host_bytes })
}

/// Refuses a budget that is too small.
fn check(needs: &FixedNeeds, experts: &ExpertNeeds, budget_bytes: u64) -> Result<()> {
    let least_expert_bytes = match experts.all_bytes {
        0 => 0,
        all_bytes => experts.shape.bytes(experts.n_slots_min).min(all_bytes),
    };
    let least_bytes = needs.bytes() + least_expert_bytes;
    if least_bytes <= budget_bytes {
        return Ok(());
    }
    let beside = Need::new("work beside the engine", needs.beside_bytes);
    let tables = Need::new("rows of tables", needs.table_bytes);
    let experts = Need::new(experts.name, least_expert_bytes);
    let (experts, remedy) = match experts.n_bytes {
        0 => (None, Remedy::LargerBudgetOrFewerBits),
        _ => (Some(experts), Remedy::LargerBudget),
    };
    Err(Error::NoRoom {
        what: "the model".to_owned(),
        needed_bytes: least_bytes + PROGRAM_MARGIN_BYTES,
        available_bytes: Some(budget_bytes),
        needs: [
            Need::new("weights that every token uses", needs.resident_bytes),
            Need::new("activations of one step", needs.workspace_bytes),
            Need::new(format!("{} tokens of context", needs.n_positions), needs.session_bytes),
        ]
        .into_iter()
        .chain(experts)
        .chain([tables, beside].into_iter().filter(|need| need.n_bytes > 0))
        .chain([Need::new("this program", needs.program_bytes + PROGRAM_MARGIN_BYTES)])
        .collect(),
        remedy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: FixedNeeds = FixedNeeds {
        program_bytes: 10,
        beside_bytes: 0,
        table_bytes: 0,
        resident_bytes: 100,
        workspace_bytes: 20,
        session_bytes: 30,
        n_positions: 7,
    };
    const EXPERTS: ExpertNeeds = ExpertNeeds {
        name: "experts",
        all_bytes: 1000,
        shape: SlotShape { slot_bytes: 9, stride_bytes: 10, n_experts: 100 },
        n_slots_min: 8,
    };

    #[test]
    fn all_are_in_memory_where_they_fit_to_the_byte() {
        assert_eq!(place(&NEEDS, &EXPERTS, 1160).unwrap(), Placement::Resident);
        let streaming = Placement::Streaming { n_slots: 99 };
        assert_eq!(place(&NEEDS, &EXPERTS, 1159).unwrap(), streaming);
    }

    #[test]
    fn the_least_that_works_is_named_and_works() {
        let error = place(&NEEDS, &EXPERTS, 239).unwrap_err();
        let Error::NoRoom { needed_bytes, .. } = &error else { panic!("{error}") };
        assert_eq!(*needed_bytes, 240 + PROGRAM_MARGIN_BYTES);
        let text = error.to_string();
        for part in ["100 bytes for weights", "30 bytes for 7 tokens", "80 bytes for experts"] {
            assert!(text.contains(part), "{text}");
        }
        let least = Placement::Streaming { n_slots: 8 };
        assert_eq!(place(&NEEDS, &EXPERTS, 240).unwrap(), least);
    }

    #[test]
    fn work_beside_the_engine_has_its_part_to_the_byte() {
        let needs = FixedNeeds { beside_bytes: 40, ..NEEDS };
        assert_eq!(place(&needs, &EXPERTS, 1200).unwrap(), Placement::Resident);
        let streaming = |n_slots| Placement::Streaming { n_slots };
        assert_eq!(place(&needs, &EXPERTS, 1199).unwrap(), streaming(99));
        assert_eq!(place(&needs, &EXPERTS, 280).unwrap(), streaming(8));
        let error = place(&needs, &EXPERTS, 279).unwrap_err().to_string();
        assert!(error.contains("40 bytes for work beside the engine"), "{error}");
        // The device does not affect it.
        let on_device =
            |limit| place_on_device(&needs, &EXPERTS, 400, HostExpertBudget::Bytes(limit));
        assert_eq!(on_device(649), None);
        assert_eq!(on_device(650), Some(Placement::OnDevice { host_bytes: 600 }));
    }

    #[test]
    fn rows_of_tables_are_counted_in_host_memory() {
        let needs = FixedNeeds { table_bytes: 40, ..NEEDS };
        assert_eq!(place(&needs, &EXPERTS, 1200).unwrap(), Placement::Resident);
        let streaming = Placement::Streaming { n_slots: 99 };
        assert_eq!(place(&needs, &EXPERTS, 1199).unwrap(), streaming);
        let error = place(&needs, &EXPERTS, 279).unwrap_err().to_string();
        assert!(error.contains("40 bytes for rows of tables"), "{error}");
        let on_device =
            |limit| place_on_device(&needs, &EXPERTS, 400, HostExpertBudget::Bytes(limit));
        assert_eq!(on_device(649), None);
        assert_eq!(on_device(650), Some(Placement::OnDevice { host_bytes: 600 }));
    }

    #[test]
    fn without_figures_of_the_system_a_large_model_is_streamed() {
        let gib = 1 << 30;
        // A model of 120 GB on a machine of 8 GB that reports no free memory.
        let needs = FixedNeeds { resident_bytes: 2 * gib, ..NEEDS };
        let shape = SlotShape { slot_bytes: 8 << 20, stride_bytes: 8 << 20, n_experts: 15_104 };
        let experts = ExpertNeeds { all_bytes: 118 * gib, shape, ..EXPERTS };
        let limit_bytes = limit(Budget::Auto, 10, None);
        let placement = place(&needs, &experts, limit_bytes).unwrap();
        let Placement::Streaming { n_slots } = placement else { panic!("{placement:?}") };
        assert!(needs.bytes() + shape.bytes(n_slots) <= UNSAID_BYTES);
        assert_eq!(n_slots, 255);
        // A model that does not fit is refused with its needs.
        let needs = FixedNeeds { resident_bytes: 5 * gib, ..NEEDS };
        assert!(matches!(place(&needs, &experts, limit_bytes), Err(Error::NoRoom { .. })));
    }

    #[test]
    fn a_model_without_experts_needs_none() {
        let experts = ExpertNeeds { all_bytes: 0, ..EXPERTS };
        assert_eq!(place(&NEEDS, &experts, 160).unwrap(), Placement::Resident);
        let error = place(&NEEDS, &experts, 159).unwrap_err().to_string();
        assert!(!error.contains("experts,"), "{error}");
        assert!(error.contains("has no experts to stream"), "{error}");
    }

    #[test]
    fn slots_get_the_room_of_experts_on_the_device() {
        let placed =
            |host_budget| place_beside_device(&NEEDS, &EXPERTS, (760, host_budget)).unwrap();
        let streaming = |n_slots| Placement::Streaming { n_slots };
        assert_eq!(placed(HostExpertBudget::Unreadable), streaming(60));
        assert_eq!(placed(HostExpertBudget::Bytes(760)), streaming(70));
        let host_budget = HostExpertBudget::Bytes(239);
        assert!(place_beside_device(&NEEDS, &EXPERTS, (239, host_budget)).is_err());
    }

    #[test]
    fn a_device_and_the_host_hold_experts_together() {
        let placed = |device_bytes, budget| place_on_device(&NEEDS, &EXPERTS, device_bytes, budget);
        let on_device = |host_bytes| Some(Placement::OnDevice { host_bytes });
        assert_eq!(placed(1000, HostExpertBudget::Unreadable), on_device(0));
        assert_eq!(placed(999, HostExpertBudget::Unreadable), None);
        // Resident weights pass through host memory first.
        assert_eq!(placed(950, HostExpertBudget::Bytes(109)), None);
        assert_eq!(placed(950, HostExpertBudget::Bytes(110)), on_device(50));
        assert_eq!(placed(400, HostExpertBudget::Bytes(609)), None);
        assert_eq!(placed(400, HostExpertBudget::Bytes(610)), on_device(600));
        assert_eq!(placed(0, HostExpertBudget::Bytes(1010)), on_device(1000));
    }

    #[test]
    fn an_automatic_limit_leaves_room_for_other_programs() {
        let gib = 1 << 30;
        assert_eq!(limit(Budget::Auto, 5, Some(32 * gib)), 5 + 30 * gib);
        assert_eq!(limit(Budget::Auto, 5, Some(gib)), 5 + 3 * gib / 4);
        assert_eq!(limit(Budget::Auto, 5, Some(3)), 5);
        assert_eq!(limit(Budget::Auto, 5, None), UNSAID_BYTES);
        assert_eq!(limit(Budget::Bytes(9), 5, Some(3)), 9);
    }
}
