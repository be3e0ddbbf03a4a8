//! Binds tables whose rows stay on the drive, and integers whose values are known beforehand.
//!
//! **Invariant:** the tensors of a table have its rows in order, each once, in one type of float or
//! in FP8 with one scale for all of them.

use moeflux_kernels::FloatKind;

use crate::error::{Error, Result};
use crate::format::{DType, PackedRows};
use crate::ids::TableId;
use crate::weights::bind::Binder;
use crate::weights::bind::stored::fp8;
use crate::weights::bind::table::TensorTable;
use crate::weights::manifest::KnownIntegers;
use crate::weights::row_table::{BlockShape, RowBlocks, RowRun, RowStorage, RowTable, TableValues};
use crate::weights::tensors::{FoundTensor, RequiredMatrix, float_kind};

/// Upper bound on the tensors of a table; published models have 512.
const N_SHARDS_MAX: usize = 1 << 16;

impl Binder<'_> {
    /// Binds a table `[n_rows, n_cols]` whose rows stay on the drive. `base` is its name without
    /// `.weight`. It may be divided by rows into tensors `{base}.shard_0.weight` and so on.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if a tensor is missing or has another shape or type.
    pub(crate) fn row_table(
        &mut self,
        base: &str,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<TableId> {
        RequiredMatrix { base, n_stack: None, n_rows, n_cols }.check_size()?;
        if let TensorTable::Synthetic(builder) = &mut self.table {
            builder.row_table(base, n_rows, n_cols);
        }
        if let Some((file_idx, rows)) = self.table.take_rows(base) {
            let first_bytes = self.table.data_at(file_idx) + rows.begin_bytes;
            let asking = self.table.described_by();
            let (dtype, shape) = packed_table(rows, (n_rows, n_cols), asking)?;
            let blocks = RowBlocks { file_idx, first_bytes, shape };
            let storage = RowStorage::Blocks(blocks);
            return self.push_table(base, (n_rows, n_cols, dtype), storage);
        }
        let mut tensors = self.table_tensors(base)?;
        let (mut dtype, mut first_row) = (None, 0);
        let mut runs = Vec::new();
        for found in tensors.drain(..) {
            check_type(&found, dtype)?;
            dtype = Some(found.dtype);
            let n_own_rows = n_own_rows(&found, n_cols)?;
            runs.push(RowRun { first_row, extent: found.extent });
            first_row += n_own_rows as u64;
        }
        if first_row != n_rows as u64 {
            let asking = self.table.described_by();
            let problem = format!("has {first_row} rows, but {asking} requires {n_rows}");
            return Err(Error::tensor(base, problem));
        }
        let dtype = dtype.expect("a table has a tensor");
        self.push_table(base, (n_rows, n_cols, dtype), RowStorage::Tensors(runs))
    }

    fn push_table(
        &mut self,
        base: &str,
        (n_rows, n_cols, dtype): (usize, usize, DType),
        storage: RowStorage,
    ) -> Result<TableId> {
        let values = match float_kind(dtype) {
            Some(kind) => TableValues::Floats(kind),
            None => {
                let names = fp8::SCALES.map(|name| format!("{base}.{name}"));
                let found = names.iter().find(|name| self.table.has_stored(name));
                // The published table has a `weight_scale`: errors ask for that one.
                TableValues::Fp8 { scale: self.vector(found.unwrap_or(&names[1]), 1)? }
            }
        };
        self.tables.push(RowTable { name: base.to_owned(), n_rows, n_cols, values, storage });
        Ok(TableId(self.tables.len() - 1))
    }

    /// Takes the tensors of a table, in the order of their rows.
    fn table_tensors(&mut self, base: &str) -> Result<Vec<FoundTensor>> {
        let whole = format!("{base}.weight");
        let shard = |shard_idx: usize| format!("{base}.shard_{shard_idx}.weight");
        if self.table.has_stored(&whole) || !self.table.has_stored(&shard(0)) {
            return Ok(vec![self.table.take(&whole)?]);
        }
        let names = (0..N_SHARDS_MAX).map(shard);
        let names: Vec<String> = names.take_while(|name| self.table.has_stored(name)).collect();
        names.iter().map(|name| self.table.take(name)).collect()
    }

    /// Binds integers that follow from the config. Their values are compared when weights are
    /// loaded.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if the tensor is missing or has another shape or type.
    pub(crate) fn known_integers(&mut self, tensor: &str, values: &[i64]) -> Result<()> {
        if let TensorTable::Synthetic(builder) = &mut self.table {
            builder.integers(tensor, values);
        }
        let found = self.table.take(tensor)?;
        if found.dtype != DType::I64 {
            return Err(found.error(format!("has values of type {}, not I64", found.dtype)));
        }
        found.expect_shape(&[values.len()])?;
        let FoundTensor { name, extent, .. } = found;
        self.integers.push(KnownIntegers { name, extent, values: values.to_vec() });
        Ok(())
    }
}

/// Returns type and blocks of a packed table; an error if it is not the required one.
fn packed_table(
    rows: &PackedRows,
    (n_rows, n_cols): (usize, usize),
    asking: &str,
) -> Result<(DType, BlockShape)> {
    if (rows.n_rows, rows.n_cols) != (n_rows, n_cols) {
        return Err(Error::tensor(
            &rows.tensor,
            format!(
                "has {} rows of {} values, but {asking} requires {n_rows} of {n_cols}",
                rows.n_rows, rows.n_cols
            ),
        ));
    }
    let value_bytes = float_kind(rows.values).map_or(1, FloatKind::bytes);
    let shape = BlockShape::new(n_cols * value_bytes);
    if (rows.block_bytes, rows.n_blocks) != (shape.block_bytes, shape.n_blocks(n_rows)) {
        let problem = format!(
            "has {} blocks of {} bytes; these rows take {} of {}: pack the source again",
            rows.n_blocks,
            rows.block_bytes,
            shape.n_blocks(n_rows),
            shape.block_bytes
        );
        return Err(Error::tensor(&rows.tensor, problem));
    }
    Ok((rows.values, shape))
}

/// Checks the type of a tensor of rows, of which those before it have type `others`.
fn check_type(found: &FoundTensor, others: Option<DType>) -> Result<()> {
    let dtype = found.dtype;
    if float_kind(dtype).is_none() && dtype != DType::F8E4M3 {
        return Err(found.error(format!(
            "has values of type {dtype}; rows are read from the drive as F32, F16, BF16 or F8_E4M3"
        )));
    }
    if others.is_some_and(|others| others != dtype) {
        let problem = format!("has values of type {dtype}, unlike the rows before it");
        return Err(found.error(problem));
    }
    Ok(())
}

fn n_own_rows(found: &FoundTensor, n_cols: usize) -> Result<usize> {
    match found.shape[..] {
        [n_rows, own_cols] if own_cols == n_cols && n_rows > 0 => Ok(n_rows),
        _ => {
            let (shape, asking) = (&found.shape, found.described_by);
            Err(found.error(format!("has shape {shape:?}, but {asking} requires rows of {n_cols}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use moeflux_kernels::FloatKind;
    use moeflux_testing::temp_dir::TempDir;

    use super::*;
    use crate::format::Checkpoint;
    use crate::spec::Family;
    use crate::weights::bind::TensorSource;
    use crate::weights::tests_support::{Tensors, spec};
    use crate::weights::{Manifest, PageCaching, SyntheticFormat, SyntheticKind, load};

    const BASE: &str = "model.layers.1.ple.ple_embedding.ngram_embedding";
    const INTEGERS: &str = "model.layers.1.ple.ple_embedding.layer_multipliers";

    fn with_shards(shapes: &[(&'static str, [usize; 2])]) -> Tensors {
        let mut tensors = Tensors::default();
        // Names do not sort as numbers do.
        for (shard_idx, (dtype, shape)) in shapes.iter().enumerate().rev() {
            tensors.add(&format!("{BASE}.shard_{shard_idx}.weight"), dtype, shape);
        }
        tensors
    }

    fn bind(source: TensorSource<'_>, n_rows: usize, integers: &[i64]) -> Result<Manifest> {
        let spec = spec(Family::Qwen3Moe, 1);
        let mut binder = Binder::new(source, &spec);
        assert_eq!(binder.row_table(BASE, n_rows, 10)?, TableId(0));
        if !integers.is_empty() {
            binder.known_integers(INTEGERS, integers)?;
        }
        binder.finish()
    }

    #[test]
    fn shards_are_one_table_in_the_order_of_their_numbers() {
        let shapes = [("BF16", [3, 10]); 12];
        let tensors = with_shards(&shapes);
        let (_dir, checkpoint) = tensors.open();
        let manifest = bind(TensorSource::Checkpoint(&checkpoint), 36, &[]).unwrap();
        let table = manifest.table(TableId(0));
        assert_eq!(
            (table.values, table.row_bytes(), table.total_bytes()),
            (TableValues::Floats(FloatKind::Bf16), 20, 720)
        );
        for row in 0..36 {
            let extent = table.place(row).extent;
            let name = format!("{BASE}.shard_{}.weight", row / 3);
            let entry = &checkpoint.tensors[&name];
            assert_eq!(extent.offset_bytes, entry.offset_bytes + row % 3 * 20, "row {row}");
        }
    }

    #[test]
    fn wrong_tables_are_refused_by_name() {
        let problem = |shapes: &[(&'static str, [usize; 2])], n_rows| {
            let (_dir, checkpoint) = with_shards(shapes).open();
            let bound = bind(TensorSource::Checkpoint(&checkpoint), n_rows, &[]);
            bound.unwrap_err().to_string()
        };
        let sound = ("F16", [3, 10]);
        for (shapes, n_rows, expected) in [
            (vec![sound, sound], 7, "has 6 rows, but config.json requires 7"),
            (vec![sound, ("F16", [3, 11])], 6, "shard_1.weight`: has shape [3, 11]"),
            (vec![sound, ("F32", [3, 10])], 6, "shard_1.weight`: has values of type F32, unlike"),
            (vec![("I32", [3, 10])], 3, "has values of type I32; rows are read"),
            (vec![("F8_E4M3", [3, 10])], 3, "ngram_embedding.weight_scale`: is missing"),
            (vec![], 3, "ngram_embedding.weight`: is missing"),
            (vec![sound], usize::MAX, "ngram_embedding`"),
        ] {
            let found = problem(&shapes, n_rows);
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn fp8_has_one_scale_for_all_shards() {
        let mut tensors = with_shards(&[("F8_E4M3", [3, 10]); 2]);
        tensors.add(&format!("{BASE}.weight_scale"), "BF16", &[1]);
        let (_dir, checkpoint) = tensors.open();
        let manifest = bind(TensorSource::Checkpoint(&checkpoint), 6, &[]).unwrap();
        let table = manifest.table(TableId(0));
        let scale = table.values.scale().unwrap();
        assert_eq!(manifest.vector(scale).n_values(), 1);
        assert_eq!((table.row_bytes(), table.values.dtype()), (10, DType::F8E4M3));
    }

    fn integers(values: &[i64]) -> (TempDir, Checkpoint) {
        let mut tensors = with_shards(&[("BF16", [3, 10])]);
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensors.add_bytes(INTEGERS, "I64", &[values.len()], bytes);
        tensors.open()
    }

    #[test]
    fn known_integers_are_compared_when_weights_are_loaded() {
        let values = [i64::MIN, 3, -5];
        let loaded = |found: &[i64]| {
            let (_dir, checkpoint) = integers(found);
            let manifest = bind(TensorSource::Checkpoint(&checkpoint), 3, &values)?;
            let watch = &mut |_| std::ops::ControlFlow::Continue(());
            load(&manifest, &checkpoint, (None, PageCaching::Kept), watch).map(drop)
        };
        loaded(&values).unwrap();
        let error = loaded(&[i64::MIN, 4, -5]).unwrap_err().to_string();
        assert!(error.contains("has 4 at index 1, but 3 follows from the config"), "{error}");
        let error = loaded(&values[..2]).unwrap_err().to_string();
        assert!(error.contains("has shape [2], but config.json requires [3]"), "{error}");
    }

    #[test]
    fn a_synthetic_table_is_one_tensor() {
        let format = SyntheticFormat { kind: SyntheticKind::Float, scale: FloatKind::Bf16 };
        let manifest = bind(TensorSource::Synthetic(format), 36, &[7, -1]).unwrap();
        assert_eq!(manifest.table_bytes(), 720);
        assert_eq!(manifest.resident_bytes(), 0);
        assert_eq!(manifest.integers[0].values, [7, -1]);
    }
}
