//! Codebooks of some kinds of blocks, for lookup by kernels: the first values of the buffer of
//! vectors, which every kernel binds.
//!
//! As arrays in the text of a kernel, some drivers would copy them for each invocation; in
//! workgroup memory, every kernel would have to fill them first. **Invariant:** words of four
//! magnitudes are stored as the floats that have their bits. None of them is subnormal or NaN, so
//! no driver changes it.

use moeflux_kernels::{E2M1_VALUES, IQ2_XXS_GRID, IQ3_XXS_GRID, IQ4_VALUES};

/// Name of each offset in `decode_blocks.wgsl`, the offset, and the number of values.
#[cfg(test)]
pub(crate) const CODEBOOKS: [(&str, usize, usize); 4] = [
    ("IQ4_VALUES", 0, IQ4_VALUES.len()),
    ("E2M1_VALUES", 16, E2M1_VALUES.len()),
    ("IQ3_XXS_GRID", 32, IQ3_XXS_GRID.len()),
    ("IQ2_XXS_GRID", 288, 2 * IQ2_XXS_GRID.len()),
];

/// Returns all codebooks, concatenated.
pub(crate) fn values() -> Vec<f32> {
    let halves = |word: &u64| [*word & u64::from(u32::MAX), *word >> 32];
    let mut values: Vec<f32> = IQ4_VALUES.into_iter().chain(E2M1_VALUES).map(f32::from).collect();
    values.extend(IQ3_XXS_GRID.iter().copied().map(f32::from_bits));
    let words = IQ2_XXS_GRID.iter().flat_map(halves);
    values.extend(words.map(|it| f32::from_bits(u32::try_from(it).expect("half of a word"))));
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codebooks_follow_each_other_and_drivers_leave_them_alone() {
        let values = values();
        let mut end = 0;
        for (name, first, n_values) in CODEBOOKS {
            assert_eq!(first, end, "{name}");
            end = first + n_values;
        }
        assert_eq!(end, values.len());
        assert!(end.is_multiple_of(4), "vectors begin at whole quads");
        let is_safe = |it: &f32| it.is_normal() || it.to_bits() == 0;
        assert!(values.iter().all(is_safe));
        assert_eq!(values[7..9], [-10.0, 1.0]);
        assert_eq!(values[288].to_bits().to_le_bytes(), [8; 4]);
    }
}
