//! Detects non-finite values after every step and traces them to the operation that produced them.
//!
//! Damaged or overflowing weights give NaN or infinity somewhere. **Invariant:** none is lost on
//! the way: operations propagate NaN, and produce it if an intermediate value overflows, so it
//! shows in the residual stream and the logits. Only these are checked after each step, which costs
//! next to nothing; if a check fails, the step is repeated to find the place.

use crate::error::{Error, Result};
use crate::forward::{DeviceContext, LoadedModel, residual_stream, run_layer, tables};
use crate::ids::LayerIdx;
use crate::ops::{Batch, Heads, Plan};

/// Fails if a step's residual stream is not finite. On devices from which it would have to be
/// fetched, only logits are checked.
pub(super) fn check_stream(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
) -> Result<()> {
    if device.backend.reads_stall() || is_finite(device, &residual_stream(model), batch)? {
        return Ok(());
    }
    Err(locate(model, device, batch))
}

/// Returns the error for a step that produced a non-finite value. If the search fails, for example
/// because of a drive, the place remains unknown.
pub(super) fn locate(model: &LoadedModel, device: &mut DeviceContext, batch: &Batch<'_>) -> Error {
    match first_broken(model, device, batch) {
        Ok(place) => Error::NonFinite { place },
        Err(error) => {
            Error::NonFinite { place: format!("an unknown place (search failed: {error})") }
        }
    }
}

fn first_broken(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
) -> Result<String> {
    let stream = residual_stream(model);
    device.backend.submit(&model.plan.embed, batch)?;
    if !is_finite(device, &stream, batch)? {
        return Ok("the embedding".to_owned());
    }
    for (layer_idx, layer) in model.plan.layers.iter().enumerate() {
        let at = (LayerIdx(layer_idx), layer);
        let ran = run_layer(model, device, batch, at);
        if matches!(ran, Err(Error::NonFinite { .. })) || !is_finite(device, &stream, batch)? {
            return within_layer(model, device, batch, layer_idx);
        }
        ran?;
    }
    Ok("the logits".to_owned())
}

/// Computes up to a layer once more and runs its operations one by one.
fn within_layer(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    broken_idx: usize,
) -> Result<String> {
    device.backend.submit(&model.plan.embed, batch)?;
    for (layer_idx, layer) in model.plan.layers.iter().enumerate().take(broken_idx) {
        run_layer(model, device, batch, (LayerIdx(layer_idx), layer))?;
    }
    tables::supply(model, device, batch, LayerIdx(broken_idx))?;
    let layer = &model.plan.layers[broken_idx];
    let shared = layer.moe.iter().flat_map(|moe| moe.shared.ops());
    for op in layer.mixer.ops().iter().chain(shared) {
        device.backend.submit(&Plan::new(vec![op.clone()]), batch)?;
        let Some(out) = op.heads().last().copied() else { continue };
        if !is_finite(device, &out, batch)? {
            let name = model.plan.workspace.buffers()[out.buffer.0].name;
            return Ok(format!("layer {broken_idx}, {} (`{name}`)", op.name()));
        }
    }
    Ok(format!("layer {broken_idx}, routed experts"))
}

fn is_finite(device: &mut DeviceContext, view: &Heads, batch: &Batch<'_>) -> Result<bool> {
    let DeviceContext { backend, row, .. } = device;
    row.resize(view.end_col(), 0.0);
    for row_idx in 0..batch.rows.len() {
        backend.read_row(view.buffer, row_idx, row)?;
        let is_whole = (0..view.n_heads).all(|head_idx| all_finite(&row[view.cols(head_idx)]));
        if !is_whole {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether none of the values is NaN or infinite.
pub(super) fn all_finite(values: &[f32]) -> bool {
    // Without an early exit the loop is vectorised.
    values.iter().fold(true, |is_whole, value| is_whole & value.is_finite())
}
