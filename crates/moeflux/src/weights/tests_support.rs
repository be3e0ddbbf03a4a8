//! Tiny checkpoints on disk, for tests: a safetensors writer, and values that distinguish bytes.

use half::{bf16, f16};
use moeflux_kernels::FloatKind;
use moeflux_testing::temp_dir::TempDir;

use crate::format::Checkpoint;
use crate::spec::{
    AttentionBias, AttentionSpec, Family, FfnSpec, GateFunction, GatedDeltaSpec, HeadOrder,
    LayerSpec, MixerSpec, ModelSpec, Pairing, QkNorm, QuantParams, Quantisation, RopeScaling,
    RopeSpec,
};

/// A tensor to write.
#[derive(Clone, Debug)]
pub(crate) struct TestTensor {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// Tensors to write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tensors(pub(crate) Vec<TestTensor>);

impl Tensors {
    /// Adds a tensor whose bytes depend on its name, so that no two are alike. No float in it is
    /// non-finite: the bits of an exponent are never all set.
    pub(crate) fn add(&mut self, name: &str, dtype: &'static str, shape: &[usize]) -> &mut Self {
        let bits = match dtype {
            "F8_E4M3" | "F8_E8M0" | "U8" | "I8" => 8,
            "F32" | "U32" | "I32" => 32,
            _ => 16,
        };
        let n_bytes = shape.iter().product::<usize>() * bits / 8;
        let mut state = name
            .bytes()
            .fold(1_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
        let bytes = (0..n_bytes).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_le_bytes()[3] & 0x3b
        });
        let bytes = bytes.collect();
        self.add_bytes(name, dtype, shape, bytes)
    }

    /// Adds floats.
    pub(crate) fn add_floats(
        &mut self,
        name: &str,
        kind: FloatKind,
        shape: &[usize],
        values: &[f32],
    ) -> &mut Self {
        let bytes: Vec<u8> = match kind {
            FloatKind::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            FloatKind::F16 => {
                values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()
            }
            FloatKind::Bf16 => {
                values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()
            }
        };
        self.add_bytes(name, dtype_name(kind), shape, bytes)
    }

    /// Adds a tensor with these bytes.
    pub(crate) fn add_bytes(
        &mut self,
        name: &str,
        dtype: &'static str,
        shape: &[usize],
        bytes: Vec<u8>,
    ) -> &mut Self {
        self.0.push(TestTensor { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes });
        self
    }

    /// Adds codes, scales and biases of a matrix, or of a stack of them.
    pub(crate) fn add_affine(
        &mut self,
        base: &str,
        shape: &[usize],
        params: QuantParams,
        scale: FloatKind,
    ) -> &mut Self {
        let (n_cols, lead) = shape.split_last().unwrap();
        let with = |width: usize| [lead, &[width]].concat();
        let packed = with(n_cols * usize::from(params.bits) / 32);
        let n_groups = with(n_cols / usize::from(params.group));
        self.add(&format!("{base}.weight"), "U32", &packed);
        self.add(&format!("{base}.scales"), dtype_name(scale), &n_groups);
        self.add(&format!("{base}.biases"), dtype_name(scale), &n_groups)
    }

    /// Adds codes and block scales of an FP8 matrix.
    pub(crate) fn add_fp8(&mut self, base: &str, n_rows: usize, n_cols: usize) -> &mut Self {
        self.add(&format!("{base}.weight"), "F8_E4M3", &[n_rows, n_cols]);
        let blocks = [n_rows.div_ceil(128), n_cols.div_ceil(128)];
        self.add(&format!("{base}.weight_scale_inv"), "F32", &blocks)
    }

    /// Returns the bytes of a tensor.
    pub(crate) fn bytes(&self, name: &str) -> &[u8] {
        let found = self.0.iter().find(|tensor| tensor.name == name);
        let Some(found) = found else { panic!("no tensor {name}") };
        &found.bytes
    }

    /// Returns the bytes of a tensor, for damaging them.
    pub(crate) fn bytes_mut(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.0.iter_mut().find(|tensor| tensor.name == name).unwrap().bytes
    }

    /// Writes one file. The header's length is odd, so that tensors start at any address.
    pub(crate) fn write(&self) -> TempDir {
        let mut entries = Vec::new();
        let mut data = Vec::new();
        for TestTensor { name, dtype, shape, bytes } in &self.0 {
            let begin = data.len();
            data.extend_from_slice(bytes);
            let end = data.len();
            let types = format!("\"dtype\":\"{dtype}\",\"shape\":{shape:?}");
            entries.push(format!("\"{name}\":{{{types},\"data_offsets\":[{begin},{end}]}}"));
        }
        let mut header = format!("{{{}}}", entries.join(","));
        if header.len().is_multiple_of(2) {
            header.push(' ');
        }
        let dir = TempDir::new();
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        dir.write("model.safetensors", file);
        dir
    }

    /// Writes the tensors and opens the checkpoint.
    pub(crate) fn open(&self) -> (TempDir, Checkpoint) {
        let dir = self.write();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        (dir, checkpoint)
    }
}

pub(crate) const fn dtype_name(kind: FloatKind) -> &'static str {
    match kind {
        FloatKind::F32 => "F32",
        FloatKind::F16 => "F16",
        FloatKind::Bf16 => "BF16",
    }
}

/// Returns a spec with `n_layers` layers; only the fields that the binder uses are meaningful.
pub(crate) fn spec(family: Family, n_layers: usize) -> ModelSpec {
    let mixer = match family {
        Family::Qwen3Next | Family::Qwen35Moe => MixerSpec::GatedDelta(GatedDeltaSpec {
            n_k_heads: 2,
            n_v_heads: 4,
            k_dim: 16,
            v_dim: 16,
            n_taps: 4,
            order: HeadOrder::Grouped,
            gate: GateFunction::Silu,
        }),
        _ => MixerSpec::Attention(AttentionSpec {
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 16,
            rope: RopeSpec {
                theta: 10_000.0,
                n_rotated: 16,
                pairing: Pairing::Halves,
                scaling: RopeScaling::None,
            },
            has_gate: false,
            norm: QkNorm::Heads,
            bias: AttentionBias::None,
            window: None,
            has_sinks: false,
            indexer: None,
        }),
    };
    let layer = LayerSpec { mixer, ffn: FfnSpec::Dense { inner: 64, has_bias: false } };
    ModelSpec {
        family,
        hidden: 64,
        streams: None,
        ngrams: Vec::new(),
        vocab: 256,
        context_max: 4096,
        norm_epsilon: 1e-6,
        tied_embeddings: false,
        layers: vec![layer; n_layers],
        eos: Vec::new(),
        quantisation: Quantisation::default(),
    }
}

/// Returns a spec whose checkpoint is quantised.
pub(crate) fn quantised(family: Family, bits: u8, group: u8) -> ModelSpec {
    let default = Some(QuantParams { bits, group });
    let quantisation = Quantisation { default, ..Quantisation::default() };
    ModelSpec { quantisation, ..spec(family, 2) }
}
