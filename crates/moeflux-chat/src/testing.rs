//! Helpers for tests of several modules: random numbers, and a byte tokenizer.

use moeflux::Tokenizer;
use moeflux::provider::text::byte_tokenizer_json;

/// Returns the number of seeds: `n` in `./test.sh`, or proportionally more with `MOEFLUX_SEEDS`, as
/// in the engine's own suites.
#[expect(clippy::disallowed_methods, reason = "a test's own variable: see TESTING.md")]
pub(crate) fn n_seeds(n: u64) -> u64 {
    const USUAL: u64 = 200;
    let wanted = std::env::var("MOEFLUX_SEEDS").map_or(USUAL, |it| it.parse().expect("a number"));
    (n * wanted / USUAL).max(n)
}

/// Random numbers from a seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `n`.
    pub(crate) fn next(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % n as u64).unwrap()
    }

    /// Picks one of these words.
    pub(crate) fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.next(of.len())]
    }
}

/// Creates a tokenizer of bytes and these markers.
pub(crate) fn byte_tokenizer(markers: &[&str]) -> Tokenizer {
    let thread = std::thread::current().id();
    let name = format!("moeflux-chat-{}-{thread:?}", std::process::id()).replace(['(', ')'], "-");
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let n_tokens = 256 + markers.len();
    let json = byte_tokenizer_json(n_tokens, markers).to_string();
    std::fs::write(folder.join("tokenizer.json"), json).unwrap();
    let tokenizer = Tokenizer::open(&folder, n_tokens).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    tokenizer
}
