//! A seeded random number generator: `SplitMix64` (Steele, Lea and Flood, 2014).
//!
//! **Invariant:** 64 bits of state and integer arithmetic only, so that a seed gives the same
//! numbers on every platform and in every version. Not for cryptography.

/// The generator's state: a counter that is incremented by the golden ratio.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in [0, 1) with 53 random bits, the precision of an f64.
    pub(super) fn next_f64(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let bits = (self.next_u64() >> 11) as f64;
        bits * STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        let mut random = SplitMix64::new(1_234_567);
        let got: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(got, expected);
    }

    #[test]
    fn floats_stay_below_one() {
        let mut random = SplitMix64::new(7);
        assert!((0..10_000).all(|_| (0.0..1.0).contains(&random.next_f64())));
    }
}
