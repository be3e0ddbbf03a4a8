//! Runs a sparse layer in which each of several machines has some rows of every expert.
//!
//! Each chunk consists of up, an exchange of inner values, and down; an exchange of the sum follows
//! the last chunk. **Invariant:** if anything fails here before the last exchange, this rank joins
//! the others in their next one.

use std::hash::Hasher as _;
use std::sync::MutexGuard;

use twox_hash::XxHash3_64;

use crate::backend::{Backend, ShardValues};
use crate::error::Result;
use crate::experts::stream::N_ROWS_ANY_ORDER;
use crate::families::{LayerPlan, MoePlan, ShardedExperts};
use crate::forward::{
    DeviceContext, LoadedModel, ShardGroup, request_experts, residual_stream, tables,
};
use crate::ids::{ExpertIdx, LayerIdx};
use crate::ops::{Batch, Heads, Purpose};
use crate::ranks::{ExchangeStage, RankLink};

/// The experts that a layer's router chose: the result of the steps before them.
struct RoutedExperts {
    /// All experts of the layer, ascending.
    experts: Vec<ExpertIdx>,
    /// Hash of values that must be equal on all ranks.
    hash: u64,
}

pub(super) fn run_layer(
    model: &LoadedModel,
    (device, group): (&mut DeviceContext, &ShardGroup),
    batch: &Batch<'_>,
    (layer, plan): (LayerIdx, &LayerPlan),
) -> Result<()> {
    let (Some(moe), stage) = (&plan.moe, ExchangeStage::Inner(layer)) else {
        unreachable!("a dense layer is computed by each rank alone")
    };
    let sharded = moe.sharded.as_ref().expect("plans of several ranks are divided");
    let routed = route(model, (device, group), batch, (layer, plan, moe));
    let routed = match routed {
        Ok(routed) => routed,
        Err(error) => return group.exchange(stage, 0, Err(error)).map(drop),
    };
    let mut hash = routed.hash;
    // A failure after an exchange is sent in the next one, where the others wait for this rank.
    let mut computed = Ok(());
    for chunk in routed.experts.chunks(group.n_chunk_experts) {
        let own = computed.and_then(|()| up(device, sharded, group, chunk));
        let n_uses = own.as_ref().map_or(0, |own| own.len() / sharded.inner[group.rank()].len());
        let link = group.exchange(stage, hash, own)?;
        // The hash is compared once per layer.
        hash = 0;
        computed = down(device, sharded, link, n_uses);
    }
    share_sum((device, batch.rows.len()), sharded, (group, layer), computed)?;
    device.backend.submit(&moe.combine, batch)
}

/// Runs all steps before the experts.
fn route(
    model: &LoadedModel,
    (device, group): (&mut DeviceContext, &ShardGroup),
    batch: &Batch<'_>,
    (layer, plan, moe): (LayerIdx, &LayerPlan, &MoePlan),
) -> Result<RoutedExperts> {
    tables::supply(model, device, batch, layer)?;
    device.backend.submit(&plan.mixer, batch)?;
    let routes = device.backend.routes(Purpose::Compute)?;
    let mut experts = routes.experts.clone();
    experts.sort_unstable();
    experts.dedup();
    let mut hash = XxHash3_64::new();
    routes.experts.iter().for_each(|expert| hash.write_u64(expert.0 as u64));
    hash.write(bytemuck::cast_slice(&routes.weights));
    let x = moe.sharded.as_ref().map(|sharded| sharded.x);
    for view in [Some(residual_stream(model)), x].into_iter().flatten() {
        hash_rows(device, (&view, batch.rows.len()), &mut hash)?;
    }
    let is_small = batch.is_decode() || batch.rows.len() <= N_ROWS_ANY_ORDER;
    // Experts may come in any order only within a single chunk.
    let is_small = is_small && experts.len() <= group.n_chunk_experts;
    request_experts(model, device, batch, (layer, is_small))?;
    device.backend.submit(&moe.shared, batch)?;
    Ok(RoutedExperts { experts, hash: hash.finish() })
}

fn hash_rows(
    device: &mut DeviceContext,
    (view, n_rows): (&Heads, usize),
    hash: &mut XxHash3_64,
) -> Result<()> {
    let DeviceContext { backend, row, .. } = device;
    row.resize(view.end_col(), 0.0);
    for row_idx in 0..n_rows {
        backend.read_row(view.buffer, row_idx, row)?;
        for head_idx in 0..view.n_heads {
            hash.write(bytemuck::cast_slice(&row[view.cols(head_idx)]));
        }
    }
    Ok(())
}

/// Computes this rank's inner values of a chunk.
fn up(
    device: &mut DeviceContext,
    sharded: &ShardedExperts,
    group: &ShardGroup,
    chunk: &[ExpertIdx],
) -> Result<Vec<f32>> {
    let DeviceContext { backend, experts, .. } = device;
    backend.sharding_or_refuse()?.begin_chunk(chunk, sharded.n_inner)?;
    let end = chunk.last().map_or(0, |last| last.0 + 1);
    experts.begin_chunk(ExpertIdx(end));
    while let Some(arrived) = experts.next_ready()? {
        backend.submit_experts(&sharded.up, &arrived)?;
    }
    let own = sharded.inner[group.rank()].clone();
    read(&mut **backend, &ShardValues::Inner(own))
}

/// Completes a chunk with the inner values of the other ranks, which `link` has just received.
fn down(
    device: &mut DeviceContext,
    sharded: &ShardedExperts,
    mut link: MutexGuard<'_, RankLink>,
    n_uses: usize,
) -> Result<()> {
    let sharding = device.backend.sharding_or_refuse()?;
    for (rank, cols) in sharded.inner.iter().enumerate() {
        if rank != link.topology().rank {
            let values = link.floats_of(rank, n_uses * cols.len())?;
            sharding.write_values(&ShardValues::Inner(cols.clone()), &values)?;
        }
    }
    drop(link);
    device.backend.submit_experts(&sharded.down, &device.experts.chunk())?;
    device.experts.end_chunk();
    Ok(())
}

/// Exchanges this rank's columns of the sum of all experts, or the failure of their computation.
fn share_sum(
    (device, n_rows): (&mut DeviceContext, usize),
    sharded: &ShardedExperts,
    (group, layer): (&ShardGroup, LayerIdx),
    computed: Result<()>,
) -> Result<()> {
    let own = ShardValues::Sum(sharded.sums[group.rank()]);
    let own = computed.and_then(|()| read(&mut *device.backend, &own));
    group.link.lock().set_read_wait(device.experts.read_wait());
    let mut link = group.exchange(ExchangeStage::Sum(layer), 0, own)?;
    for (rank, cols) in sharded.sums.iter().enumerate() {
        if rank != link.topology().rank {
            let values = link.floats_of(rank, n_rows * cols.head_dim)?;
            device.backend.sharding_or_refuse()?.write_values(&ShardValues::Sum(*cols), &values)?;
        }
    }
    Ok(())
}

fn read(backend: &mut dyn Backend, values: &ShardValues) -> Result<Vec<f32>> {
    let mut own = Vec::new();
    backend.sharding_or_refuse()?.read_values(values, &mut own)?;
    Ok(own)
}
