//! A session as bytes: saved, and loaded only if every byte of it belongs here.
//!
//! ```text
//! "MFXSTATE"  u32 version  [u8; 8] arithmetic  u64 model fingerprint
//! u32 n_layers, then per layer u32 kind and three u64: its geometry
//! u64 n_tokens, then u32 per token
//! per layer: positions 0 .. n_tokens, or the recurrent state
//! u64 xxh3 of all bytes before
//! ```
//! Little-endian. **Invariant:** a refused load leaves the session as it was: everything is
//! checked before anything is written.

use std::hash::Hasher as _;
use std::io::{self, Write};
use std::sync::Arc;

use twox_hash::XxHash3_64;

use crate::backend::{Backend, StatePart};
use crate::error::{Error, Result};
use crate::ids::{LayerIdx, StateId, TokenId};
use crate::ops::{LayerState, StateSpec};
use crate::session::Session;

const MAGIC: &[u8; 8] = b"MFXSTATE";
const VERSION: u32 = 2;
const CHECKSUM_BYTES: usize = 8;

impl Session {
    /// Writes the session's tokens and state. Checkpoints are not saved.
    ///
    /// # Errors
    ///
    /// [`Error::SavedState`] if writing fails; what the device reports.
    pub fn save_state(&mut self, out: &mut dyn Write) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        self.apply_reset(&mut *runtime.lock()?);
        let not_written = |error: io::Error| Error::SavedState(format!("cannot write: {error}"));
        let mut out = Hashed { out, hash: XxHash3_64::new() };
        out.write_all(&self.header()).map_err(not_written)?;
        out.write_all(&(self.tokens.len() as u64).to_le_bytes()).map_err(not_written)?;
        for token in &self.tokens {
            out.write_all(&token.0.to_le_bytes()).map_err(not_written)?;
        }
        for part in parts(&self.runtime.model().plan.state, self.tokens.len()) {
            // The device is free for others while the bytes are written.
            let mut device = self.runtime.lock()?;
            let mut bytes = vec![0; device.backend.state_part_bytes(self.state, part)];
            device.backend.read_state(self.state, part, &mut bytes)?;
            drop(device);
            out.write_all(&bytes).map_err(not_written)?;
        }
        let checksum = out.hash.finish();
        out.out.write_all(&checksum.to_le_bytes()).map_err(not_written)
    }

    /// Replaces the session by a saved one; its checkpoints are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::SavedState`] if the bytes are damaged, of another model, arithmetic or version, or
    /// longer than the context: the session is then as it was. What the device reports: the session
    /// is empty then.
    pub fn load_state(&mut self, bytes: &[u8]) -> Result<()> {
        let header = self.header();
        let mut reader = Reader { rest: bytes };
        check_header(&mut reader, &header)?;
        let n_tokens = reader.u64()?;
        let context = self.context as u64;
        if n_tokens > context {
            return Err(Error::SavedState(format!(
                "it holds {n_tokens} tokens, this session has room for {context}"
            )));
        }
        let n_tokens = usize::try_from(n_tokens).expect("at most the context");
        let mut tokens = Vec::with_capacity(self.context);
        for _ in 0..n_tokens {
            tokens.push(TokenId(reader.u32()?));
        }
        let vocab = self.runtime.model().spec.vocab;
        if let Some(token) = tokens.iter().find(|token| token.0 as usize >= vocab) {
            return Err(Error::SavedState(format!(
                "token {} is not in the vocabulary of {vocab}",
                token.0
            )));
        }
        let runtime = Arc::clone(&self.runtime);
        let mut device = runtime.lock()?;
        let spec = &runtime.model().plan.state;
        let payload = reader.rest;
        check_payload(device.backend.as_ref(), self.state, (spec, n_tokens), (bytes, payload))?;

        // From here on nothing of the old session is left, should the device fail.
        self.clear();
        device.backend.reserve_positions(self.state, &(0..n_tokens))?;
        let mut at = 0;
        for part in parts(spec, n_tokens) {
            let n_bytes = device.backend.state_part_bytes(self.state, part);
            device.backend.write_state(self.state, part, &payload[at..][..n_bytes])?;
            at += n_bytes;
        }
        device.backend.commit_state(self.state);
        self.is_reset_due = false;
        self.tokens = tokens;
        Ok(())
    }

    fn header(&self) -> Vec<u8> {
        let arithmetic = self.runtime.device_names().arithmetic.name();
        let mut mode = [0; 8];
        mode[..arithmetic.len()].copy_from_slice(arithmetic.as_bytes());
        let spec = &self.runtime.model().plan.state;
        let n_layers = u32::try_from(spec.layers.len()).expect("the spec bounds the layers");
        let mut header = Vec::new();
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&mode);
        header.extend_from_slice(&self.runtime.model().fingerprint.to_le_bytes());
        header.extend_from_slice(&n_layers.to_le_bytes());
        for layer in &spec.layers {
            let (kind, numbers) = match *layer {
                LayerState::KeyValue { n_heads, k_cols, v_cols } => {
                    (0_u32, [k_cols, v_cols, n_heads])
                }
                LayerState::Latent { latent_cols, rope_cols } => (1, [latent_cols, rope_cols, 0]),
                LayerState::Recurrent { conv_rows, conv_cols, delta_values } => {
                    (2, [conv_rows, conv_cols, delta_values])
                }
            };
            header.extend_from_slice(&kind.to_le_bytes());
            for number in numbers {
                header.extend_from_slice(&(number as u64).to_le_bytes());
            }
        }
        header
    }
}

/// Compares the header field by field, so that the message says what differs.
fn check_header(reader: &mut Reader<'_>, expected: &[u8]) -> Result<()> {
    let mut ours = Reader { rest: expected };
    let fields = [
        (8, "it is not a saved session of moeflux"),
        (4, "it was written by another version of moeflux"),
        (8, "it was computed in another arithmetic mode"),
        (8, "it belongs to another model"),
        (ours.rest.len() - 28, "its layers have other shapes"),
    ];
    for (n_bytes, problem) in fields {
        if reader.take(n_bytes)? != ours.take(n_bytes)? {
            return Err(Error::SavedState(problem.into()));
        }
    }
    Ok(())
}

fn check_payload(
    backend: &dyn Backend,
    state: StateId,
    (spec, n_tokens): (&StateSpec, usize),
    (all, payload): (&[u8], &[u8]),
) -> Result<()> {
    let parts = parts(spec, n_tokens);
    let n_bytes: usize = parts.map(|part| backend.state_part_bytes(state, part)).sum();
    if payload.len() != n_bytes + CHECKSUM_BYTES {
        return Err(Error::SavedState(format!(
            "{} bytes follow the tokens, {} should: it is cut or not a saved session",
            payload.len(),
            n_bytes + CHECKSUM_BYTES
        )));
    }
    let (hashed, checksum) = all.split_at(all.len() - CHECKSUM_BYTES);
    if XxHash3_64::oneshot(hashed).to_le_bytes() != checksum {
        return Err(Error::SavedState("its checksum does not fit: it is damaged".into()));
    }
    Ok(())
}

/// The parts of a state that `n_tokens` tokens leave behind, in the order they are saved.
fn parts(spec: &StateSpec, n_tokens: usize) -> impl Iterator<Item = StatePart> + '_ {
    spec.layers.iter().enumerate().map(move |(layer_idx, layer_state)| {
        let layer = LayerIdx(layer_idx);
        match layer_state {
            LayerState::KeyValue { .. } | LayerState::Latent { .. } => {
                StatePart::Positions { layer, first: 0, n: n_tokens }
            }
            LayerState::Recurrent { .. } => StatePart::Recurrent { layer },
        }
    })
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, n_bytes: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(n_bytes) else {
            return Err(Error::SavedState(format!(
                "it ends {} bytes early: it is cut or not a saved session",
                n_bytes - self.rest.len()
            )));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes were taken")))
    }

    fn u64(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken")))
    }
}

/// Hashes what it passes on.
struct Hashed<'a> {
    out: &'a mut dyn Write,
    hash: XxHash3_64,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n_bytes = self.out.write(bytes)?;
        self.hash.write(&bytes[..n_bytes]);
        Ok(n_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
