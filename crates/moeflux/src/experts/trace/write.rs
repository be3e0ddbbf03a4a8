//! Writes a trace while its routes are computed.
//!
//! **Invariant:** at most one block and the file's buffer are held back; nothing is allocated after
//! the first large step. A file without its end mark is truncated, and refused when read.

use std::fmt;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{
    MAGIC, N_ALL_EXPERTS_MAX, N_EXPERTS_MAX, N_LAYERS_MAX, N_ROWS_MAX, StepKind, TOP_K_MAX,
    TraceHeader, VERSION, checksum, code,
};
use crate::error::{Error, Result};
use crate::ids::{ExpertIdx, LayerIdx};

/// A trace being written.
pub struct TraceWriter {
    out: BufWriter<Box<dyn Write + Send>>,
    path: PathBuf,
    header: TraceHeader,
    block: Vec<u8>,
    n_blocks: u64,
    /// The layer with which the step under way continues.
    due: Option<(StepKind, usize, LayerIdx)>,
}

impl TraceWriter {
    /// Writes the header. `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a model beyond the format's limits; [`Error::Io`] when writing
    /// fails.
    pub fn new(out: Box<dyn Write + Send>, path: &Path, header: TraceHeader) -> Result<Self> {
        check(&header)?;
        let block = header_bytes(&header);
        let mut out = BufWriter::new(out);
        out.write_all(&block).map_err(Error::io("write", path))?;
        Ok(Self { out, path: path.to_owned(), header, block, n_blocks: 0, due: None })
    }

    /// Writes the experts that the rows of a step chose in a layer: `[n_rows, top_k]`, ascending in
    /// each row. A step begins with the first layer that has experts and contains all such layers
    /// in order. An aborted step is followed by the first layer of the next.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when writing fails.
    ///
    /// # Panics
    ///
    /// If the layer is not due, or `experts` does not consist of whole rows.
    pub fn layer(&mut self, kind: StepKind, layer: LayerIdx, experts: &[ExpertIdx]) -> Result<()> {
        let shape = self.header.layers[layer.0];
        assert!(shape.n_experts > 0, "layer {} has no experts", layer.0);
        assert!(experts.len().is_multiple_of(shape.top_k), "whole rows");
        let n_rows = experts.len() / shape.top_k;
        assert!((1..=N_ROWS_MAX).contains(&n_rows), "a step of {n_rows} rows");
        let is_due = self.due == Some((kind, n_rows, layer));
        assert!(is_due || Some(layer) == self.header.first_layer(), "layers of a step in order");
        self.due = self.header.next_layer(LayerIdx(layer.0 + 1)).map(|next| (kind, n_rows, next));

        let kind_code = match kind {
            StepKind::Prefill => code::PREFILL,
            StepKind::Decode => code::DECODE,
        };
        self.begin_block(kind_code, layer, n_rows);
        for expert in experts {
            assert!(expert.0 < shape.n_experts, "layer {} has no {expert:?}", layer.0);
            let index = u16::try_from(expert.0).expect("a header has at most 65,536 experts");
            self.block.extend(index.to_le_bytes());
        }
        self.end_block()
    }

    /// Writes the end mark and flushes the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when writing fails.
    pub fn finish(mut self) -> Result<()> {
        self.begin_block(code::END, LayerIdx(0), 0);
        self.end_block()?;
        self.out.flush().map_err(Error::io("write", &self.path))
    }

    fn begin_block(&mut self, kind_code: u8, layer: LayerIdx, n_rows: usize) {
        self.block.clear();
        self.block.extend([kind_code, 0]);
        self.block.extend(to_u16(layer.0).to_le_bytes());
        self.block.extend(to_u32(n_rows).to_le_bytes());
    }

    fn end_block(&mut self) -> Result<()> {
        self.block.extend(checksum(&self.block, self.n_blocks));
        self.n_blocks += 1;
        self.out.write_all(&self.block).map_err(Error::io("write", &self.path))
    }
}

impl fmt::Debug for TraceWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceWriter")
            .field("path", &self.path)
            .field("n_blocks", &self.n_blocks)
            .finish_non_exhaustive()
    }
}

fn check(header: &TraceHeader) -> Result<()> {
    let is_known = header.layers.iter().all(|layer| {
        let top_k_max = layer.n_experts.min(TOP_K_MAX);
        layer.n_experts <= N_EXPERTS_MAX
            && (layer.n_experts == 0) == (layer.top_k == 0)
            && layer.top_k <= top_k_max
    });
    let is_too_large = header.layers.len() > N_LAYERS_MAX || header.n_experts() > N_ALL_EXPERTS_MAX;
    if is_too_large || !is_known {
        return Err(Error::Unsupported(format!(
            "a trace takes at most {N_LAYERS_MAX} layers, {N_EXPERTS_MAX} experts in a layer, \
             {N_ALL_EXPERTS_MAX} in all and {TOP_K_MAX} per token: this model has more"
        )));
    }
    Ok(())
}

fn header_bytes(header: &TraceHeader) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(to_u32(header.layers.len()).to_le_bytes());
    bytes.extend(header.fingerprint.to_le_bytes());
    for layer in &header.layers {
        bytes.extend(to_u32(layer.n_experts).to_le_bytes());
        bytes.extend(to_u32(layer.top_k).to_le_bytes());
        bytes.extend(layer.record_bytes.to_le_bytes());
    }
    bytes.extend(checksum(&bytes, u64::MAX));
    bytes
}

fn to_u16(n: usize) -> u16 {
    u16::try_from(n).expect("a layer is below the limit of layers")
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("limits are far below 2^32")
}
