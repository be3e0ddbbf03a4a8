//! The description of a packed file: its role, and the places of its records and checksums.
//!
//! A packed file is plain safetensors; the description is in its `__metadata__`, where `format`
//! identifies it. **Invariant:** the records and checksums returned lie in tensors of the header;
//! an unknown version or kind is refused, and the error names it. The parser is pure and fuzzed,
//! and does not know the tensors that a model requires.

pub(super) mod rows;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::format::dtype::DType;
use crate::format::dtype::block_type::BlockType;
use crate::format::packed::rows::PackedRows;
use crate::format::safetensors::header::{HeaderTensor, SafetensorsHeader};
use crate::format::{ParseError, quoted};

/// Records begin at multiples of this, which is a multiple of every drive's block and every
/// system's page.
pub const RECORD_ALIGN: usize = 16 << 10;

/// The value of `format` in the metadata of a packed file.
pub(crate) const PACKED_FORMAT: &str = "moeflux-packed";

/// The version that is written, and the only one that can be read.
pub(crate) const PACKED_VERSION: u32 = 1;

/// Name of the journal. It exists while a pack is unfinished; the folder has no `config.json` until
/// then.
pub const PACK_JOURNAL: &str = "moeflux-pack.journal";

/// Name of the metadata of the GGUF file that a folder was packed from. It replaces `config.json`,
/// tokenizer and template.
pub const PACK_METADATA: &str = "moeflux-metadata.gguf";

/// Name of the checksums of a pack's small files, and of the checksum tables in its weight files.
pub const PACK_SUMS_NAME: &str = "moeflux-pack.json";

/// Algorithm of the checksums.
const SUM_KIND: &str = "xxh3-64";

/// The three matrices of an expert.
const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// The description of a packed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFile {
    /// Identifier of the pack: the same in all its files, different in every other pack.
    pub pack: u64,
    /// Contents of the file.
    pub role: PackedRole,
    /// Its checksums.
    pub sums: SumTable,
    /// Block types of the tensors that the header lists as bytes, by name.
    pub blocks: BTreeMap<String, BlockType>,
}

/// The contents of a packed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackedRole {
    /// Tensors that every token needs.
    Resident {
        /// Storage of norm gains: as they are used, or around zero.
        norms: PackedNorms,
    },
    /// The routed experts of one layer.
    Experts(Box<PackedBank>),
    /// The rows of a table.
    Rows(PackedRows),
    /// Tensors that are kept but not used.
    Extras,
}

/// Storage of norm gains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedNorms {
    /// As they are used.
    Plain,
    /// Without the 1 that is added before use.
    ZeroCentred,
}

/// One record per expert of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedBank {
    /// Canonical prefix of the layer: `model.layers.3.mlp`.
    pub prefix: String,
    /// Name of the tensor of records.
    pub tensor: String,
    /// Number of records.
    pub n_experts: usize,
    /// Stride of records in bytes.
    pub record_bytes: usize,
    /// Offset of the first record from the end of the header.
    pub begin_bytes: u64,
    /// Gate, up and down.
    pub matrices: [PackedMatrix; 3],
}

/// One matrix in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedMatrix {
    /// Storage format.
    pub kind: PackedKind,
    /// Number of outputs of the product.
    pub n_rows: usize,
    /// Number of inputs of the product.
    pub n_cols: usize,
    /// Offset of the quantised weights or values in the record.
    pub codes_at: usize,
    /// Offset of the scales.
    pub scales_at: usize,
    /// Offset of the biases.
    pub biases_at: usize,
}

/// The storage format of a matrix in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedKind {
    /// MLX affine quantisation.
    Affine {
        /// Bits per weight.
        bits: u8,
        /// Columns that share a scale.
        group: u8,
        /// Type of scales and biases.
        scale: DType,
    },
    /// Quantised weights around a central zero: with scales, without biases.
    Symmetric {
        /// Bits per weight.
        bits: u8,
        /// Columns that share a scale.
        group: u8,
        /// Type of scales.
        scale: DType,
    },
    /// Plain values.
    Float(DType),
    /// FP8 e4m3 values with an F32 scale per 128 x 128 block.
    Fp8Block,
    /// FP8 e4m3 values with other scales.
    Fp8 {
        /// Values that share a scale.
        spread: PackedSpread,
        /// Type of scales: a float type, or F8_E8M0.
        scale: DType,
    },
    /// Blocks of a GGUF type.
    Block(BlockType),
    /// MXFP4 values and the exponents of their blocks.
    Mxfp4,
}

/// The values that share a scale of FP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedSpread {
    /// A block of this many rows and columns.
    Block([u8; 2]),
    /// A row.
    Row,
    /// The matrix.
    Matrix,
}

/// Place of a file's checksums: XXH3-64 of each record in a file of experts, or of each tensor in
/// any other file, in byte order; the last one covers the header and the other checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumTable {
    /// Name of the tensor of checksums.
    pub tensor: String,
    /// Offset of its first byte from the end of the header.
    pub begin_bytes: u64,
    /// Number of records or tensors that have a checksum.
    pub n_sums: usize,
}

/// Parses the description of a packed file. Returns `None` if the file is not marked as packed.
///
/// # Errors
///
/// [`ParseError`] names the key or tensor at fault.
pub fn parse_packed(header: &SafetensorsHeader) -> Result<Option<PackedFile>, ParseError> {
    if header.metadata.get("format").map(String::as_str) != Some(PACKED_FORMAT) {
        return Ok(None);
    }
    let fields = MetadataReader { metadata: &header.metadata };
    let version = fields.get("format_version")?;
    if version != PACKED_VERSION.to_string() {
        return Err(ParseError(format!(
            "is packed in version \"{}\" of the format; this program knows {PACKED_VERSION}: use \
             a newer one, or pack the source again",
            quoted(version)
        )));
    }
    let pack = fields.get("pack")?;
    let Some(pack) = parse_id(pack) else {
        return Err(fields.wrong("pack", "16 hexadecimal digits"));
    };
    if fields.get("sums")? != SUM_KIND {
        return Err(fields.wrong("sums", SUM_KIND));
    }
    let Some((sums, tensors)) = header.tensors.split_last() else {
        return Err(ParseError("says that it is packed, but has no tensors".to_owned()));
    };
    let role = match fields.get("role")? {
        "resident" => PackedRole::Resident { norms: fields.norms()? },
        "extras" => PackedRole::Extras,
        "experts" => PackedRole::Experts(Box::new(fields.bank(tensors)?)),
        "rows" => {
            let (table, shape) = (fields.get("rows_of")?, fields.get("rows")?);
            PackedRole::Rows(PackedRows::parse(table, shape, tensors)?)
        }
        _ => return Err(fields.wrong("role", "resident, experts, rows or extras")),
    };
    let n_sums = match &role {
        PackedRole::Experts(bank) => bank.n_experts,
        PackedRole::Resident { .. } | PackedRole::Rows(_) | PackedRole::Extras => tensors.len(),
    };
    if sums.dtype != DType::U64 || sums.shape != [n_sums + 1] {
        return Err(ParseError(format!(
            "its last tensor, `{}`, is {} {:?}; {} checksums should be U64 [{}]",
            quoted(&sums.name),
            sums.dtype,
            sums.shape,
            n_sums + 1,
            n_sums + 1
        )));
    }
    let blocks = fields.blocks(tensors)?;
    let sums = SumTable { tensor: sums.name.clone(), begin_bytes: sums.begin_bytes, n_sums };
    Ok(Some(PackedFile { pack, role, sums, blocks }))
}

/// Returns the shape in values of a tensor of blocks, if each row of bytes is whole blocks.
fn shape_of_blocks(bytes_shape: &[usize], block: BlockType) -> Option<Vec<usize>> {
    let (row_bytes, outer) = bytes_shape.split_last()?;
    let (n_values, n_bytes) = (block.n_values(), block.n_bytes());
    let row_bytes = *row_bytes as u64;
    let is_whole = row_bytes.is_multiple_of(n_bytes);
    let n_cols = (row_bytes / n_bytes).checked_mul(n_values).filter(|_| is_whole)?;
    Some([outer, &[usize::try_from(n_cols).ok()?]].concat())
}

impl PackedFile {
    /// Returns type and shape of a tensor of blocks, which the header lists as bytes.
    pub(super) fn blocks_of(&self, tensor: &HeaderTensor) -> Option<(DType, Vec<usize>)> {
        let block = *self.blocks.get(&tensor.name)?;
        Some((DType::Block(block), shape_of_blocks(&tensor.shape, block)?))
    }
}

/// Returns the `__metadata__` of a packed file. `blocks` are its tensors of blocks.
#[must_use]
pub fn packed_metadata(
    pack: u64,
    role: &PackedRole,
    blocks: &BTreeMap<String, BlockType>,
) -> Map<String, Value> {
    let mut map = Map::new();
    let mut add = |key: &str, value: String| map.insert(key.to_owned(), Value::String(value));
    add("format", PACKED_FORMAT.to_owned());
    add("format_version", PACKED_VERSION.to_string());
    add("pack", format!("{pack:016x}"));
    add("sums", SUM_KIND.to_owned());
    if !blocks.is_empty() {
        let name = |(tensor, block): (&String, &BlockType)| (tensor.clone(), block.name().into());
        let names: Map<String, Value> = blocks.iter().map(name).collect();
        add("blocks", Value::Object(names).to_string());
    }
    match role {
        PackedRole::Resident { norms } => {
            add("role", "resident".to_owned());
            add("norms", norms.name().to_owned());
        }
        PackedRole::Extras => {
            add("role", "extras".to_owned());
        }
        PackedRole::Rows(rows) => {
            add("role", "rows".to_owned());
            add("rows_of", rows.table.clone());
            add("rows", rows.to_json().to_string());
        }
        PackedRole::Experts(bank) => {
            add("role", "experts".to_owned());
            add("experts_of", bank.prefix.clone());
            let matrices = PROJECTIONS.iter().zip(&bank.matrices);
            let record: Map<String, Value> =
                matrices.map(|(name, matrix)| ((*name).to_owned(), matrix.to_json())).collect();
            add("record", Value::Object(record).to_string());
        }
    }
    map
}

impl PackedNorms {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::ZeroCentred => "zero-centred",
        }
    }
}

impl PackedMatrix {
    fn to_json(self) -> Value {
        let mut map = Map::new();
        let mut add = |key: &str, value: Value| map.insert(key.to_owned(), value);
        add("shape", vec![self.n_rows, self.n_cols].into());
        match self.kind {
            PackedKind::Affine { bits, group, scale } => {
                add("kind", "affine".into());
                add("bits", bits.into());
                add("group_size", group.into());
                add("scales", scale.name().into());
                add("codes_at", self.codes_at.into());
                add("scales_at", self.scales_at.into());
                add("biases_at", self.biases_at.into());
            }
            PackedKind::Symmetric { bits, group, scale } => {
                add("kind", "symmetric".into());
                add("bits", bits.into());
                add("group_size", group.into());
                add("scales", scale.name().into());
                add("codes_at", self.codes_at.into());
                add("scales_at", self.scales_at.into());
            }
            PackedKind::Float(values) => {
                add("kind", "float".into());
                add("values", values.name().into());
                add("codes_at", self.codes_at.into());
            }
            PackedKind::Fp8Block => {
                add("kind", "fp8_block".into());
                add("codes_at", self.codes_at.into());
                add("scales_at", self.scales_at.into());
            }
            PackedKind::Fp8 { spread, scale } => {
                add("kind", "fp8".into());
                let spread = match spread {
                    PackedSpread::Block(sizes) => sizes.to_vec().into(),
                    PackedSpread::Row => "row".into(),
                    PackedSpread::Matrix => "matrix".into(),
                };
                add("scale_of", spread);
                add("scales", scale.name().into());
                add("codes_at", self.codes_at.into());
                add("scales_at", self.scales_at.into());
            }
            PackedKind::Mxfp4 => {
                add("kind", "mxfp4".into());
                add("codes_at", self.codes_at.into());
                add("scales_at", self.scales_at.into());
            }
            PackedKind::Block(block) => {
                add("kind", "block".into());
                add("type", block.name().into());
                add("codes_at", self.codes_at.into());
            }
        }
        Value::Object(map)
    }
}

fn parse_id(text: &str) -> Option<u64> {
    let is_plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| is_plain)
}

/// The metadata, with error messages that name its keys.
struct MetadataReader<'a> {
    metadata: &'a BTreeMap<String, String>,
}

impl MetadataReader<'_> {
    fn get(&self, key: &str) -> Result<&str, ParseError> {
        let value = self.metadata.get(key).map(String::as_str);
        value.ok_or_else(|| ParseError(format!("is packed, but its metadata lacks `{key}`")))
    }

    fn wrong(&self, key: &str, expected: &str) -> ParseError {
        let found = self.metadata.get(key).map_or("", String::as_str);
        ParseError(format!("`{key}` of its metadata is \"{}\"; expected {expected}", quoted(found)))
    }

    fn norms(&self) -> Result<PackedNorms, ParseError> {
        let name = self.get("norms")?;
        let known = [PackedNorms::Plain, PackedNorms::ZeroCentred];
        known
            .into_iter()
            .find(|norms| norms.name() == name)
            .ok_or_else(|| self.wrong("norms", "plain or zero-centred"))
    }

    /// Parses the block types of tensors.
    fn blocks(&self, tensors: &[HeaderTensor]) -> Result<BTreeMap<String, BlockType>, ParseError> {
        let Some(text) = self.metadata.get("blocks") else { return Ok(BTreeMap::new()) };
        let names: BTreeMap<String, String> = serde_json::from_str(text).map_err(|error| {
            let error = quoted(&error.to_string());
            ParseError(format!("`blocks` of its metadata is malformed: {error}"))
        })?;
        let tensors = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor));
        let tensors: BTreeMap<&str, &HeaderTensor> = tensors.collect();
        let mut blocks = BTreeMap::new();
        for (name, block) in names {
            let wrong = |what: &str| {
                let (name, block) = (quoted(&name), quoted(&block));
                ParseError(format!("`blocks` of its metadata has `{name}` as \"{block}\", {what}"))
            };
            let known = BlockType::from_name(&block);
            let block = known.ok_or_else(|| wrong("a type that this program does not know"))?;
            let is_whole = tensors.get(name.as_str()).is_some_and(|it| {
                it.dtype == DType::U8 && shape_of_blocks(&it.shape, block).is_some()
            });
            if !is_whole {
                return Err(wrong("but there is no U8 tensor of that name with whole blocks"));
            }
            blocks.insert(name, block);
        }
        Ok(blocks)
    }

    fn bank(&self, tensors: &[HeaderTensor]) -> Result<PackedBank, ParseError> {
        let [records] = tensors else {
            let n = tensors.len();
            return Err(ParseError(format!("has {n} tensors besides its checksums; expected one")));
        };
        let record_bytes = match (records.dtype, records.shape.as_slice()) {
            (DType::U8, [n_experts, record_bytes])
                if *n_experts > 0
                    && *record_bytes > 0
                    && record_bytes.is_multiple_of(RECORD_ALIGN) =>
            {
                *record_bytes
            }
            _ => {
                return Err(ParseError(format!(
                    "its tensor `{}` is {} {:?}; expected records of a multiple of {RECORD_ALIGN} \
                     bytes as U8 [experts, bytes]",
                    quoted(&records.name),
                    records.dtype,
                    records.shape
                )));
            }
        };
        let text = self.get("record")?;
        let record: Value = serde_json::from_str(text).map_err(|error| {
            ParseError(format!("`record` of its metadata is not JSON: {error}"))
        })?;
        let matrix = |name: &str| {
            let matrix = record.get(name).and_then(Value::as_object);
            let matrix = matrix.ok_or_else(|| MatrixMetadata::lacks(name, "an object"))?;
            MatrixMetadata { name, map: matrix }.parse(record_bytes)
        };
        let [gate, up, down] = PROJECTIONS.map(matrix);
        Ok(PackedBank {
            prefix: self.get("experts_of")?.to_owned(),
            tensor: records.name.clone(),
            n_experts: records.shape.first().copied().unwrap_or(0),
            record_bytes,
            begin_bytes: records.begin_bytes,
            matrices: [gate?, up?, down?],
        })
    }
}

/// The metadata of one matrix.
struct MatrixMetadata<'a> {
    name: &'a str,
    map: &'a Map<String, Value>,
}

impl MatrixMetadata<'_> {
    fn lacks(name: &str, expected: &str) -> ParseError {
        ParseError(format!("`record` of its metadata has no `{name}` that is {expected}"))
    }

    fn missing(&self, key: &str, expected: &str) -> ParseError {
        Self::lacks(&format!("{}.{key}", self.name), expected)
    }

    fn str_at(&self, key: &str) -> Result<&str, ParseError> {
        let value = self.map.get(key).and_then(Value::as_str);
        value.ok_or_else(|| self.missing(key, "a string"))
    }

    fn byte_at(&self, key: &str) -> Result<u8, ParseError> {
        let value = self.map.get(key).and_then(Value::as_u64);
        let value = value.and_then(|n| u8::try_from(n).ok());
        value.ok_or_else(|| self.missing(key, "a number below 256"))
    }

    /// Parses an offset in the record, which may be its end.
    fn offset_at(&self, key: &str, record_bytes: usize) -> Result<usize, ParseError> {
        let value = self.map.get(key).and_then(Value::as_u64);
        let value = value.and_then(|n| usize::try_from(n).ok()).filter(|&at| at <= record_bytes);
        value.ok_or_else(|| self.missing(key, &format!("a number up to {record_bytes}")))
    }

    fn float(&self, key: &str) -> Result<DType, ParseError> {
        let known = [DType::F32, DType::F16, DType::Bf16];
        let dtype = DType::from_name(self.str_at(key)?).filter(|dtype| known.contains(dtype));
        dtype.ok_or_else(|| self.missing(key, "F32, F16 or BF16"))
    }

    /// Parses the type of scales.
    fn scale(&self) -> Result<DType, ParseError> {
        let is_exponents = self.str_at("scales")? == DType::F8E8M0.name();
        if is_exponents { Ok(DType::F8E8M0) } else { self.float("scales") }
    }

    fn spread(&self) -> Result<PackedSpread, ParseError> {
        let size = |value: &Value| value.as_u64().and_then(|n| u8::try_from(n).ok());
        let spread = match self.map.get("scale_of") {
            Some(Value::String(name)) if name == "row" => Some(PackedSpread::Row),
            Some(Value::String(name)) if name == "matrix" => Some(PackedSpread::Matrix),
            Some(Value::Array(sizes)) => match sizes.as_slice() {
                [n_rows, n_cols] => {
                    let sizes = size(n_rows).zip(size(n_cols));
                    sizes.map(|(n_rows, n_cols)| PackedSpread::Block([n_rows, n_cols]))
                }
                _ => None,
            },
            _ => None,
        };
        spread.ok_or_else(|| self.missing("scale_of", "row, matrix or two numbers below 256"))
    }

    fn parse(&self, record_bytes: usize) -> Result<PackedMatrix, ParseError> {
        let shape = self.map.get("shape").and_then(Value::as_array).map(Vec::as_slice);
        let size = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let shape = match shape {
            Some([n_rows, n_cols]) => size(n_rows).zip(size(n_cols)),
            _ => None,
        };
        let Some((n_rows, n_cols)) = shape else {
            return Err(self.missing("shape", "two numbers"));
        };
        let codes_at = self.offset_at("codes_at", record_bytes)?;
        let (kind, scales_at, biases_at) = match self.str_at("kind")? {
            "affine" => {
                let bits = self.byte_at("bits")?;
                let group = self.byte_at("group_size")?;
                let kind = PackedKind::Affine { bits, group, scale: self.float("scales")? };
                let scales_at = self.offset_at("scales_at", record_bytes)?;
                (kind, scales_at, self.offset_at("biases_at", record_bytes)?)
            }
            "symmetric" => {
                let bits = self.byte_at("bits")?;
                let group = self.byte_at("group_size")?;
                let kind = PackedKind::Symmetric { bits, group, scale: self.float("scales")? };
                let scales_at = self.offset_at("scales_at", record_bytes)?;
                (kind, scales_at, scales_at)
            }
            "float" => (PackedKind::Float(self.float("values")?), codes_at, codes_at),
            "fp8_block" => {
                let scales_at = self.offset_at("scales_at", record_bytes)?;
                (PackedKind::Fp8Block, scales_at, scales_at)
            }
            "fp8" => {
                let scales_at = self.offset_at("scales_at", record_bytes)?;
                (
                    PackedKind::Fp8 { spread: self.spread()?, scale: self.scale()? },
                    scales_at,
                    scales_at,
                )
            }
            "mxfp4" => {
                let scales_at = self.offset_at("scales_at", record_bytes)?;
                (PackedKind::Mxfp4, scales_at, scales_at)
            }
            "block" => {
                let block = BlockType::from_name(self.str_at("type")?);
                let block = block.ok_or_else(|| self.missing("type", "a type of ggml's blocks"))?;
                (PackedKind::Block(block), codes_at, codes_at)
            }
            other => {
                return Err(ParseError(format!(
                    "its records are quantised as \"{}\", which this program does not know (it \
                     knows affine, symmetric, float, fp8_block, fp8, mxfp4 and block): use a newer \
                     one",
                    quoted(other)
                )));
            }
        };
        Ok(PackedMatrix { kind, n_rows, n_cols, codes_at, scales_at, biases_at })
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test that panics has failed, as it should")]
mod tests;
