//! Values that are not finite: noticed behind every step, and traced to the operation that made
//! them.
//!
//! Damaged or overflowing weights give NaN or infinity somewhere. **Invariant:** none is lost on
//! the way: operations keep NaN, and give it where an intermediate value overflows, so that the
//! residual stream and the logits show it. So a step is judged by these alone, which costs next to
//! nothing; where it fails, it is walked once more to name the place.

use crate::error::{Error, Result};
use crate::forward::{Device, LoadedModel, run_layer, stream};
use crate::ids::LayerIdx;
use crate::ops::{Batch, Heads, Plan};

/// Refuses a step whose residual stream is not finite. Where that would have to be fetched from a
/// device, logits are judged alone.
pub(super) fn check_stream(
    model: &LoadedModel,
    device: &mut Device,
    batch: &Batch<'_>,
) -> Result<()> {
    if device.backend.is_remote() || is_finite(device, &stream(model), batch)? {
        return Ok(());
    }
    Err(locate(model, device, batch))
}

/// The error about a step that gave a value which is not finite. What goes wrong on the way, a
/// drive for example, leaves the place unknown.
pub(super) fn locate(model: &LoadedModel, device: &mut Device, batch: &Batch<'_>) -> Error {
    match first_broken(model, device, batch) {
        Ok(place) => Error::NonFinite { place },
        Err(error) => Error::NonFinite { place: format!("a place that cannot be found ({error})") },
    }
}

fn first_broken(model: &LoadedModel, device: &mut Device, batch: &Batch<'_>) -> Result<String> {
    let stream = stream(model);
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

/// Comes to a layer once more, and runs its operations one by one.
fn within_layer(
    model: &LoadedModel,
    device: &mut Device,
    batch: &Batch<'_>,
    broken_idx: usize,
) -> Result<String> {
    device.backend.submit(&model.plan.embed, batch)?;
    for (layer_idx, layer) in model.plan.layers.iter().enumerate().take(broken_idx) {
        run_layer(model, device, batch, (LayerIdx(layer_idx), layer))?;
    }
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

fn is_finite(device: &mut Device, view: &Heads, batch: &Batch<'_>) -> Result<bool> {
    let Device { backend, row, .. } = device;
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

/// Whether none of the values is NaN or infinite.
pub(super) fn all_finite(values: &[f32]) -> bool {
    // Without a way out of the loop it takes many at once.
    values.iter().fold(true, |is_whole, value| is_whole & value.is_finite())
}
