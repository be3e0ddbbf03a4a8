//! Random numbers from a seed: the same on every machine, so that the seed in a failure's message
//! is enough to repeat it.

use std::ops::Range;

/// The seeds of a suite that draws `n` of them in `./test.sh`. `MOEFLUX_SEEDS=2000` makes every
/// suite draw ten times as many: it states the number for suites that usually draw 200.
#[expect(clippy::disallowed_methods, reason = "a test's own variable: see TESTING.md")]
pub fn seeds(n: u64) -> Range<u64> {
    const USUAL: u64 = 200;
    let wanted = std::env::var("MOEFLUX_SEEDS").map_or(USUAL, |it| it.parse().expect("a number"));
    0..(n * wanted.max(USUAL)).div_ceil(USUAL)
}

/// The SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator whose numbers depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0 .. n`.
    pub fn below(&mut self, n: usize) -> usize {
        let rest = self.bits() % u64::try_from(n).expect("a small count");
        usize::try_from(rest).expect("less than a count")
    }

    /// A number in `first ..= last`.
    pub fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// True half of the time.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        self.bits().to_le_bytes()[0]
    }

    /// `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.byte()).collect()
    }

    /// A number in `0.0 .. 1.0`, of 24 bits.
    #[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
    pub fn fraction(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u32 << 24) as f32
    }

    /// A multiple of 0.001 in `-1.0 ..= 1.0`.
    #[expect(clippy::cast_precision_loss, reason = "small numbers fit")]
    pub fn unit(&mut self) -> f32 {
        (self.bits() % 2001) as f32 / 1000.0 - 1.0
    }

    /// `n` of [`Rng::unit`].
    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// A number with mean 0 and variance 1, within a few deviations.
    pub fn normal(&mut self) -> f32 {
        // The sum of 12 fractions has variance 1.
        (0..12).map(|_| self.fraction()).sum::<f32>() - 6.0
    }

    /// `n` normal numbers, each multiplied by `factor`.
    pub fn normals(&mut self, n: usize, factor: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * factor).collect()
    }

    /// Reorders `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for idx in (1..items.len()).rev() {
            items.swap(idx, self.below(idx + 1));
        }
    }
}
