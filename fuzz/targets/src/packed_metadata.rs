//! Headers of packed files: an accepted one has records and sums inside its tensors.
//!
//! Input: three bytes for the length of the data, little endian, then the header.

use moeflux::provider::format::{
    PackedRole, RECORD_ALIGN, packed_metadata, parse_header, parse_packed,
};

pub(crate) fn check(input: &[u8]) {
    let Some((&[a, b, c], header)) = input.split_first_chunk::<3>() else { return };
    let data_bytes = u64::from(u32::from_le_bytes([a, b, c, 0]));
    let Ok(header) = parse_header(header, data_bytes) else { return };
    let file = match parse_packed(&header) {
        Ok(Some(file)) => file,
        Ok(None) => return,
        Err(problem) => {
            // One line of bounded length, whatever the file contains.
            assert!(!problem.0.contains('\n') && problem.0.len() < 2000, "{problem}");
            return;
        }
    };
    let sums_bytes = (file.sums.n_sums as u64 + 1) * 8;
    assert_eq!(file.sums.begin_bytes + sums_bytes, data_bytes);
    // Written metadata is read as the same.
    let mut again = header;
    let metadata = packed_metadata(file.pack, &file.role, &file.blocks);
    again.metadata = metadata
        .into_iter()
        .map(|(key, value)| (key, value.as_str().expect("metadata are strings").to_owned()))
        .collect();
    assert_eq!(parse_packed(&again).expect("its own metadata"), Some(file.clone()));
    let PackedRole::Experts(bank) = &file.role else { return };
    assert!(bank.record_bytes.is_multiple_of(RECORD_ALIGN) && bank.n_experts == file.sums.n_sums);
    let records_bytes = bank.n_experts as u64 * bank.record_bytes as u64;
    assert_eq!(bank.begin_bytes + records_bytes, file.sums.begin_bytes);
    for matrix in &bank.matrices {
        let places = [matrix.codes_at, matrix.scales_at, matrix.biases_at];
        assert!(places.iter().all(|&at| at <= bank.record_bytes), "{matrix:?}");
    }
}
