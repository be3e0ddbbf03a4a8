//! GGUF files for tests.

/// A GGUF file in parts.
pub(crate) struct GgufBuilder {
    pub(super) version: u32,
    pub(super) pairs: Vec<u8>,
    pub(super) n_pairs: u64,
    pub(super) tensors: Vec<u8>,
    pub(super) n_tensors: u64,
    pub(super) data_bytes: usize,
}

pub(super) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl GgufBuilder {
    pub(crate) fn new() -> Self {
        let (pairs, tensors) = (Vec::new(), Vec::new());
        Self { version: 3, pairs, n_pairs: 0, tensors, n_tensors: 0, data_bytes: 0 }
    }

    pub(crate) fn pair(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        self.pairs.extend([&text(key)[..], &type_id.to_le_bytes(), value].concat());
        self.n_pairs += 1;
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.pair(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn string(self, key: &str, value: &str) -> Self {
        self.pair(key, 8, &text(value))
    }

    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        self.tensors.extend(text(name));
        self.tensors.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        dims.iter().for_each(|dim| self.tensors.extend(dim.to_le_bytes()));
        self.tensors.extend(type_id.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.n_tensors += 1;
        self
    }

    pub(crate) fn data(self, data_bytes: usize) -> Self {
        Self { data_bytes, ..self }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.n_tensors.to_le_bytes());
        bytes.extend(self.n_pairs.to_le_bytes());
        bytes.extend(&self.pairs);
        bytes.extend(&self.tensors);
        bytes.resize(bytes.len().next_multiple_of(32) + self.data_bytes, 0);
        bytes
    }
}
