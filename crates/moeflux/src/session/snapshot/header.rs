//! The header of a snapshot: the engines that it fits, and the positions that it holds.

use std::io::{self, Read, Write};
use std::ops::Range;

use twox_hash::XxHash3_64;

use crate::backend::kv::PAGE_POSITIONS;
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::ops::LayerState;
use crate::session::runtime::Runtime;
use crate::session::sums::{HashingReader, read_failed};

const MAGIC: &[u8; 8] = b"MFXSTATE";
const VERSION: u32 = 3;
const SUM_BYTES: usize = 8;

/// Tokens read at a time.
const N_TOKENS_AT_ONCE: usize = 4096;

/// The positions that a snapshot holds, and their tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    first: usize,
    tokens: Vec<TokenId>,
}

impl SnapshotHeader {
    pub(super) fn new(first: usize, tokens: Vec<TokenId>) -> Self {
        Self { first, tokens }
    }

    /// Returns the positions.
    #[must_use]
    pub fn positions(&self) -> Range<usize> {
        self.first..self.first + self.tokens.len()
    }

    /// Returns the tokens at the positions.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Returns the number of bytes after the header.
    pub(super) fn n_bytes_after(&self, runtime: &Runtime) -> usize {
        let spec = &runtime.model().plan.state;
        let kind = runtime.device_names().arithmetic.kv_kind();
        let n_bytes = spec.bytes_per_position(kind) * self.tokens.len() as u64 + spec.fixed_bytes();
        let n_sums = self.tokens.len().div_ceil(PAGE_POSITIONS) + 1;
        usize::try_from(n_bytes).expect("a session fits memory") + SUM_BYTES * n_sums
    }

    pub(super) fn write(&self, runtime: &Runtime, out: &mut dyn Write) -> io::Result<()> {
        let mut bytes = identity(runtime);
        bytes.extend_from_slice(&(self.first as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.tokens.len() as u64).to_le_bytes());
        for token in &self.tokens {
            bytes.extend_from_slice(&token.0.to_le_bytes());
        }
        let sum = XxHash3_64::oneshot(&bytes);
        out.write_all(&bytes)?;
        out.write_all(&sum.to_le_bytes())
    }

    /// Reads a header and checks that it repeats the fields of this engine.
    ///
    /// # Errors
    ///
    /// [`Error::SavedState`] with the field that differs.
    pub(crate) fn read(runtime: &Runtime, input: &mut dyn Read) -> Result<Self> {
        let mut input = HashingReader::new(input);
        for field in identity_fields(runtime) {
            let mut bytes = vec![0; field.bytes.len()];
            input.read_exact(&mut bytes).map_err(read_failed)?;
            if bytes != field.bytes {
                return Err(Error::SavedState(field.problem.to_owned()));
            }
        }
        let spec = &runtime.model().spec;
        let [first, n_tokens] = [read_u64(&mut input)?, read_u64(&mut input)?];
        let end = first.checked_add(n_tokens).filter(|end| *end <= spec.context_max as u64);
        if end.is_none() {
            return Err(Error::SavedState(format!(
                "it holds {n_tokens} tokens from position {first}, but the model supports {}",
                spec.context_max
            )));
        }
        let [first, n_tokens] =
            [first, n_tokens].map(|it| usize::try_from(it).expect("at most the context"));
        let tokens = read_tokens(&mut input, n_tokens, spec.vocab)?;
        input.check_sum()?;
        Ok(Self { first, tokens })
    }
}

/// Returns the bytes that are equal for engines whose sessions can exchange what they keep.
pub(crate) fn identity(runtime: &Runtime) -> Vec<u8> {
    identity_fields(runtime).into_iter().flat_map(|field| field.bytes).collect()
}

/// Bytes that must be equal, and the error text if they are not.
struct IdentityField {
    bytes: Vec<u8>,
    problem: &'static str,
}

/// Returns the fields at the start of a snapshot of this engine's sessions.
fn identity_fields(runtime: &Runtime) -> [IdentityField; 7] {
    let names = runtime.device_names();
    let field = |bytes: &[u8], problem| IdentityField { bytes: bytes.to_vec(), problem };
    [
        field(MAGIC, "it is not a saved session of moeflux"),
        field(&VERSION.to_le_bytes(), "it was written by another version of moeflux"),
        field(&padded(names.backend), "it was computed by another backend"),
        field(&padded(names.arithmetic.name()), "it was computed in another arithmetic mode"),
        field(
            &names.bits_version.to_le_bytes(),
            "it was computed by a version of moeflux whose results differ",
        ),
        field(&runtime.model().fingerprint.to_le_bytes(), "it belongs to another model"),
        field(&geometry(&runtime.model().plan.state.layers), "its layer shapes differ"),
    ]
}

fn padded(name: &str) -> [u8; 8] {
    let mut bytes = [0; 8];
    let n = name.len().min(bytes.len());
    bytes[..n].copy_from_slice(&name.as_bytes()[..n]);
    bytes
}

fn geometry(layers: &[LayerState]) -> Vec<u8> {
    let n_layers = u32::try_from(layers.len()).expect("the spec bounds the layers");
    let mut bytes = n_layers.to_le_bytes().to_vec();
    for layer in layers {
        let (kind, numbers) = match *layer {
            LayerState::KeyValue { n_heads, k_cols, v_cols } => (0_u32, [k_cols, v_cols, n_heads]),
            LayerState::Latent { latent_cols, rope_cols, index_cols } => {
                (1, [latent_cols, rope_cols, index_cols])
            }
            LayerState::Recurrent { conv_values, delta_values } => {
                (3, [conv_values, delta_values, 0])
            }
        };
        bytes.extend_from_slice(&kind.to_le_bytes());
        for number in numbers {
            bytes.extend_from_slice(&(number as u64).to_le_bytes());
        }
    }
    bytes
}

fn read_u64(input: &mut dyn Read) -> Result<u64> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes).map_err(read_failed)?;
    Ok(u64::from_le_bytes(bytes))
}

fn read_tokens(input: &mut dyn Read, n_tokens: usize, vocab: usize) -> Result<Vec<TokenId>> {
    let mut tokens = Vec::new();
    while tokens.len() < n_tokens {
        let mut bytes = vec![0; 4 * N_TOKENS_AT_ONCE.min(n_tokens - tokens.len())];
        input.read_exact(&mut bytes).map_err(read_failed)?;
        let (values, _) = bytes.as_chunks::<4>();
        tokens.extend(values.iter().map(|value| TokenId(u32::from_le_bytes(*value))));
    }
    match tokens.iter().find(|token| token.0 as usize >= vocab) {
        None => Ok(tokens),
        Some(token) => {
            let problem = format!("token {} is not in the vocabulary of {vocab}", token.0);
            Err(Error::SavedState(problem))
        }
    }
}
