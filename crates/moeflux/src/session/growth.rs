//! Room for sessions that grow: slots give way, and come back when sessions end.
//!
//! **Invariant:** slots have given their memory up before sessions may book it, here and back.

use crate::error::{Error, Result};
use crate::forward::{Device, Loans};
use crate::session::runtime::Runtime;

/// Does something that takes memory for sessions, in one or more pieces. Where there is no room,
/// slots make some first.
pub(super) fn with_room<T>(
    runtime: &Runtime,
    device: &mut Device,
    work: &mut dyn FnMut(&mut Device) -> Result<T>,
) -> Result<T> {
    loop {
        match work(device) {
            // Each time more slots are lent, so this ends.
            Err(Error::NoRoom { needed_bytes, .. }) if grow(runtime, device, needed_bytes)? => {}
            done => return done,
        }
    }
}

/// Whether slots made room for this much more.
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

/// Gives back to slots what sessions do without.
pub(super) fn shrink(runtime: &Runtime, device: &mut Device) {
    let Some(room) = runtime.growth_room() else { return };
    let booked_bytes = device.backend.states().room().booked_bytes();
    match room.n_slots_lent(booked_bytes) {
        Some(n_slots) if n_slots < device.loans.n_slots_of_sessions => {
            device.backend.states().room().set_limit(Some(room.bytes(n_slots)));
            // Slots that cannot be had back now come when there is memory again.
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
