//! Tensor types whose values are stored in blocks, as ggml defines them.
//!
//! **Invariant:** every known type has a size. Types that cannot be run are known too, so that
//! messages can name them.

/// A type whose values are stored in blocks, each with its own scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "they are ggml's own names")]
#[expect(non_camel_case_types, reason = "they are ggml's own names")]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    IQ1_M,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

/// Properties of a block type.
struct BlockTypeRow {
    kind: BlockType,
    id: u32,
    name: &'static str,
    n_values: u64,
    n_bytes: u64,
}

const fn row(
    kind: BlockType,
    id: u32,
    name: &'static str,
    (values, bytes): (u64, u64),
) -> BlockTypeRow {
    BlockTypeRow { kind, id, name, n_values: values, n_bytes: bytes }
}

const BLOCKS: [BlockTypeRow; 27] = [
    row(BlockType::Q4_0, 2, "Q4_0", (32, 18)),
    row(BlockType::Q4_1, 3, "Q4_1", (32, 20)),
    row(BlockType::Q5_0, 6, "Q5_0", (32, 22)),
    row(BlockType::Q5_1, 7, "Q5_1", (32, 24)),
    row(BlockType::Q8_0, 8, "Q8_0", (32, 34)),
    row(BlockType::Q8_1, 9, "Q8_1", (32, 36)),
    row(BlockType::Q2_K, 10, "Q2_K", (256, 84)),
    row(BlockType::Q3_K, 11, "Q3_K", (256, 110)),
    row(BlockType::Q4_K, 12, "Q4_K", (256, 144)),
    row(BlockType::Q5_K, 13, "Q5_K", (256, 176)),
    row(BlockType::Q6_K, 14, "Q6_K", (256, 210)),
    row(BlockType::Q8_K, 15, "Q8_K", (256, 292)),
    row(BlockType::IQ2_XXS, 16, "IQ2_XXS", (256, 66)),
    row(BlockType::IQ2_XS, 17, "IQ2_XS", (256, 74)),
    row(BlockType::IQ3_XXS, 18, "IQ3_XXS", (256, 98)),
    row(BlockType::IQ1_S, 19, "IQ1_S", (256, 50)),
    row(BlockType::IQ4_NL, 20, "IQ4_NL", (32, 18)),
    row(BlockType::IQ3_S, 21, "IQ3_S", (256, 110)),
    row(BlockType::IQ2_S, 22, "IQ2_S", (256, 82)),
    row(BlockType::IQ4_XS, 23, "IQ4_XS", (256, 136)),
    row(BlockType::IQ1_M, 29, "IQ1_M", (256, 56)),
    row(BlockType::TQ1_0, 34, "TQ1_0", (256, 54)),
    row(BlockType::TQ2_0, 35, "TQ2_0", (256, 66)),
    row(BlockType::MXFP4, 39, "MXFP4", (32, 17)),
    row(BlockType::NVFP4, 40, "NVFP4", (64, 36)),
    row(BlockType::Q1_0, 41, "Q1_0", (128, 18)),
    row(BlockType::Q2_0, 42, "Q2_0", (64, 18)),
];

impl BlockType {
    /// Returns all types.
    pub fn all() -> impl Iterator<Item = Self> {
        BLOCKS.iter().map(|row| row.kind)
    }

    /// Returns ggml's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the number of consecutive values of a row in a block.
    #[must_use]
    pub fn n_values(self) -> u64 {
        self.row().n_values
    }

    /// Returns the number of bytes in a block.
    #[must_use]
    pub fn n_bytes(self) -> u64 {
        self.row().n_bytes
    }

    /// Returns the type with this name, ignoring case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        BLOCKS.iter().find(|row| row.name.eq_ignore_ascii_case(name)).map(|row| row.kind)
    }

    /// Returns the number of the type in GGUF files.
    pub(in crate::format) fn id(self) -> u32 {
        self.row().id
    }

    /// Returns the type with this number in GGUF files.
    pub(in crate::format) fn of_id(id: u32) -> Option<Self> {
        BLOCKS.iter().find(|row| row.id == id).map(|row| row.kind)
    }

    fn row(self) -> &'static BlockTypeRow {
        let row = BLOCKS.iter().find(|row| row.kind == self);
        row.expect("BLOCKS lists every BlockType")
    }
}
