//! Layout of values: buffers of a workspace, views of their rows, and the state of a session.

use moeflux_kernels::CodeShape;

use crate::ids::BufferId;

/// Rows of buffers that hold only output rows. Logits are as wide as the vocabulary: a chunk of 512
/// rows of 248,320 would take 485 MiB, so wanted logits are computed 16 rows at a time.
pub const N_OUTPUTS_MAX: usize = 16;

/// Which rows a plan's ops run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// Every row of the batch.
    All,
    /// Only rows whose logits are wanted; the plan begins with
    /// [`SelectRows`](crate::ops::SelectRows).
    Outputs,
}

/// A view of one buffer's rows as heads: head `h` covers the `head_dim` columns from
/// `first_col + h * stride`. A plain row is one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Buffer of the rows.
    pub buffer: BufferId,
    /// First column of head 0.
    pub first_col: usize,
    /// Number of heads.
    pub n_heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Columns from one head to the next.
    pub stride: usize,
}

impl Heads {
    /// Returns the number of columns from column 0 to the end of the last head.
    #[must_use]
    pub const fn end_col(&self) -> usize {
        self.first_col + (self.n_heads - 1) * self.stride + self.head_dim
    }

    /// Returns the columns of head `head_idx` in a row.
    #[must_use]
    pub const fn cols(&self, head_idx: usize) -> std::ops::Range<usize> {
        let first = self.first_col + head_idx * self.stride;
        first..first + self.head_dim
    }

    /// Splits a view of one head into `n_heads` adjacent heads that cover the same columns.
    ///
    /// # Panics
    ///
    /// If the view has several heads or its columns do not divide evenly.
    #[must_use]
    pub const fn split(self, n_heads: usize) -> Self {
        assert!(self.n_heads == 1, "only a plain row can be split");
        assert!(self.head_dim.is_multiple_of(n_heads), "heads must be equal");
        let head_dim = self.head_dim / n_heads;
        Self { n_heads, head_dim, stride: head_dim, ..self }
    }

    /// Narrows every head to its columns `first .. first + head_dim`.
    ///
    /// # Panics
    ///
    /// If they reach beyond the head.
    #[must_use]
    pub const fn narrow(self, first: usize, head_dim: usize) -> Self {
        assert!(first + head_dim <= self.head_dim, "a narrowed head lies inside its head");
        Self { first_col: self.first_col + first, head_dim, ..self }
    }
}

/// One activation buffer of f32 values, `n_cols` per row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// Name in printed plans.
    pub name: &'static str,
    /// Columns of a row.
    pub n_cols: usize,
    /// Which rows the buffer holds.
    pub rows: RowSet,
}

impl BufferSpec {
    /// Returns the buffer's number of rows for steps of at most `n_rows_max`.
    #[must_use]
    pub const fn n_rows(&self, n_rows_max: usize) -> usize {
        match self.rows {
            RowSet::All => n_rows_max,
            RowSet::Outputs => N_OUTPUTS_MAX,
        }
    }
}

/// All activation buffers of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    buffers: Vec<BufferSpec>,
}

impl Workspace {
    /// Reserves a buffer. A buffer requested again under the same name is shared and grows to the
    /// larger width, so layers of different shapes share one workspace.
    pub fn buffer(&mut self, name: &'static str, n_cols: usize) -> Heads {
        self.reserve(name, n_cols, RowSet::All)
    }

    /// Reserves a buffer as [`Workspace::buffer`], for output rows only.
    pub fn output_buffer(&mut self, name: &'static str, n_cols: usize) -> Heads {
        self.reserve(name, n_cols, RowSet::Outputs)
    }

    fn reserve(&mut self, name: &'static str, n_cols: usize, rows: RowSet) -> Heads {
        let known = self.buffers.iter().position(|buffer| buffer.name == name);
        let buffer_idx = known.unwrap_or_else(|| {
            self.buffers.push(BufferSpec { name, n_cols, rows });
            self.buffers.len() - 1
        });
        let buffer = &mut self.buffers[buffer_idx];
        assert_eq!(buffer.rows, rows, "buffer {name} holds one set of rows");
        buffer.n_cols = buffer.n_cols.max(n_cols);
        Heads {
            buffer: BufferId(buffer_idx),
            first_col: 0,
            n_heads: 1,
            head_dim: n_cols,
            stride: n_cols,
        }
    }

    /// Returns the buffers, indexed by [`BufferId`].
    #[must_use]
    pub fn buffers(&self) -> &[BufferSpec] {
        &self.buffers
    }

    /// Returns the bytes of all buffers for steps of at most `n_rows` rows.
    #[must_use]
    pub fn bytes(&self, n_rows: usize) -> u64 {
        let values = self.buffers.iter().map(|buffer| buffer.n_cols * buffer.n_rows(n_rows));
        (values.sum::<usize>() * size_of::<f32>()) as u64
    }
}

/// Layout of one head's `S[value][key]` in a layer's state: strips of 16 values, each
/// `[key][value of the strip]`; the last strip is only as wide as needed. A strip is processed for
/// many tokens at a time, with its values side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Keys of a head.
    pub key_dim: usize,
    /// Values of a head.
    pub value_dim: usize,
}

impl DeltaShape {
    /// Values of a strip.
    pub const STRIP: usize = 16;

    /// Returns the index of `S[value_idx][key_idx]` in its head's state.
    #[must_use]
    pub fn index(self, value_idx: usize, key_idx: usize) -> usize {
        let first = value_idx / Self::STRIP * Self::STRIP;
        let width = Self::STRIP.min(self.value_dim - first);
        first * self.key_dim + key_idx * width + value_idx - first
    }
}

/// Storage type of state kept per position. Recurrent state is always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvKind {
    /// Single precision, as computed.
    F32,
    /// Half precision, rounded to nearest; values out of range become NaN.
    F16,
    /// 8-bit codes, with a scale and a bias per group: see [`CodeShape`].
    Codes,
}

impl KvKind {
    /// Returns the name for display.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Codes => "8 bits",
        }
    }

    /// Returns the storage type of index keys. Codes are too coarse for a choice among scores that
    /// differ little.
    #[must_use]
    pub const fn of_index_keys(self) -> Self {
        match self {
            Self::F32 => Self::F32,
            Self::F16 | Self::Codes => Self::F16,
        }
    }

    /// Returns the bytes of one head of one position: its values or codes, scales and biases.
    #[must_use]
    pub const fn part_bytes(self, head_dim: usize) -> [usize; 3] {
        match self {
            Self::F32 => [head_dim * size_of::<f32>(), 0, 0],
            Self::F16 => [head_dim * size_of::<u16>(), 0, 0],
            Self::Codes => CodeShape::of(head_dim).part_bytes(),
        }
    }

    /// Returns the bytes of `n_heads` heads of one position.
    const fn bytes(self, n_heads: usize, head_dim: usize) -> usize {
        let [values, scales, biases] = self.part_bytes(head_dim);
        n_heads * (values + scales + biases)
    }
}

/// State that one layer keeps for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// Keys and values of every position.
    KeyValue {
        /// Heads of keys, and of values.
        n_heads: usize,
        /// Values of one position's keys: key heads x head dimension.
        k_cols: usize,
        /// Values of one position's values.
        v_cols: usize,
    },
    /// The latent and the rotated key of every position (MLA), and its index key.
    Latent {
        /// Values of one latent.
        latent_cols: usize,
        /// Values of one rotated key.
        rope_cols: usize,
        /// Values of one index key; 0 if the layer chooses no positions.
        index_cols: usize,
    },
    /// A state of fixed size into which the whole history is folded (gated DeltaNet).
    Recurrent {
        /// Values of the inputs kept for convolutions: see [`KeptInputs`](crate::ops::KeptInputs).
        conv_values: usize,
        /// Values of all heads' `S[value][key]`: see [`DeltaShape`].
        delta_values: usize,
    },
}

impl LayerState {
    /// Returns the bytes kept per position; zero for a recurrent layer.
    #[must_use]
    pub const fn bytes_per_position(&self, kind: KvKind) -> usize {
        match *self {
            Self::KeyValue { n_heads, k_cols, v_cols } => {
                kind.bytes(n_heads, k_cols / n_heads) + kind.bytes(n_heads, v_cols / n_heads)
            }
            Self::Latent { latent_cols, rope_cols, index_cols } => {
                kind.bytes(1, latent_cols)
                    + kind.bytes(1, rope_cols)
                    + kind.of_index_keys().bytes(1, index_cols)
            }
            Self::Recurrent { .. } => 0,
        }
    }

    /// Returns whether the layer folds its history.
    #[must_use]
    pub const fn is_recurrent(&self) -> bool {
        matches!(self, Self::Recurrent { .. })
    }

    /// Returns the bytes kept regardless of the number of positions.
    #[must_use]
    pub const fn fixed_bytes(&self) -> u64 {
        match *self {
            Self::KeyValue { .. } | Self::Latent { .. } => 0,
            Self::Recurrent { conv_values, delta_values } => {
                ((conv_values + delta_values) * size_of::<f32>()) as u64
            }
        }
    }
}

/// State kept for a session, layer by layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateSpec {
    /// Indexed by [`crate::ids::LayerIdx`].
    pub layers: Vec<LayerState>,
}

impl StateSpec {
    /// Returns the bytes per position.
    #[must_use]
    pub fn bytes_per_position(&self, kind: KvKind) -> u64 {
        let bytes = self.layers.iter().map(|layer| layer.bytes_per_position(kind));
        bytes.sum::<usize>() as u64
    }

    /// Returns the bytes of a session without positions.
    #[must_use]
    pub fn fixed_bytes(&self) -> u64 {
        self.layers.iter().map(LayerState::fixed_bytes).sum()
    }

    /// Returns whether some layer folds its history and cannot be truncated.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(LayerState::is_recurrent)
    }
}
