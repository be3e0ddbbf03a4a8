//! Opens the drives that an engine reads experts and rows of tables from.
//!
//! **Invariant:** only files of the checkpoint, or of its mirror, are opened. Nothing is read here,
//! apart from a short measurement.

use std::time::Duration;

use moeflux_io::Caching;

use crate::budget::{MemoryLayout, Placement};
use crate::config::{EngineConfig, ReadWay, StreamingConfig};
use crate::error::Result;
use crate::experts::stream::{Drives, ReadPurpose, choose_way};
use crate::format::Checkpoint;
use crate::forward::RowTables;
use crate::rows::{RowReader, SumChecks};
use crate::weights::{Manifest, Weights};

/// Time in which the two ways of reading are compared.
pub const PROBE_TIME: Duration = Duration::from_millis(1600);

/// Opens the drives that experts are read from.
pub(crate) fn drives(
    config: &EngineConfig,
    (checkpoint, manifest): (&Checkpoint, &Manifest),
    read_for: ReadPurpose,
) -> Result<Drives> {
    let StreamingConfig { way, drives, mirror, .. } = &config.streaming;
    if let Some(maker) = drives {
        return maker.open(checkpoint, read_for);
    }
    let caching = match way {
        _ if read_for == ReadPurpose::Memory => {
            return Drives::open(checkpoint, Caching::PageCache, None);
        }
        ReadWay::Direct => Caching::Direct,
        ReadWay::PageCache => Caching::PageCache,
        // The page cache drops what was read longest ago: the layer that is needed next.
        ReadWay::Measured if manifest.is_read_in_turn() => Caching::Direct,
        ReadWay::Measured => choose_way(checkpoint, PROBE_TIME)?,
    };
    Drives::open(checkpoint, caching, mirror.as_deref())
}

/// Returns the factor of each table's values.
pub(crate) fn table_scales(manifest: &Manifest, weights: &Weights) -> Vec<f32> {
    let scales = manifest.tables.iter().map(|table| table.values.scale());
    scales.map(|id| id.map_or(1.0, |id| weights.vector(id)[0])).collect()
}

/// Opens the drives that rows of tables are read from; returns `None` if the model has no tables.
/// `scales` are the factors of each table's values.
pub(crate) fn open_tables(
    config: &EngineConfig,
    (checkpoint, manifest): (&Checkpoint, &Manifest),
    (layout, scales): (&MemoryLayout, Vec<f32>),
) -> Result<Option<RowTables>> {
    if manifest.tables.is_empty() {
        return Ok(None);
    }
    let drives = match &config.streaming.drives {
        Some(maker) => maker.open(checkpoint, ReadPurpose::Rows)?,
        // Rows are small and far apart: the page cache would keep a page for each.
        None => {
            let is_streaming = matches!(layout.placement, Placement::Streaming { .. });
            let mirror = config.streaming.mirror.as_deref().filter(|_| is_streaming);
            Drives::open(checkpoint, Caching::Direct, mirror)?
        }
    };
    let paths = checkpoint.files.iter().map(|file| file.path.clone()).collect();
    let tables = manifest.tables.iter().cloned().zip(scales).collect();
    let sum_checks = if config.streaming.checks_sums { SumChecks::On } else { SumChecks::Off };
    let settings = (layout.row_cache_bytes, sum_checks);
    let reader = RowReader::open(tables, (drives, paths), settings)?;
    Ok(Some(RowTables::new(reader)))
}
