//! Longer steps while a long prompt runs, in memory that slots lend.
//!
//! **Invariant:** memory is given up before other is taken, here and back; when the last of those
//! that borrow is over, however it ended, all is as it was before the first. A session that feeds
//! single tokens meanwhile has fewer slots, and the same bytes.

use std::sync::Arc;

use crate::budget::Division;
use crate::error::Result;
use crate::forward::{Device, Loans};
use crate::session::runtime::Runtime;

/// A long prompt has longer steps until this is dropped: see [`crate::Engine::longer_steps`].
#[derive(Debug)]
pub struct LongerSteps {
    runtime: Arc<Runtime>,
}

impl LongerSteps {
    /// Borrows for a prompt of this many rows; `None` where there is nothing to gain.
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
        // A step of this thread that is under way gives the memory back when it ends.
        let _turn = self.runtime.workspace().ok();
        let mut device = self.runtime.lock_to_clean_up();
        device.n_borrowers -= 1;
        give_back(&self.runtime, &mut device);
    }
}

/// Gives memory back that is not borrowed any more, unless a step is under way.
pub(super) fn give_back(runtime: &Runtime, device: &mut Device) {
    if let Some(room) = runtime.prompt_room()
        && device.n_borrowers == 0
        && device.held.is_none()
    {
        give_all_back(device, room.n_rows);
    }
}

/// Whether steps may be longer now. Where another prompt has borrowed as much that is enough.
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

/// Slots that cannot be had back now come when there is memory again; a workspace that was made
/// larger can be made smaller.
fn give_all_back(device: &mut Device, n_rows_usual: usize) {
    let is_usual = device.backend.n_rows_max() == n_rows_usual;
    if is_usual || device.backend.set_rows_max(n_rows_usual).is_ok() {
        drop(device.lend(Loans { n_slots_of_prompts: 0, ..device.loans }));
    }
}
