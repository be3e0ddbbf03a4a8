//! Memory that slots of experts lend: to sessions that grow, and to a long prompt for longer
//! steps.
//!
//! **Invariant:** memory is freed on one side before the other side allocates it. When the last of
//! the prompts that borrow ends, for whatever reason, steps and slots are as they were before the
//! first. Until then, sessions that feed single tokens have fewer slots, but experts with the same
//! bytes.

use std::sync::Arc;

use crate::budget::PromptSteps;
use crate::error::{Error, Result};
use crate::forward::{DeviceContext, LentSlots};
use crate::session::runtime::Runtime;

/// Runs `work`, which allocates memory for sessions in one or more pieces. Whenever there is no
/// room, slots lend more memory, and `work` runs again.
pub(in crate::session) fn retry_after_lending<T>(
    runtime: &Runtime,
    device: &mut DeviceContext,
    work: &mut dyn FnMut(&mut DeviceContext) -> Result<T>,
) -> Result<T> {
    loop {
        match work(device) {
            // Each time more slots are lent, so this ends.
            Err(Error::NoRoom { needed_bytes, .. }) if grow(runtime, device, needed_bytes)? => {}
            done => return done,
        }
    }
}

/// Lends slots so that sessions can have `n_bytes` more. Returns whether that was possible.
fn grow(runtime: &Runtime, device: &mut DeviceContext, n_bytes: u64) -> Result<bool> {
    let Some(lender) = runtime.lender() else { return Ok(false) };
    let booked_bytes = device.backend.states().budget().booked_bytes();
    let n_slots = lender.n_slots_for_sessions(booked_bytes.saturating_add(n_bytes));
    let Some(n_slots) = n_slots.filter(|it| *it > device.lent.n_slots_for_sessions) else {
        return Ok(false);
    };
    let is_lent = device.lend(LentSlots { n_slots_for_sessions: n_slots, ..device.lent })?;
    if is_lent {
        device.backend.states().budget().set_limit(lender.session_bytes(n_slots));
    }
    Ok(is_lent)
}

/// Gives slots back the memory that sessions no longer use.
pub(in crate::session) fn shrink(runtime: &Runtime, device: &mut DeviceContext) {
    let Some(lender) = runtime.lender() else { return };
    let booked_bytes = device.backend.states().budget().booked_bytes();
    let n_slots = lender.n_slots_for_sessions(booked_bytes);
    if let Some(n_slots) = n_slots.filter(|it| *it < device.lent.n_slots_for_sessions) {
        device.backend.states().budget().set_limit(lender.session_bytes(n_slots));
        // Slots that cannot be allocated now are allocated once there is memory again.
        drop(device.lend(LentSlots { n_slots_for_sessions: n_slots, ..device.lent }));
    }
}

/// Longer steps for a long prompt, until this is dropped: see [`crate::Engine::longer_steps`].
#[derive(Debug)]
pub struct LongerSteps {
    runtime: Arc<Runtime>,
}

impl LongerSteps {
    /// Borrows for a prompt of `n_rows` rows; `None` if there is nothing to gain.
    pub(crate) fn begin(runtime: &Arc<Runtime>, n_rows: usize) -> Result<Option<Self>> {
        let Some(lender) = runtime.lender() else { return Ok(None) };
        let _workspace_guard = runtime.lock_workspace()?;
        let mut device = runtime.lock()?;
        let prompt_steps = lender.prompt_steps(n_rows, device.lent.n_slots_for_sessions);
        let Some(prompt_steps) = prompt_steps else { return Ok(None) };
        if !borrow(runtime, &mut device, prompt_steps)? {
            return Ok(None);
        }
        device.n_borrowers += 1;
        Ok(Some(Self { runtime: Arc::clone(runtime) }))
    }
}

impl Drop for LongerSteps {
    fn drop(&mut self) {
        // A step of this thread that is under way returns the memory when it ends.
        let _workspace_guard = self.runtime.lock_workspace().ok();
        let mut device = self.runtime.lock_to_clean_up();
        device.n_borrowers -= 1;
        end_longer_steps(&self.runtime, &mut device);
    }
}

/// Returns the memory of longer steps to slots, unless a prompt still borrows it or a step is under
/// way.
pub(in crate::session) fn end_longer_steps(runtime: &Runtime, device: &mut DeviceContext) {
    if device.n_borrowers == 0 && device.paused.is_none() {
        return_all(runtime, device);
    }
}

/// Makes steps longer. Returns whether they are longer now: if nothing more can be lent, the memory
/// that another prompt has borrowed is enough.
fn borrow(
    runtime: &Runtime,
    device: &mut DeviceContext,
    prompt_steps: PromptSteps,
) -> Result<bool> {
    let PromptSteps { n_rows, n_slots_lent } = prompt_steps;
    if n_rows <= device.backend.n_rows_max() {
        return Ok(true);
    }
    let lent = device.lend(LentSlots { n_slots_for_prompts: n_slots_lent, ..device.lent });
    if matches!(lent, Ok(true)) && device.backend.set_rows_max(n_rows).is_ok() {
        return Ok(true);
    }
    let has_borrowed = device.n_borrowers > 0;
    if !has_borrowed {
        return_all(runtime, device);
    }
    lent.map(|_| has_borrowed)
}

/// Makes steps as short as usual, and gives slots back all memory that prompts borrowed. Slots that
/// cannot be allocated now are allocated once there is memory again.
fn return_all(runtime: &Runtime, device: &mut DeviceContext) {
    let Some(terms) = runtime.lender().and_then(|it| it.prompts.as_ref()) else { return };
    let is_usual = device.backend.n_rows_max() == terms.n_rows;
    if is_usual || device.backend.set_rows_max(terms.n_rows).is_ok() {
        drop(device.lend(LentSlots { n_slots_for_prompts: 0, ..device.lent }));
    }
}
