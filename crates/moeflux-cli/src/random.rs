//! Random numbers by index: the SplitMix64 generator, whose n-th number does not depend on others.
//!
//! **Invariant:** a number depends only on the seed, the name and the index, on every machine.

/// The numbers of one name with one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RandomStream {
    start: u64,
}

/// SplitMix64's step: 2^64 over the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bits of the small numbers that make up a normal value or a sign.
const PART_BITS: u32 = 16;

impl RandomStream {
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let start = name.bytes().fold(mixed(seed.wrapping_add(STEP)), |state, byte| {
            mixed(state ^ u64::from(byte)).wrapping_add(STEP)
        });
        Self { start }
    }

    /// Returns 64 random bits.
    pub(crate) fn word(&self, idx: u64) -> u64 {
        mixed(self.start.wrapping_add(idx.wrapping_mul(STEP)))
    }

    /// Returns a number with mean 0 and standard deviation 1, within 3.5: the sum of four uniform
    /// numbers is close to normal.
    pub(crate) fn normal(&self, idx: u64) -> f32 {
        let word = self.word(idx);
        let sum: f32 = (0..4).map(|part| fraction(word >> (part * PART_BITS))).sum();
        (sum - 2.0) * 3.0_f32.sqrt()
    }

    /// Returns a number strictly between 0 and 1.
    pub(crate) fn uniform(&self, idx: u64) -> f32 {
        fraction(self.word(idx))
    }

    /// Returns 1 or -1, independent of the uniform number at the same index.
    pub(crate) fn sign(&self, idx: u64) -> f32 {
        if self.word(idx) >> 63 == 0 { 1.0 } else { -1.0 }
    }
}

/// Returns the middle of one of 2^16 steps between 0 and 1.
fn fraction(word: u64) -> f32 {
    let [low, high, ..] = word.to_le_bytes();
    (f32::from(u16::from_le_bytes([low, high])) + 0.5) / 65536.0
}

fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_splitmix64() {
        // The first numbers that its authors' program prints for seed 1234567.
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821_u64,
        ];
        let stream = RandomStream { start: 1_234_567 };
        let drawn: Vec<u64> = (1..=5).map(|idx| stream.word(idx)).collect();
        assert_eq!(drawn, published);
    }

    #[test]
    fn names_and_seeds_lead_to_other_numbers() {
        let base = RandomStream::new(1, "a.b");
        for other in
            [RandomStream::new(2, "a.b"), RandomStream::new(1, "a.c"), RandomStream::new(1, "b.a")]
        {
            assert_ne!(base.word(0), other.word(0));
        }
        assert_eq!(base, RandomStream::new(1, "a.b"));
    }

    #[test]
    fn has_the_moments_it_promises() {
        let stream = RandomStream::new(3, "moments");
        let n = 1 << 16;
        let mean = |draw: &dyn Fn(u64) -> f32| {
            (0..n).map(|idx| f64::from(draw(idx))).sum::<f64>() / n as f64
        };
        let close = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 0.02, "{found} is not {expected}");
        };
        close(mean(&|idx| stream.normal(idx)), 0.0);
        close(mean(&|idx| stream.normal(idx).powi(2)), 1.0);
        close(mean(&|idx| stream.normal(idx) * stream.normal(idx + 1)), 0.0);
        close(mean(&|idx| stream.uniform(idx)), 0.5);
        close(mean(&|idx| stream.sign(idx)), 0.0);
        close(mean(&|idx| stream.sign(idx) * (stream.uniform(idx) - 0.5)), 0.0);
    }
}
