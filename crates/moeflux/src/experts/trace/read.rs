//! Parses a trace.
//!
//! **Invariant:** no length from the file is used before it is compared with the bytes that are
//! there; damage anywhere is detected and its location reported.

use std::path::Path;

use super::{
    BlockHead, FILE_BYTES_MAX, LayerShape, MAGIC, N_ALL_EXPERTS_MAX, N_EXPERTS_MAX, N_LAYERS_MAX,
    N_ROWS_MAX, StepKind, TOP_K_MAX, Trace, TraceHeader, TraceUse, VERSION, checksum, code,
};
use crate::error::{Error, Result, grouped};
use crate::format::read_file;
use crate::ids::LayerIdx;

/// Magic, version, number of layers, fingerprint.
const PREAMBLE_BYTES: usize = 24;

/// Experts, experts per token, bytes of a record.
const LAYER_BYTES: usize = 16;

/// Kind, layer and rows of a block.
const BLOCK_HEAD_BYTES: usize = 8;

/// Checksum.
const SUM_BYTES: usize = 4;

impl Trace {
    /// Reads the trace in a file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the file cannot be read; otherwise as [`Trace::parse`].
    pub fn open(path: &Path) -> Result<Self> {
        Self::parse(&read_file(path, FILE_BYTES_MAX)?, path)
    }

    /// Parses the bytes of a trace. `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the byte offset of the fault.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let mut cursor = TraceCursor { bytes, at: 0 };
        let parsed = header(&mut cursor).and_then(|header| {
            let n_uses = vec![0; header.layers.iter().map(|it| it.n_experts).max().unwrap_or(0)];
            let mut reader = TraceReader { trace: Self::empty(header), n_uses, due: None };
            while reader.block(&mut cursor)? {}
            Ok(reader.trace)
        });
        parsed.map_err(|fault| {
            let problem = format!("{} at byte {}", fault.what, grouped(fault.at as u64));
            Error::malformed(path, problem)
        })
    }
}

/// A problem and its offset.
struct TraceFault {
    what: String,
    at: usize,
}

type TraceResult<T> = std::result::Result<T, TraceFault>;

fn fault<T>(at: usize, what: impl Into<String>) -> TraceResult<T> {
    Err(TraceFault { what: what.into(), at })
}

struct TraceCursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> TraceCursor<'a> {
    fn take(&mut self, n_bytes: usize, what: &str) -> TraceResult<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..n_bytes) else {
            return fault(self.bytes.len(), format!("truncated: {what} is incomplete"));
        };
        self.at += n_bytes;
        Ok(taken)
    }

    /// Checks the bytes from `start` up to here against the checksum that follows.
    fn check_sum(&mut self, start: usize, block_idx: u64) -> TraceResult<()> {
        let bytes = &self.bytes[start..self.at];
        let found = self.take(SUM_BYTES, "a checksum")?;
        if found == checksum(bytes, block_idx) {
            return Ok(());
        }
        fault(start, "damaged: the checksum does not match the part that begins")
    }
}

fn header(cursor: &mut TraceCursor<'_>) -> TraceResult<TraceHeader> {
    let preamble = cursor.take(PREAMBLE_BYTES, "the header")?;
    if preamble[..8] != MAGIC {
        return fault(0, "is not a routing trace: wrong magic number");
    }
    let version = u32_at(preamble, 8);
    if version != VERSION {
        let what = format!("unsupported version {version}, expected {VERSION},");
        return fault(8, what);
    }
    let n_layers = u32_at(preamble, 12) as usize;
    if n_layers > N_LAYERS_MAX {
        return fault(12, format!("{n_layers} layers exceed the limit of {N_LAYERS_MAX},"));
    }
    let table_at = cursor.at;
    let table = cursor.take(n_layers * LAYER_BYTES, "the table of layers")?;
    cursor.check_sum(0, u64::MAX)?;
    let layer = |(layer_idx, bytes): (usize, &[u8])| {
        let (n_experts, top_k) = (u32_at(bytes, 0) as usize, u32_at(bytes, 4) as usize);
        let is_known = n_experts <= N_EXPERTS_MAX && top_k <= n_experts.min(TOP_K_MAX);
        if !is_known || (n_experts == 0) != (top_k == 0) {
            let what =
                format!("layer {layer_idx}: invalid choice of {top_k} of {n_experts} experts,");
            return fault(table_at + layer_idx * LAYER_BYTES, what);
        }
        Ok(LayerShape { n_experts, top_k, record_bytes: u64_at(bytes, 8) })
    };
    let layers = table.chunks_exact(LAYER_BYTES).enumerate().map(layer);
    let layers = layers.collect::<TraceResult<_>>()?;
    let header = TraceHeader { fingerprint: u64_at(preamble, 16), layers };
    let n_experts = header.n_experts();
    if n_experts > N_ALL_EXPERTS_MAX {
        let what = format!("{n_experts} experts in total exceed the limit of {N_ALL_EXPERTS_MAX},");
        return fault(table_at, what);
    }
    Ok(header)
}

struct TraceReader {
    trace: Trace,
    /// Per expert of a layer: its uses in the current block; zero between blocks.
    n_uses: Vec<u32>,
    due: Option<(StepKind, usize, LayerIdx)>,
}

impl TraceReader {
    /// Reads a block; returns whether there was one. The end mark is none.
    fn block(&mut self, cursor: &mut TraceCursor<'_>) -> TraceResult<bool> {
        let start = cursor.at;
        let head = cursor.take(BLOCK_HEAD_BYTES, "a block's head")?;
        let (kind_code, zero) = (head[0], head[1]);
        let layer = LayerIdx(usize::from(u16::from_le_bytes([head[2], head[3]])));
        let n_rows = u32_at(head, 4) as usize;
        let is_end = kind_code == code::END && layer.0 == 0 && n_rows == 0;
        let kind = match kind_code {
            _ if zero != 0 => return fault(start + 1, "damaged: a reserved byte is not zero"),
            code::PREFILL => StepKind::Prefill,
            code::DECODE => StepKind::Decode,
            code::END if is_end => StepKind::Decode,
            other => return fault(start, format!("damaged: unknown block kind {other},")),
        };
        let top_k = if is_end { 0 } else { self.top_k(start, (kind, n_rows, layer))? };
        let rows = cursor.take(n_rows * top_k * 2, "a block")?;
        cursor.check_sum(start, self.trace.blocks.len() as u64)?;
        if is_end {
            let is_last = cursor.at == cursor.bytes.len();
            return if is_last {
                Ok(false)
            } else {
                fault(cursor.at, "trailing data after the end mark")
            };
        }
        let rows_at = start + BLOCK_HEAD_BYTES;
        self.count(rows, (rows_at, top_k, self.trace.header.layers[layer.0].n_experts))?;
        self.trace.blocks.push(BlockHead { kind, n_rows, layer, uses_end: self.trace.uses.len() });
        Ok(true)
    }

    /// Returns the experts per row of a block, if it may appear here.
    fn top_k(&mut self, at: usize, found: (StepKind, usize, LayerIdx)) -> TraceResult<usize> {
        let (kind, n_rows, layer) = found;
        let header = &self.trace.header;
        let is_first = header.first_layer() == Some(layer);
        if self.due != Some(found) && !is_first {
            return fault(at, format!("damaged: layer {} is out of order", layer.0));
        }
        if !(1..=N_ROWS_MAX).contains(&n_rows) {
            return fault(at + 4, format!("damaged: a step of {n_rows} rows"));
        }
        self.due = header.next_layer(LayerIdx(layer.0 + 1)).map(|next| (kind, n_rows, next));
        Ok(header.layers[layer.0].top_k)
    }

    /// Counts the uses of a block and adds them to the trace.
    fn count(
        &mut self,
        rows: &[u8],
        (rows_at, top_k, n_experts): (usize, usize, usize),
    ) -> TraceResult<()> {
        let mut before = None;
        for (idx, bytes) in rows.chunks_exact(2).enumerate() {
            let expert = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            before = before.filter(|_| !idx.is_multiple_of(top_k));
            if expert >= n_experts || before.is_some_and(|before| before >= expert) {
                let what = format!("damaged: expert {expert} is out of range or out of order");
                return fault(rows_at + 2 * idx, what);
            }
            before = Some(expert);
            self.n_uses[expert] += 1;
        }
        for (expert, n_uses) in (0_u32..).zip(&mut self.n_uses[..n_experts]) {
            if *n_uses > 0 {
                self.trace.uses.push(TraceUse { expert, n_uses: std::mem::take(n_uses) });
            }
        }
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
