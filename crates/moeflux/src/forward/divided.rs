//! Runs a sparse layer in which each of several machines has some rows of every expert.
//!
//! Each wave consists of up, an exchange of inner values, and down; an exchange of the sum follows
//! the last wave. **Invariant:** if anything fails here, this rank joins the others in their next
//! exchange.

use std::hash::Hasher as _;

use twox_hash::XxHash3_64;

use crate::backend::{Backend, WaveValues};
use crate::error::Result;
use crate::experts::stream::N_ROWS_ANY_ORDER;
use crate::families::{DividedExperts, LayerPlan, MoePlan};
use crate::forward::{Device, Group, LoadedModel, ask_for_experts, stream};
use crate::ids::{ExpertIdx, LayerIdx};
use crate::ops::{Batch, Heads, Purpose};
use crate::ranks::Stage;

/// Result of the steps before the experts.
struct Begun {
    /// All experts of the layer, ascending.
    experts: Vec<ExpertIdx>,
    /// Hash of values that must be equal on all ranks.
    hash: u64,
}

pub(super) fn run_layer(
    model: &LoadedModel,
    (device, group): (&mut Device, &Group),
    batch: &Batch<'_>,
    (layer, plan): (LayerIdx, &LayerPlan),
) -> Result<()> {
    let (Some(moe), stage) = (&plan.moe, Stage::Inner(layer)) else {
        unreachable!("a dense layer is computed by each rank alone")
    };
    let divided = moe.divided.as_ref().expect("plans of several ranks are divided");
    let begun = begin(model, (device, group), batch, (layer, plan, moe));
    let begun = match begun {
        Ok(begun) => begun,
        Err(error) => return group.meet(stage, 0, Err(error)).map(drop),
    };
    let mut hash = begun.hash;
    for wave in begun.experts.chunks(group.n_wave) {
        let own = up(device, divided, group, wave);
        let n_uses = own.as_ref().map_or(0, |own| own.len() / divided.inner[group.rank()].len());
        let mut link = group.meet(stage, hash, own)?;
        // The hash is compared once per layer.
        hash = 0;
        for (rank, cols) in divided.inner.iter().enumerate() {
            if rank != link.place().rank {
                let values = link.floats_of(rank, n_uses * cols.len())?;
                device
                    .backend
                    .waves_or_refuse()?
                    .write_values(&WaveValues::Inner(cols.clone()), &values)?;
            }
        }
        drop(link);
        device.backend.submit_experts(&divided.down, &device.experts.wave())?;
        device.experts.end_wave();
    }
    share_sum((device, batch.rows.len()), divided, (group, layer))?;
    device.backend.submit(&moe.combine, batch)
}

/// Runs all steps before the experts.
fn begin(
    model: &LoadedModel,
    (device, group): (&mut Device, &Group),
    batch: &Batch<'_>,
    (layer, plan, moe): (LayerIdx, &LayerPlan, &MoePlan),
) -> Result<Begun> {
    device.backend.submit(&plan.mixer, batch)?;
    let routes = device.backend.routes(Purpose::Use)?;
    let mut experts = routes.experts.clone();
    experts.sort_unstable();
    experts.dedup();
    let mut hash = XxHash3_64::new();
    routes.experts.iter().for_each(|expert| hash.write_u64(expert.0 as u64));
    hash.write(bytemuck::cast_slice(&routes.weights));
    let x = moe.divided.as_ref().map(|divided| divided.x);
    for view in [Some(stream(model)), x].into_iter().flatten() {
        hash_rows(device, (&view, batch.rows.len()), &mut hash)?;
    }
    let is_small = batch.is_answer() || batch.rows.len() <= N_ROWS_ANY_ORDER;
    // Experts may come in any order only within a single wave.
    let is_small = is_small && experts.len() <= group.n_wave;
    ask_for_experts(model, device, batch, (layer, is_small))?;
    device.backend.submit(&moe.shared, batch)?;
    Ok(Begun { experts, hash: hash.finish() })
}

fn hash_rows(
    device: &mut Device,
    (view, n_rows): (&Heads, usize),
    hash: &mut XxHash3_64,
) -> Result<()> {
    let Device { backend, row, .. } = device;
    row.resize(view.end_col(), 0.0);
    for row_idx in 0..n_rows {
        backend.read_row(view.buffer, row_idx, row)?;
        hash.write(bytemuck::cast_slice(&row[view.cols(0)]));
    }
    Ok(())
}

/// Computes this rank's inner values of a wave.
fn up(
    device: &mut Device,
    divided: &DividedExperts,
    group: &Group,
    wave: &[ExpertIdx],
) -> Result<Vec<f32>> {
    let Device { backend, experts, .. } = device;
    backend.waves_or_refuse()?.begin_wave(wave, divided.n_inner)?;
    let end = wave.last().map_or(0, |last| last.0 + 1);
    experts.begin_wave(ExpertIdx(end));
    while let Some(arrived) = experts.next_ready()? {
        backend.submit_experts(&divided.up, &arrived)?;
    }
    let own = divided.inner[group.rank()].clone();
    read(&mut **backend, &WaveValues::Inner(own))
}

/// Exchanges this rank's columns of the sum of all experts.
fn share_sum(
    (device, n_rows): (&mut Device, usize),
    divided: &DividedExperts,
    (group, layer): (&Group, LayerIdx),
) -> Result<()> {
    let own = read(&mut *device.backend, &WaveValues::Sum(divided.sums[group.rank()]));
    group.link.lock().set_read_wait(device.experts.read_wait());
    let mut link = group.meet(Stage::Sum(layer), 0, own)?;
    for (rank, cols) in divided.sums.iter().enumerate() {
        if rank != link.place().rank {
            let values = link.floats_of(rank, n_rows * cols.head_dim)?;
            device.backend.waves_or_refuse()?.write_values(&WaveValues::Sum(*cols), &values)?;
        }
    }
    Ok(())
}

fn read(backend: &mut dyn Backend, values: &WaveValues) -> Result<Vec<f32>> {
    let mut own = Vec::new();
    backend.waves_or_refuse()?.read_values(values, &mut own)?;
    Ok(own)
}
