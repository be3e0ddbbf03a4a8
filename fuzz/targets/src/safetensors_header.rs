//! Headers of safetensors files: an accepted header covers the data exactly.
//!
//! Input: two bytes for the length of the data, little endian, then the header.

use moeflux::provider::format::parse_header;

pub(crate) fn check(input: &[u8]) {
    let Some((length, header)) = input.split_first_chunk::<2>() else { return };
    let data_bytes = u64::from(u16::from_le_bytes(*length));
    let Ok(header) = parse_header(header, data_bytes) else { return };
    let mut covered_bytes = 0;
    for tensor in &header.tensors {
        assert_eq!(tensor.begin_bytes, covered_bytes, "{tensor:?}");
        let n_values: usize = tensor.shape.iter().product();
        assert_eq!(
            Some(n_values as u64),
            tensor.dtype.bits().map(|bits| tensor.len_bytes * 8 / bits),
            "{tensor:?}"
        );
        covered_bytes += tensor.len_bytes;
    }
    assert_eq!(covered_bytes, data_bytes);
}
