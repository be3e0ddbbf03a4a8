//! Longer steps while a long prompt runs, in memory that slots lend.
//!
//! **Invariant:** memory is given up before other is taken, here and back; when the last of those
//! that borrow is over, however it ended, all is as it was before the first. A session that feeds
//! single tokens meanwhile has fewer slots, and the same bytes.

use crate::budget::Division;
use crate::error::Result;
use crate::forward::Device;
use crate::session::Runtime;

/// A prompt that has longer steps, until this is dropped; the device must not be locked then.
#[derive(Debug)]
pub(super) struct LongerSteps<'a> {
    runtime: &'a Runtime,
    n_rows_usual: usize,
}

impl<'a> LongerSteps<'a> {
    /// Borrows for a prompt of so many rows; `None` where there is nothing to gain.
    pub(super) fn begin(runtime: &'a Runtime, n_rows: usize) -> Result<Option<Self>> {
        let Some(room) = runtime.prompt_room() else { return Ok(None) };
        let Some(division) = room.division(n_rows) else { return Ok(None) };
        let mut device = runtime.lock()?;
        if !borrow(&mut device, division, room.n_rows)? {
            return Ok(None);
        }
        device.n_borrowers += 1;
        Ok(Some(Self { runtime, n_rows_usual: room.n_rows }))
    }
}

impl Drop for LongerSteps<'_> {
    fn drop(&mut self) {
        let mut device = self.runtime.lock_to_clean_up();
        device.n_borrowers -= 1;
        if device.n_borrowers == 0 {
            give_back(&mut device, self.n_rows_usual);
        }
    }
}

/// Whether steps may be longer now. Where another prompt has borrowed as much that is enough.
fn borrow(device: &mut Device, division: Division, n_rows_usual: usize) -> Result<bool> {
    let Division { n_rows, n_slots_lent } = division;
    if n_rows <= device.backend.n_rows_max() {
        return Ok(true);
    }
    let lent = device.experts.lend(n_slots_lent);
    if matches!(lent, Ok(true)) && device.backend.set_rows_max(n_rows).is_ok() {
        return Ok(true);
    }
    let has_borrowed = device.n_borrowers > 0;
    if !has_borrowed {
        give_back(device, n_rows_usual);
    }
    lent.map(|_| has_borrowed)
}

/// Slots that cannot be had back now come when there is memory again; a workspace that was made
/// larger can be made smaller.
fn give_back(device: &mut Device, n_rows_usual: usize) {
    let Device { backend, experts, .. } = device;
    if backend.n_rows_max() == n_rows_usual || backend.set_rows_max(n_rows_usual).is_ok() {
        drop(experts.lend(0));
    }
}
