//! Longer steps for long prompts, in memory lent by slots.
//!
//! **Invariant:** memory is freed before other memory is allocated, when borrowing and when
//! returning. When the last borrower ends, in whatever way, the state before the first is restored.
//! A session that feeds single tokens meanwhile has fewer slots, but its results are the same
//! bytes.

use std::sync::Arc;

use crate::budget::Division;
use crate::error::Result;
use crate::forward::{Device, Loans};
use crate::session::runtime::Runtime;

/// Longer steps for a long prompt until this is dropped: see [`crate::Engine::longer_steps`].
#[derive(Debug)]
pub struct LongerSteps {
    runtime: Arc<Runtime>,
}

impl LongerSteps {
    /// Borrows for a prompt of `n_rows` rows; returns `None` if there is nothing to gain.
    pub(crate) fn begin(runtime: &Arc<Runtime>, n_rows: usize) -> Result<Option<Self>> {
        let Some(room) = runtime.prompt_room() else { return Ok(None) };
        let _turn = runtime.workspace()?;
        let mut device = runtime.lock()?;
        let division = room.division(n_rows, device.loans.n_slots_of_sessions);
        let Some(division) = division else { return Ok(None) };
        if !borrow(&mut device, division, room.n_rows)? {
            return Ok(None);
        }
        device.n_borrowers += 1;
        Ok(Some(Self { runtime: Arc::clone(runtime) }))
    }
}

impl Drop for LongerSteps {
    fn drop(&mut self) {
        // If this thread has a step in progress, the memory is returned when that step ends.
        let _turn = self.runtime.workspace().ok();
        let mut device = self.runtime.lock_to_clean_up();
        device.n_borrowers -= 1;
        give_back(&self.runtime, &mut device);
    }
}

/// Returns memory that is no longer borrowed, unless a step is in progress.
pub(super) fn give_back(runtime: &Runtime, device: &mut Device) {
    if let Some(room) = runtime.prompt_room()
        && device.n_borrowers == 0
        && device.held.is_none()
    {
        give_all_back(device, room.n_rows);
    }
}

/// Borrows for longer steps. Returns whether steps may be longer now, which includes the case that
/// another prompt has already borrowed enough.
fn borrow(device: &mut Device, division: Division, n_rows_usual: usize) -> Result<bool> {
    let Division { n_rows, n_slots_lent } = division;
    if n_rows <= device.backend.n_rows_max() {
        return Ok(true);
    }
    let lent = device.lend(Loans { n_slots_of_prompts: n_slots_lent, ..device.loans });
    if matches!(lent, Ok(true)) && device.backend.set_rows_max(n_rows).is_ok() {
        return Ok(true);
    }
    let has_borrowed = device.n_borrowers > 0;
    if !has_borrowed {
        give_all_back(device, n_rows_usual);
    }
    lent.map(|_| has_borrowed)
}

/// Returns all borrowed memory. Slots that cannot be allocated now are restored when there is
/// memory again; the workspace can always shrink back.
fn give_all_back(device: &mut Device, n_rows_usual: usize) {
    let is_usual = device.backend.n_rows_max() == n_rows_usual;
    if is_usual || device.backend.set_rows_max(n_rows_usual).is_ok() {
        drop(device.lend(Loans { n_slots_of_prompts: 0, ..device.loans }));
    }
}
