//! Pseudo-random numbers as a pure function of their inputs.

/// Hashes numbers into one, with the finaliser of `SplitMix64` after each.
pub(crate) fn mixed(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, &part| {
        let mut z = (hash ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_and_its_place_counts() {
        let all = [mixed(&[1, 2]), mixed(&[2, 1]), mixed(&[1, 3]), mixed(&[1]), mixed(&[1, 2, 0])];
        for (i, a) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|b| a != b));
        }
    }
}
