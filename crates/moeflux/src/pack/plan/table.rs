//! The file of a table whose rows are read one by one: blocks of whole rows.
//!
//! **Invariant:** rows keep their bytes, whatever the options: a table is never quantised.

use std::sync::Arc;

use crate::format::{DType, PackedRole, PackedRows, RECORD_ALIGN};
use crate::pack::plan::file::{
    Conversion, FileContent, FilePlan, OutputTensor, header, sums_tensor,
};
use crate::weights::{BlockShape, RowTable};

impl FilePlan {
    /// Plans the file of a table's blocks.
    pub(in crate::pack) fn of_table(name: String, table: &Arc<RowTable>, pack: u64) -> Self {
        let shape = BlockShape::new(table.row_bytes());
        let n_blocks = shape.n_blocks(table.n_rows);
        let tensor = format!("{}.blocks", table.name);
        let role = PackedRole::Rows(PackedRows {
            table: table.name.clone(),
            tensor: tensor.clone(),
            n_blocks,
            block_bytes: shape.block_bytes,
            begin_bytes: 0,
            n_rows: table.n_rows,
            n_cols: table.n_cols,
            values: table.values.dtype(),
        });
        let blocks = OutputTensor {
            name: tensor,
            dtype: DType::U8,
            shape: vec![n_blocks, shape.block_bytes],
            len_bytes: n_blocks as u64 * shape.block_bytes as u64,
        };
        let tensors = vec![blocks, sums_tensor(&table.name, 1)];
        let header = header(&tensors, &role, pack, RECORD_ALIGN);
        let conversion = Conversion::Blocks { table: Arc::clone(table), shape };
        Self { name, header, tensors, content: FileContent::Tensors(vec![conversion]) }
    }
}
