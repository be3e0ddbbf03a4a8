//! The header of a GGUF file to be written: its keys and the places of its tensors.
//!
//! **Invariant:** tensors are laid out in the given order, each at a multiple of the alignment, so
//! that [`super::parse_gguf`] accepts the result. Values must have the widths that llama.cpp
//! expects, which accepts no others.

use super::cursor::{ALIGNMENT, MAGIC};
use super::kind::id_of;
use crate::format::NewTensor;

const VERSION: u32 = 3;

/// A value of a key to be written.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "they are ggml's own types")]
pub enum NewValue<'a> {
    U16(u16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(&'a str),
    Bools(&'a [bool]),
    I32s(&'a [i32]),
    Texts(&'a [String]),
}

/// The keys of a file to be written, with their values.
#[derive(Clone, Debug, Default)]
pub struct NewPairs {
    bytes: Vec<u8>,
    n: u64,
}

/// The layout of a GGUF file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGguf {
    /// Everything before the first tensor.
    pub header: Vec<u8>,
    /// Offset of each tensor in the file.
    pub places: Vec<u64>,
    /// Length of the whole file.
    pub len_bytes: u64,
}

impl NewPairs {
    /// Wraps `n` keys in their stored form.
    pub(super) fn of_bytes(bytes: &[u8], n: u64) -> Self {
        Self { bytes: bytes.to_vec(), n }
    }

    /// Adds a key.
    pub fn add(&mut self, key: &str, value: NewValue<'_>) {
        push_text(key, &mut self.bytes);
        self.n += 1;
        let mut put = |type_id: u32, value: &[u8]| {
            self.bytes.extend_from_slice(&type_id.to_le_bytes());
            self.bytes.extend_from_slice(value);
        };
        match value {
            NewValue::U16(value) => put(2, &value.to_le_bytes()),
            NewValue::U32(value) => put(4, &value.to_le_bytes()),
            NewValue::I32(value) => put(5, &value.to_le_bytes()),
            NewValue::F32(value) => put(6, &value.to_le_bytes()),
            NewValue::Bool(value) => put(7, &[u8::from(value)]),
            NewValue::Text(text) => {
                put(8, &[]);
                push_text(text, &mut self.bytes);
            }
            NewValue::Bools(values) => {
                self.begin_array(7, values.len());
                self.bytes.extend(values.iter().map(|value| u8::from(*value)));
            }
            NewValue::I32s(values) => {
                self.begin_array(5, values.len());
                values.iter().for_each(|it| self.bytes.extend_from_slice(&it.to_le_bytes()));
            }
            NewValue::Texts(texts) => {
                self.begin_array(8, texts.len());
                texts.iter().for_each(|text| push_text(text, &mut self.bytes));
            }
        }
    }

    fn begin_array(&mut self, type_id: u32, n: usize) {
        self.bytes.extend_from_slice(&9_u32.to_le_bytes());
        self.bytes.extend_from_slice(&type_id.to_le_bytes());
        self.bytes.extend_from_slice(&(n as u64).to_le_bytes());
    }
}

/// Lays out a file with these keys and tensors.
///
/// # Panics
///
/// If a tensor has a type that GGUF lacks.
#[must_use]
pub fn new_gguf(pairs: &NewPairs, tensors: &[NewTensor<'_>]) -> NewGguf {
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    header.extend_from_slice(&pairs.n.to_le_bytes());
    header.extend_from_slice(&pairs.bytes);
    let mut places = Vec::with_capacity(tensors.len());
    let mut begin_bytes = 0_u64;
    for &NewTensor { name, dtype, shape, len_bytes } in tensors {
        push_text(name, &mut header);
        let rank = u32::try_from(shape.len()).expect("a tensor has a few dimensions");
        header.extend_from_slice(&rank.to_le_bytes());
        // GGUF lists the innermost dimension first.
        shape.iter().rev().for_each(|dim| header.extend_from_slice(&(*dim as u64).to_le_bytes()));
        let type_id = id_of(dtype).expect("a type of GGUF files");
        header.extend_from_slice(&type_id.to_le_bytes());
        header.extend_from_slice(&begin_bytes.to_le_bytes());
        places.push(begin_bytes);
        begin_bytes = (begin_bytes + len_bytes).next_multiple_of(ALIGNMENT);
    }
    while !(header.len() as u64).is_multiple_of(ALIGNMENT) {
        header.push(0);
    }
    let data_at = header.len() as u64;
    places.iter_mut().for_each(|place| *place += data_at);
    NewGguf { header, places, len_bytes: data_at + begin_bytes }
}

fn push_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}
