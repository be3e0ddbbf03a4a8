//! One file of a pack: its header, and the jobs that fill it, divided into pieces of bounded size.
//!
//! **Invariant:** the header is known before any data, so that a file can be recognised later;
//! pieces cover the data exactly, and the bytes of each tensor and record come in order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use moeflux_kernels::{FloatKind, Fp8, Fp8Spread, MatrixKind, MatrixLayout};

use crate::format::{DType, NewTensor, PackedRole, RECORD_ALIGN, new_header, packed_metadata};
use crate::ids::ExpertIdx;
use crate::pack::plan::heads::{KvProjectionKind, KvProjectionPart};
use crate::pack::plan::rows::FloatRows;
use crate::weights::{
    BlockShape, ExpertBank, ExpertLayout, FileExtent, MatrixSpan, PartRole, RowTable,
};

/// Approximate bytes read per piece: large enough for a drive's full rate, small enough for many
/// pieces in flight.
pub(in crate::pack) const PIECE_BYTES: usize = 2 << 20;

/// Alignment of the data in files without records.
const HEADER_ALIGN: usize = 64;

/// Length of the prefix, which holds the header's length.
const PREFIX_BYTES: usize = 8;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(in crate::pack) struct OutputTensor {
    pub(in crate::pack) name: String,
    pub(in crate::pack) dtype: DType,
    pub(in crate::pack) shape: Vec<usize>,
    pub(in crate::pack) len_bytes: u64,
}

/// The conversion that makes one or three tensors.
#[derive(Clone, Debug)]
pub(in crate::pack) enum Conversion {
    /// One tensor, copied.
    Copied(FileExtent),
    /// A matrix as floats, or its quantised weights, scales and biases.
    Rows { rows: FloatRows, layout: MatrixLayout },
    /// The same for some rows of each head.
    Heads { rows: FloatRows, part: KvProjectionPart, layout: MatrixLayout },
    /// The blocks of a table.
    Blocks { table: Arc<RowTable>, shape: BlockShape },
}

/// The source and conversion of a file's records.
#[derive(Clone, Debug)]
pub(in crate::pack) struct RecordPlan {
    /// Source of the experts.
    pub(in crate::pack) bank: ExpertBank,
    /// Whether they are quantised or copied.
    pub(in crate::pack) is_quantised: bool,
    /// Layout of the record.
    pub(in crate::pack) layout: ExpertLayout,
    /// Types to which gate, up and down are rounded before quantisation.
    pub(in crate::pack) casts: [FloatKind; 3],
}

/// The plan of one file.
#[derive(Debug)]
pub(in crate::pack) struct FilePlan {
    pub(in crate::pack) name: String,
    /// Header with its length prefix.
    pub(in crate::pack) header: Vec<u8>,
    /// Tensors in byte order; the last one holds the checksums.
    pub(in crate::pack) tensors: Vec<OutputTensor>,
    pub(in crate::pack) content: FileContent,
}

/// The contents of a file.
#[derive(Debug)]
pub(in crate::pack) enum FileContent {
    /// Each conversion makes the next one or three tensors.
    Tensors(Vec<Conversion>),
    /// Makes the first tensor.
    Records(Box<RecordPlan>),
}

/// Bytes of the source and their conversion: the input of a job.
#[derive(Clone, Debug)]
pub(in crate::pack) enum InputPiece {
    /// Copies bytes.
    Copied(FileExtent),
    /// Splits an even number of rows of `row_bytes` each: rows at even places first, then those at
    /// odd places.
    Deinterleaved { extent: FileExtent, row_bytes: usize },
    /// Converts rows of a matrix.
    Rows { rows: FloatRows, range: Range<usize>, layout: MatrixLayout },
    /// Converts rows of a matrix that become columns.
    Columns { rows: FloatRows, range: Range<usize>, layout: MatrixLayout },
    /// Arranges rows of a table in blocks.
    Blocks { table: Arc<RowTable>, shape: BlockShape, blocks: Range<u64> },
}

/// A unit of work: a piece of the source and the ranges that its result fills.
#[derive(Clone, Debug)]
pub(in crate::pack) struct PackJob {
    pub(in crate::pack) piece: InputPiece,
    pub(in crate::pack) outputs: Vec<OutputRange>,
}

/// A range of bytes that a job makes, and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pack) enum OutputRange {
    /// A tensor in the file.
    Tensor { tensor_idx: usize, file_bytes: u64, len: usize },
    /// A record that is assembled in memory.
    Record { expert: ExpertIdx, at: usize, len: usize },
}

impl OutputRange {
    pub(in crate::pack) fn len(self) -> usize {
        match self {
            Self::Tensor { len, .. } | Self::Record { len, .. } => len,
        }
    }
}

impl InputPiece {
    /// Returns the indices of the source files that are read.
    pub(in crate::pack) fn sources(&self) -> impl Iterator<Item = usize> + use<> {
        let extents = match self {
            Self::Copied(extent) | Self::Deinterleaved { extent, .. } => vec![*extent],
            Self::Rows { rows, .. } | Self::Columns { rows, .. } => {
                [Some(rows.codes), rows.scales].into_iter().flatten().collect()
            }
            Self::Blocks { table, shape, blocks } => {
                table.extents(&shape.rows_of(blocks, table.n_rows))
            }
        };
        extents.into_iter().map(|extent| extent.file_idx)
    }
}

impl FilePlan {
    /// Plans a file of tensors, with `stem` as the beginning of its name.
    pub(super) fn of_tensors(
        stem: &str,
        role: PackedRole,
        parts: Vec<(Vec<OutputTensor>, Conversion)>,
        pack: u64,
    ) -> Self {
        let mut tensors = Vec::new();
        let mut conversions = Vec::new();
        for (outs, conversion) in parts {
            tensors.extend(outs);
            conversions.push(conversion);
        }
        tensors.push(sums_tensor(stem, tensors.len()));
        let header = header(&tensors, &role, pack, HEADER_ALIGN);
        let name = format!("{stem}.safetensors");
        Self { name, header, tensors, content: FileContent::Tensors(conversions) }
    }

    /// Plans a file of records.
    pub(super) fn of_records(name: String, role: PackedRole, plan: RecordPlan, pack: u64) -> Self {
        let PackedRole::Experts(bank) = &role else { unreachable!("records are of experts") };
        let records = OutputTensor {
            name: bank.tensor.clone(),
            dtype: DType::U8,
            shape: vec![bank.n_experts, bank.record_bytes],
            len_bytes: bank.n_experts as u64 * bank.record_bytes as u64,
        };
        let sums = sums_tensor(&format!("{}.experts", bank.prefix), bank.n_experts);
        let tensors = vec![records, sums];
        let header = header(&tensors, &role, pack, RECORD_ALIGN);
        Self { name, header, tensors, content: FileContent::Records(Box::new(plan)) }
    }

    /// Returns the length of the whole file.
    pub(in crate::pack) fn len_bytes(&self) -> u64 {
        let data: u64 = self.tensors.iter().map(|tensor| tensor.len_bytes).sum();
        self.header.len() as u64 + data
    }

    /// Returns the header without its length prefix, as checksums cover it.
    pub(in crate::pack) fn header_text(&self) -> &[u8] {
        &self.header[PREFIX_BYTES..]
    }

    /// Returns offset and length of the checksums.
    pub(in crate::pack) fn sums_extent(&self) -> (u64, usize) {
        let n_bytes = (self.n_sums() + 1) * size_of::<u64>();
        (self.len_bytes() - n_bytes as u64, n_bytes)
    }

    /// Returns the number of records or tensors that have a checksum.
    pub(in crate::pack) fn n_sums(&self) -> usize {
        match &self.content {
            FileContent::Tensors(_) => self.tensors.len() - 1,
            FileContent::Records(plan) => plan.bank.n_experts,
        }
    }

    /// Returns the length of a record, padding included.
    pub(in crate::pack) fn record_bytes(&self) -> usize {
        match &self.content {
            FileContent::Tensors(_) => 0,
            FileContent::Records(plan) => plan.layout.record_bytes().next_multiple_of(RECORD_ALIGN),
        }
    }

    /// Returns the offset of a range in the file.
    pub(in crate::pack) fn offset_of(&self, output: OutputRange) -> u64 {
        match output {
            OutputRange::Tensor { file_bytes, .. } => file_bytes,
            OutputRange::Record { expert, at, .. } => {
                let first = self.header.len() as u64;
                first + expert.0 as u64 * self.record_bytes() as u64 + at as u64
            }
        }
    }

    /// Returns offset and length of the range that each checksum covers.
    pub(in crate::pack) fn summed(&self) -> Vec<(u64, u64)> {
        let data_at = self.header.len() as u64;
        match &self.content {
            FileContent::Records(plan) => {
                let len_bytes = self.record_bytes() as u64;
                let record = |idx: usize| (data_at + idx as u64 * len_bytes, len_bytes);
                (0..plan.bank.n_experts).map(record).collect()
            }
            FileContent::Tensors(_) => {
                let mut at = data_at;
                let tensors = self.tensors.iter().take(self.n_sums());
                tensors
                    .map(|tensor| {
                        let first = at;
                        at += tensor.len_bytes;
                        (first, tensor.len_bytes)
                    })
                    .collect()
            }
        }
    }

    /// Returns the indices of the source files that this file needs.
    pub(in crate::pack) fn sources(&self) -> Vec<usize> {
        let of_rows = |rows: &FloatRows| {
            [Some(rows.codes), rows.scales].into_iter().flatten().map(|it| it.file_idx).collect()
        };
        let mut found: Vec<usize> = match &self.content {
            FileContent::Tensors(conversions) => {
                let of_conversion = |conversion: &Conversion| match conversion {
                    Conversion::Copied(extent) => vec![extent.file_idx],
                    Conversion::Rows { rows, .. } | Conversion::Heads { rows, .. } => of_rows(rows),
                    Conversion::Blocks { table, .. } => table.files(),
                };
                conversions.iter().flat_map(of_conversion).collect()
            }
            FileContent::Records(plan) => {
                let bank = &plan.bank;
                let of_part = |part: &crate::weights::BankPart| {
                    let experts = (0..bank.n_experts).map(ExpertIdx);
                    experts.map(|expert| part.extent(expert).file_idx).collect::<Vec<_>>()
                };
                bank.parts.iter().flat_map(of_part).collect()
            }
        };
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the jobs in the order in which their results are written.
    pub(in crate::pack) fn jobs(&self) -> Vec<PackJob> {
        let mut jobs = Vec::new();
        match &self.content {
            FileContent::Records(plan) => {
                for expert_idx in 0..plan.bank.n_experts {
                    plan.push_jobs(ExpertIdx(expert_idx), &mut jobs);
                }
            }
            FileContent::Tensors(conversions) => {
                let mut file_bytes = self.header.len() as u64;
                let mut first_tensor = 0;
                for conversion in conversions {
                    let n_tensors = conversion.n_tensors();
                    let tensors = &self.tensors[first_tensor..][..n_tensors];
                    let mut places = Vec::new();
                    for (nth, tensor) in tensors.iter().enumerate() {
                        places.push((first_tensor + nth, file_bytes));
                        file_bytes += tensor.len_bytes;
                    }
                    first_tensor += n_tensors;
                    conversion.push_jobs(&places, &mut jobs);
                }
            }
        }
        jobs
    }
}

impl Conversion {
    fn n_tensors(&self) -> usize {
        match self {
            Self::Copied(_) | Self::Blocks { .. } => 1,
            Self::Rows { layout, .. } | Self::Heads { layout, .. } => n_parts(layout),
        }
    }

    /// Adds jobs. `places` has index and offset in the file of each tensor.
    fn push_jobs(&self, places: &[(usize, u64)], jobs: &mut Vec<PackJob>) {
        let mut filled = [0_u64; 3];
        let mut push = |piece: InputPiece, lens: [usize; 3]| {
            let mut outputs = Vec::new();
            for ((&(tensor_idx, first), filled), len) in places.iter().zip(&mut filled).zip(lens) {
                outputs.push(OutputRange::Tensor { tensor_idx, file_bytes: first + *filled, len });
                *filled += len as u64;
            }
            jobs.push(PackJob { piece, outputs });
        };
        match self {
            Self::Copied(extent) => {
                for piece in pieces_of(*extent) {
                    push(InputPiece::Copied(piece.0), [piece.1, 0, 0]);
                }
            }
            Self::Rows { rows, layout } => {
                for range in row_ranges(rows, 0..rows.layout.n_rows) {
                    let layout = MatrixLayout { n_rows: range.len(), ..*layout };
                    push(
                        InputPiece::Rows { rows: rows.clone(), range, layout },
                        part_lens(&layout),
                    );
                }
            }
            Self::Blocks { table, shape } => {
                let n_blocks = shape.n_blocks(table.n_rows) as u64;
                let step = (PIECE_BYTES / shape.block_bytes).max(1);
                for first in (0..n_blocks).step_by(step) {
                    let blocks = first..n_blocks.min(first + step as u64);
                    let n_own = usize::try_from(blocks.end - first).expect("blocks of a piece");
                    let (table, shape) = (Arc::clone(table), *shape);
                    let piece = InputPiece::Blocks { table, shape, blocks };
                    push(piece, [n_own * shape.block_bytes, 0, 0]);
                }
            }
            Self::Heads { rows, part, layout } => {
                let (n_heads, n_rows, _) = part.shape();
                let stride = part.heads.nope_dim + part.heads.v_dim;
                for head_idx in 0..n_heads {
                    let first = head_idx * stride;
                    let layout = MatrixLayout { n_rows, ..*layout };
                    let rows = rows.clone();
                    let piece = match part.kind {
                        KvProjectionKind::Keys => {
                            let range = first..first + part.heads.nope_dim;
                            InputPiece::Columns { rows, range, layout }
                        }
                        KvProjectionKind::Values => {
                            let range = first + part.heads.nope_dim..first + stride;
                            InputPiece::Rows { rows, range, layout }
                        }
                    };
                    push(piece, part_lens(&layout));
                }
            }
        }
    }
}

impl RecordPlan {
    fn push_jobs(&self, expert: ExpertIdx, jobs: &mut Vec<PackJob>) {
        if self.bank.is_input_first {
            return self.push_transposed(expert, jobs);
        }
        if !self.is_quantised {
            return self.push_copies(expert, jobs);
        }
        let stored = &self.bank.layout;
        let stored =
            [("gate_proj", stored.gate), ("up_proj", stored.up), ("down_proj", stored.down)];
        let targets = [self.layout.gate, self.layout.up, self.layout.down];
        for (((name, stored), target), cast) in stored.iter().zip(targets).zip(self.casts) {
            let part = |role: fn(&PartRole) -> bool| {
                let of_matrix = self.bank.parts.iter().filter(|part| part.name.starts_with(name));
                of_matrix.into_iter().find(|part| role(&part.role)).map(|part| part.extent(expert))
            };
            let Some(codes) = part(|role| !matches!(role, PartRole::Scales(_))) else {
                unreachable!("{name} of a bank has codes")
            };
            let rows = FloatRows {
                name: format!("{}.experts.{}.{name}.weight", self.bank.name, expert.0),
                layout: stored.layout,
                codes,
                scales: part(|role| matches!(role, PartRole::Scales(_))),
                cast,
            };
            push_record_jobs(&rows, (expert, target), jobs);
        }
    }

    /// Adds a job whose input rows become columns.
    fn push_transposed(&self, expert: ExpertIdx, jobs: &mut Vec<PackJob>) {
        let ExpertLayout { gate, up, down } = self.layout;
        let targets = [&[gate, up][..], &[down]];
        let stored = [self.bank.layout.gate, self.bank.layout.down].map(|span| span.layout.kind);
        let sources = self.bank.parts.iter().zip(stored).zip([self.casts[0], self.casts[2]]);
        for (((part, stored), cast), targets) in sources.zip(targets) {
            let [first, ..] = targets else { unreachable!("a part has a target") };
            let n_outputs: usize = targets.iter().map(|target| target.layout.n_rows).sum();
            let layout = MatrixLayout { n_rows: n_outputs, ..first.layout };
            let rows = FloatRows {
                name: part.name.clone(),
                layout: MatrixLayout { kind: stored, n_rows: layout.n_cols, n_cols: n_outputs },
                codes: part.extent(expert),
                scales: None,
                cast: match stored {
                    MatrixKind::Float(kind) if !self.is_quantised => kind,
                    _ => cast,
                },
            };
            let places = |target: &MatrixSpan| {
                let ats = [target.codes_at, target.scales_at, target.biases_at];
                ats.into_iter().zip(part_lens(&target.layout)).collect::<Vec<_>>()
            };
            let places: Vec<_> = targets.iter().map(places).collect();
            // Quantised weights of all targets, then their scales, then their biases.
            let outputs = (0..n_parts(&layout)).flat_map(|part_idx| {
                places.iter().map(move |of_target| {
                    let (at, len) = of_target[part_idx];
                    OutputRange::Record { expert, at, len }
                })
            });
            let outputs = outputs.collect();
            let range = 0..rows.layout.n_rows;
            jobs.push(PackJob { piece: InputPiece::Columns { rows, range, layout }, outputs });
        }
    }

    /// Adds jobs that copy parts. Interleaved rows of gate and up are separated.
    fn push_copies(&self, expert: ExpertIdx, jobs: &mut Vec<PackJob>) {
        let ExpertLayout { gate, up, down } = self.layout;
        let places = |span: MatrixSpan| [span.codes_at, span.scales_at, span.biases_at];
        let mut parts = self.bank.parts.iter();
        if self.bank.layout.is_interleaved() {
            let layout = gate.layout;
            let row_bytes = [layout.row_bytes(), layout.scale_row_bytes()];
            let ats = places(gate).into_iter().zip(places(up));
            for ((gate_at, up_at), row_bytes) in ats.zip(row_bytes).filter(|it| it.1 > 0) {
                let Some(part) = parts.next() else { unreachable!("parts of gate and up") };
                push_deinterleaved(
                    (expert, part.extent(expert)),
                    row_bytes,
                    [gate_at, up_at],
                    jobs,
                );
            }
        }
        let down_places = places(down).into_iter().zip(part_lens(&down.layout));
        let mut down_places = down_places.filter(|(_, len)| *len > 0).map(|(at, _)| at);
        for part in parts {
            let moved = if self.bank.layout.is_interleaved() { down_places.next() } else { None };
            let mut at = moved.unwrap_or(part.record_at);
            for (extent, len) in pieces_of(part.extent(expert)) {
                let output = OutputRange::Record { expert, at, len };
                jobs.push(PackJob { piece: InputPiece::Copied(extent), outputs: vec![output] });
                at += len;
            }
        }
    }
}

/// Adds jobs for a part whose rows alternate between two matrices.
fn push_deinterleaved(
    (expert, extent): (ExpertIdx, FileExtent),
    row_bytes: usize,
    mut ats: [usize; 2],
    jobs: &mut Vec<PackJob>,
) {
    let pair_bytes = 2 * row_bytes as u64;
    let step = (PIECE_BYTES as u64 / pair_bytes).max(1) * pair_bytes;
    let mut skipped = 0;
    while skipped < extent.len_bytes {
        let len_bytes = step.min(extent.len_bytes - skipped);
        let offset_bytes = extent.offset_bytes + skipped;
        let len = usize::try_from(len_bytes / 2).expect("a piece fits in memory");
        let outputs = ats.map(|at| OutputRange::Record { expert, at, len }).to_vec();
        ats.iter_mut().for_each(|at| *at += len);
        let extent = FileExtent { offset_bytes, len_bytes, ..extent };
        jobs.push(PackJob { piece: InputPiece::Deinterleaved { extent, row_bytes }, outputs });
        skipped += len_bytes;
    }
}

/// Adds the jobs of one matrix of a record.
fn push_record_jobs(
    rows: &FloatRows,
    (expert, target): (ExpertIdx, MatrixSpan),
    jobs: &mut Vec<PackJob>,
) {
    let mut filled = [target.codes_at, target.scales_at, target.biases_at];
    for range in row_ranges(rows, 0..rows.layout.n_rows) {
        let layout = MatrixLayout { n_rows: range.len(), ..target.layout };
        let mut outputs = Vec::new();
        for (at, len) in filled.iter_mut().zip(part_lens(&layout)).take(n_parts(&layout)) {
            outputs.push(OutputRange::Record { expert, at: *at, len });
            *at += len;
        }
        jobs.push(PackJob {
            piece: InputPiece::Rows { rows: rows.clone(), range, layout },
            outputs,
        });
    }
}

fn n_parts(layout: &MatrixLayout) -> usize {
    if matches!(layout.kind, MatrixKind::Affine(_)) { 3 } else { 1 }
}

/// Returns the bytes of quantised weights, scales and biases.
fn part_lens(layout: &MatrixLayout) -> [usize; 3] {
    [layout.code_bytes(), layout.scale_bytes(), layout.bias_bytes()]
}

/// Splits an extent into ranges of at most [`PIECE_BYTES`], with their lengths.
fn pieces_of(extent: FileExtent) -> impl Iterator<Item = (FileExtent, usize)> {
    let n_pieces = extent.len_bytes.div_ceil(PIECE_BYTES as u64);
    (0..n_pieces).map(move |idx| {
        let skipped = idx * PIECE_BYTES as u64;
        let len_bytes = (extent.len_bytes - skipped).min(PIECE_BYTES as u64);
        let offset_bytes = extent.offset_bytes + skipped;
        let len = usize::try_from(len_bytes).expect("a piece fits in memory");
        (FileExtent { offset_bytes, len_bytes, ..extent }, len)
    })
}

/// Splits rows into ranges that are read together: at least one row, whole blocks of FP8, and at
/// most four times a piece's bytes as floats.
fn row_ranges(rows: &FloatRows, all: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let fitting = (PIECE_BYTES / rows.row_bytes().max(rows.layout.n_cols)).max(1);
    let step = match rows.layout.kind {
        MatrixKind::Fp8(Fp8 { spread: Fp8Spread::Block { n_rows, .. }, .. }) => {
            fitting.next_multiple_of(usize::from(n_rows))
        }
        MatrixKind::Fp8(_) => fitting,
        MatrixKind::Float(_) | MatrixKind::Affine(_) | MatrixKind::Block(_) => fitting,
    };
    all.clone().step_by(step).map(move |first| first..(first + step).min(all.end))
}

pub(super) fn sums_tensor(stem: &str, n_sums: usize) -> OutputTensor {
    let n_values = n_sums + 1;
    OutputTensor {
        name: format!("{stem}.sums"),
        dtype: DType::U64,
        shape: vec![n_values],
        len_bytes: (n_values * size_of::<u64>()) as u64,
    }
}

/// Returns a header padded so that the data begins at a multiple of `align`.
pub(super) fn header(
    tensors: &[OutputTensor],
    role: &PackedRole,
    pack: u64,
    align: usize,
) -> Vec<u8> {
    let mut blocks = BTreeMap::new();
    let mut shapes = Vec::new();
    for tensor in tensors {
        let mut shape = tensor.shape.clone();
        // Safetensors has no block types: the header lists these tensors as bytes.
        if let (DType::Block(block), Some(row)) = (tensor.dtype, shape.last_mut()) {
            blocks.insert(tensor.name.clone(), block);
            let n_bytes = *row as u64 / block.n_values() * block.n_bytes();
            *row = usize::try_from(n_bytes).expect("a row of a tensor that was read");
        }
        shapes.push(shape);
    }
    let tensors = tensors.iter().zip(&shapes).map(|(tensor, shape)| NewTensor {
        name: &tensor.name,
        dtype: if matches!(tensor.dtype, DType::Block(_)) { DType::U8 } else { tensor.dtype },
        shape,
        len_bytes: tensor.len_bytes,
    });
    let tensors: Vec<NewTensor<'_>> = tensors.collect();
    new_header(packed_metadata(pack, role, &blocks), &tensors, align)
}
