//! The loop of a rank other than the first: it carries out the commands of rank 0 on its own
//! device.
//!
//! **Invariant:** this rank takes part in every exchange of rank 0, and reports its own errors
//! there.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::forward::{DeviceContext, LoadedModel, run_next_layer};
use crate::ids::{LayerIdx, StateId};
use crate::ranks::{OwnedBatch, RankCommand};

/// Carries out the commands of rank 0 until it ends the job.
///
/// # Errors
///
/// [`Error::Rank`] if the ranks cannot continue together; [`Error::Machine`] if a command is
/// unreadable.
///
/// # Panics
///
/// If the device belongs to no group of ranks.
pub(crate) fn follow(model: &LoadedModel, device: &mut DeviceContext) -> Result<()> {
    let group = device.group.clone().expect("one of several ranks");
    let mut states = HashMap::new();
    let mut bytes = Vec::new();
    loop {
        // The lock is held while waiting: no other thread uses the link meanwhile.
        let command = group.link.lock().receive(&mut bytes)?;
        if command == RankCommand::End {
            return Ok(());
        }
        match run(model, device, &mut states, command) {
            Ok(()) => {}
            // All ranks have left the step; rank 0 decides what follows.
            Err(_) => group.link.lock().check()?,
        }
    }
}

fn run(
    model: &LoadedModel,
    device: &mut DeviceContext,
    states: &mut HashMap<StateId, StateId>,
    command: RankCommand,
) -> Result<()> {
    let find = |states: &HashMap<StateId, StateId>, state: StateId| {
        let found = states.get(&state).copied();
        found.ok_or_else(|| Error::Machine(format!("rank 0 refers to unknown session {}", state.0)))
    };
    match command {
        RankCommand::Layers { first, end, batch } => {
            let mut batch = batch;
            for segment in &mut batch.segments {
                segment.state = find(states, segment.state)?;
            }
            run_layers(model, device, (first, end), &batch)
        }
        RankCommand::CreateState { state, context } => {
            let made = device.backend.states_mut().create_state(&model.plan.state, context);
            keep(device, states, (state, made))
        }
        RankCommand::Fork { from, state } => {
            let made =
                find(states, from).and_then(|from| device.backend.states_mut().fork_state(from));
            keep(device, states, (state, made))
        }
        RankCommand::Reserve { state, first, end } => {
            let state = find(states, state);
            let done = state.and_then(|state| {
                device.backend.states_mut().reserve_positions(state, &(first..end))
            });
            agree(device, done)
        }
        RankCommand::SetMarks { state, n_marks } => {
            let state = find(states, state);
            let done =
                state.and_then(|state| device.backend.states_mut().set_marks(state, n_marks));
            agree(device, done)
        }
        RankCommand::Drop { state } => {
            states
                .remove(&state)
                .into_iter()
                .for_each(|it| device.backend.states_mut().drop_state(it));
            Ok(())
        }
        RankCommand::Reset { state } => {
            device.backend.states_mut().reset_state(find(states, state)?);
            Ok(())
        }
        RankCommand::Commit { state } => {
            device.backend.states_mut().commit_state(find(states, state)?);
            Ok(())
        }
        RankCommand::WriteState { state, part, bytes } => {
            let state = find(states, state)?;
            device.backend.states_mut().write_state(state, part, &bytes)
        }
        RankCommand::SwapRows { buffer, n_rows } => device.backend.swap_rows(buffer, n_rows),
        RankCommand::End => Ok(()),
    }
}

fn run_layers(
    model: &LoadedModel,
    device: &mut DeviceContext,
    (first, end): (LayerIdx, LayerIdx),
    batch: &OwnedBatch,
) -> Result<()> {
    let n_layers = model.plan.layers.len();
    if first.0 >= end.0 || end.0 > n_layers || batch.rows.len() > device.backend.n_rows_max() {
        return Err(Error::Machine(format!(
            "rank 0 requested invalid layers {}..{} over {} rows",
            first.0,
            end.0,
            batch.rows.len()
        )));
    }
    let batch = batch.batch();
    (first.0..end.0)
        .try_for_each(|layer| run_next_layer(model, device, &batch, (LayerIdx(layer), end)))
}

/// Stores the session that this rank created for `state`; drops it if another rank failed to.
///
/// # Errors
///
/// As [`agree`].
fn keep(
    device: &mut DeviceContext,
    states: &mut HashMap<StateId, StateId>,
    (state, made): (StateId, Result<StateId>),
) -> Result<()> {
    let made_here = made.as_ref().ok().copied();
    let agreed = agree(device, made.map(drop));
    match (made_here, agreed.is_ok()) {
        (Some(made), true) => drop(states.insert(state, made)),
        (Some(made), false) => device.backend.states_mut().drop_state(made),
        (None, _) => {}
    }
    agreed
}

/// Exchanges the results of all ranks. Returns an error if a rank failed.
fn agree(device: &DeviceContext, done: Result<()>) -> Result<()> {
    let group = device.group.as_ref().expect("one of several ranks");
    group.link.lock().agree(done)
}
