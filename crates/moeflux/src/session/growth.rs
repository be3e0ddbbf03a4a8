//! Memory for growing sessions: slots are given up, and restored when sessions end.
//!
//! **Invariant:** memory is freed on one side before the other may book it, in both directions.

use crate::error::{Error, Result};
use crate::forward::{Device, Loans};
use crate::session::runtime::Runtime;

/// Runs `work`, which books memory for sessions, once or several times. If memory is short, slots
/// are lent first and `work` is repeated.
pub(super) fn with_room<T>(
    runtime: &Runtime,
    device: &mut Device,
    work: &mut dyn FnMut(&mut Device) -> Result<T>,
) -> Result<T> {
    loop {
        match work(device) {
            // Each iteration lends more slots, so the loop ends.
            Err(Error::NoRoom { needed_bytes, .. }) if grow(runtime, device, needed_bytes)? => {}
            done => return done,
        }
    }
}

/// Lends slots for `n_bytes` more. Returns whether that succeeded.
fn grow(runtime: &Runtime, device: &mut Device, n_bytes: u64) -> Result<bool> {
    let Some(room) = runtime.growth_room() else { return Ok(false) };
    let booked_bytes = device.backend.states().room().booked_bytes();
    match room.n_slots_lent(booked_bytes.saturating_add(n_bytes)) {
        Some(n_slots) if n_slots > device.loans.n_slots_of_sessions => {
            lend(runtime, device, n_slots)
        }
        _ => Ok(false),
    }
}

/// Returns to slots the memory that sessions no longer need.
pub(super) fn shrink(runtime: &Runtime, device: &mut Device) {
    let Some(room) = runtime.growth_room() else { return };
    let booked_bytes = device.backend.states().room().booked_bytes();
    match room.n_slots_lent(booked_bytes) {
        Some(n_slots) if n_slots < device.loans.n_slots_of_sessions => {
            device.backend.states().room().set_limit(Some(room.bytes(n_slots)));
            // Slots that cannot be allocated now are restored when there is memory again.
            drop(device.lend(Loans { n_slots_of_sessions: n_slots, ..device.loans }));
        }
        _ => {}
    }
}

fn lend(runtime: &Runtime, device: &mut Device, n_slots: usize) -> Result<bool> {
    let Some(room) = runtime.growth_room() else { return Ok(false) };
    let is_lent = device.lend(Loans { n_slots_of_sessions: n_slots, ..device.loans })?;
    if is_lent {
        device.backend.states().room().set_limit(Some(room.bytes(n_slots)));
    }
    Ok(is_lent)
}
