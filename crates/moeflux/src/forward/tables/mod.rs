//! Supplies layers with rows of tables: asks for them as soon as the tokens of a batch are known,
//! and writes them to the workspace where a layer reads them.
//!
//! **Invariant:** a layer that looks rows up runs with the rows of its own batch, whatever other
//! batches ran since they were asked for. With several ranks each reads all rows itself, so that
//! they need no exchange; a failure is reported in the next exchange of the layer.

use crate::error::{Error, Result};
use crate::families::TableLookup;
use crate::forward::{DeviceContext, LoadedModel};
use crate::ids::{LayerIdx, TokenId};
use crate::ops::Batch;
use crate::rows::{RowReader, RowStats};

/// Values are freed if there is room for this many times as many as needed, and for many.
const SPARE_SHARE: usize = 4;
const SPARE_MIN: usize = 1 << 18;

/// The tables of a model, and scratch.
#[derive(Debug)]
pub(crate) struct RowTables {
    reader: RowReader,
    needed: NeededRows,
    values: Vec<f32>,
}

/// The rows that a batch needs from one table: `[n_rows, n_heads]`.
#[derive(Debug, Default)]
struct NeededRows {
    rows: Vec<u64>,
    tokens: Vec<TokenId>,
}

impl RowTables {
    /// Wraps a reader of all tables.
    pub(crate) fn new(reader: RowReader) -> Self {
        Self { reader, needed: NeededRows::default(), values: Vec::new() }
    }

    /// Returns the statistics so far.
    pub(crate) fn stats(&self) -> RowStats {
        self.reader.stats()
    }
}

impl NeededRows {
    fn find(&mut self, lookup: &TableLookup, batch: &Batch<'_>) {
        let Self { rows, tokens } = self;
        rows.clear();
        for segment in batch.segments {
            tokens.clear();
            tokens.extend(batch.rows[segment.rows.clone()].iter().map(|row| row.token));
            lookup.hash.rows(&segment.earlier, tokens, rows);
        }
    }
}

/// Asks for the rows of the first layer that needs some.
pub(super) fn ask(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
) -> Result<()> {
    ask_from(model, device, batch, LayerIdx(0))
}

/// Asks for the rows of the first layer from `first` on that needs some.
fn ask_from(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    first: LayerIdx,
) -> Result<()> {
    let Some(RowTables { reader, needed, .. }) = &mut device.tables else { return Ok(()) };
    let mut lookups = model.plan.layers[first.0..].iter().filter_map(|it| it.lookup.as_ref());
    let Some(lookup) = lookups.next() else { return Ok(()) };
    needed.find(lookup, batch);
    reader.ask(lookup.table.0, &needed.rows)
}

/// Handles rows that were read meanwhile, and begins further reads.
pub(super) fn advance(device: &mut DeviceContext) -> Result<()> {
    device.tables.as_mut().map_or(Ok(()), |tables| tables.reader.advance())
}

/// Waits for the rows of a layer, if it needs some, and writes them to the workspace. Then asks for
/// those of the next such layer.
pub(super) fn supply(
    model: &LoadedModel,
    device: &mut DeviceContext,
    batch: &Batch<'_>,
    layer: LayerIdx,
) -> Result<()> {
    let Some(lookup) = &model.plan.layers[layer.0].lookup else { return Ok(()) };
    let DeviceContext { backend, tables, .. } = &mut *device;
    let RowTables { reader, needed, values } = tables.as_mut().expect("tables were opened");
    needed.find(lookup, batch);
    values.clear();
    if values.capacity() / SPARE_SHARE > (batch.rows.len() * lookup.out.end_col()).max(SPARE_MIN) {
        // A long step is over: its memory was lent.
        *values = Vec::new();
    }
    reader.collect(lookup.table.0, &needed.rows, values)?;
    debug_assert_eq!(values.len(), batch.rows.len() * lookup.out.end_col(), "rows fill a buffer");
    backend.write_rows(lookup.out.buffer, values)?;
    ask_from(model, device, batch, LayerIdx(layer.0 + 1))
}

/// Returns a failure at once, or with several ranks in the next exchange, where the others wait.
pub(super) fn report_later(device: &DeviceContext, done: Result<()>) -> Result<()> {
    match (done, &device.group) {
        (Err(error), Some(group)) => {
            group.link.lock().defer(error);
            Ok(())
        }
        (done, _) => done,
    }
}

/// Returns the rows of a batch that need the row that this error is about.
pub(crate) fn rows_that_need(
    model: &LoadedModel,
    device: &DeviceContext,
    batch: &Batch<'_>,
    error: &Error,
) -> Vec<usize> {
    let (Error::TableRow { table, row, .. }, Some(tables)) = (error, &device.tables) else {
        return Vec::new();
    };
    let table_idx = tables.reader.table_idx(table);
    let lookups = model.plan.layers.iter().filter_map(|layer| layer.lookup.as_ref());
    let mut needed = NeededRows::default();
    let mut found = Vec::new();
    for lookup in lookups.filter(|lookup| Some(lookup.table.0) == table_idx) {
        needed.find(lookup, batch);
        let by_row = needed.rows.chunks(lookup.hash.n_heads()).enumerate();
        found.extend(by_row.filter(|(_, rows)| rows.contains(row)).map(|(row_idx, _)| row_idx));
    }
    found
}

#[cfg(test)]
mod tests;
