//! Objects of a prefix cache: an accepted header is written as it was read.
//!
//! Input: the unmodified file; tried again with the length that its fields describe, and with zeros
//! and the right checksum behind its tokens.

use moeflux_prefix::{FIELDS_BYTES, FileLayout, ObjectHeader};
use twox_hash::XxHash3_64;

use crate::support::check_refusal;

/// Where the first position, the one after the last, and the bytes of the payload are.
const NUMBERS_AT: usize = 80;
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn check(input: &[u8]) {
    check_file(input);
    let numbers = input.get(NUMBERS_AT..FIELDS_BYTES).unwrap_or_default();
    let (numbers, _) = numbers.as_chunks();
    let &[first, end, payload_bytes, ..] = numbers else { return };
    let n_tokens = u64::from_le_bytes(end).saturating_sub(u64::from_le_bytes(first));
    let layout = FileLayout::of(n_tokens, u64::from_le_bytes(payload_bytes));
    if let Some(layout) = layout.filter(|it| it.file_bytes <= FILE_BYTES_MAX) {
        let [payload_at, file_bytes] = [layout.payload_at, layout.file_bytes].map(small);
        let summed_bytes = FIELDS_BYTES + 4 * small(n_tokens);
        let mut file = input.to_vec();
        file.resize(file_bytes, 0);
        let sum = XxHash3_64::oneshot(&file[..summed_bytes]);
        file[summed_bytes..payload_at].fill(0);
        file[summed_bytes..summed_bytes + 8].copy_from_slice(&sum.to_le_bytes());
        check_file(&file);
    }
}

fn check_file(file: &[u8]) {
    let file_bytes = file.len() as u64;
    let header = match ObjectHeader::parse(file, file_bytes) {
        Ok(header) => header,
        Err(damage) => return check_refusal(&damage),
    };
    let layout = header.layout().expect("the layout of a file");
    assert_eq!(layout.file_bytes, file_bytes);
    let bytes = header.to_bytes();
    assert_eq!(bytes[..], file[..small(layout.payload_at)]);
    assert_eq!(ObjectHeader::len_bytes(&file[..FIELDS_BYTES], file_bytes), Ok(bytes.len()));
    assert_eq!(header.tokens.len() as u64, header.end - header.first);
}

fn small(n_bytes: u64) -> usize {
    usize::try_from(n_bytes).expect("below a MiB")
}
