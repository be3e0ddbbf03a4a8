//! Runs every target on its committed corpus, and on random changes of it.
//!
//! Unlike `tools/check/fuzz.sh`, this is not guided by coverage: it finds errors close to valid
//! files, in the build of all other tests. `MOEFLUX_SEEDS` makes it try more.
#![cfg(test)]

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use moeflux_fuzz_targets::{Check, TARGETS, check_of};

/// The limit passed to libFuzzer: larger inputs find nothing that smaller ones do not.
const INPUT_BYTES_MAX: usize = 16 << 10;
/// More than any valid input of this size needs; a wrong size requests far more.
const ALLOCATED_BYTES_MAX: u64 = 256 << 20;

/// Numbers at which sizes overflow, and invalid signs, exponents and kinds.
const NUMBERS: [&str; 10] = [
    "0",
    "1",
    "-1",
    "255",
    "65536",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "1e308",
    "null",
];

macro_rules! tests {
    ($($name:ident)*) => {
        const TESTED: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                check_target(stringify!($name));
            }
        )*
    };
}

tests! {
    calls chat_template checkpoint config_json generation_config gguf gguf_text index_json
    pack_journal pack_sums packed_metadata prefix_object safetensors_header saved_state sums
    tiktoken_model tokenizer_config tokenizer_json trace
}

#[test]
fn every_target_has_a_test_a_corpus_and_a_program() {
    let names = |folder: &str| -> BTreeSet<String> {
        let stem = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        entries(&fuzz_dir().join(folder)).iter().map(stem).collect()
    };
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    let tested: BTreeSet<String> = TESTED.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(tested, targets);
    assert_eq!(names("corpus"), targets);
    assert_eq!(names("programs"), targets);
}

fn check_target(name: &str) {
    let mut check = check_of(name);
    let words = words();
    let files = entries(&fuzz_dir().join("corpus").join(name));
    let inputs: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    for (file, input) in files.iter().zip(&inputs) {
        let stem = file.file_stem().unwrap().to_str().unwrap();
        check_input(&mut check, input, &format!("{name}-{stem}"));
        for seed in seeds(1000) {
            let mut mutator = InputMutator { rng: Rng(seed), words: &words, inputs: &inputs };
            check_input(&mut check, &mutator.changed(input), &format!("{name}-{stem}-{seed}"));
        }
    }
}

/// Checks an input. On failure, names it and writes it to a file for the libFuzzer program.
fn check_input(check: &mut Check, input: &[u8], what: &str) {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        let allocated = allocation_counter::measure(|| check(input));
        assert!(allocated.bytes_max < ALLOCATED_BYTES_MAX, "{} bytes", allocated.bytes_max);
    }));
    if let Err(panic) = outcome {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(what);
        std::fs::write(&file, input).unwrap();
        println!("the input is in {}", file.display());
        panic::resume_unwind(panic);
    }
}

/// Changes inputs in the ways of libFuzzer.
struct InputMutator<'a> {
    rng: Rng,
    words: &'a [Vec<u8>],
    inputs: &'a [Vec<u8>],
}

impl InputMutator<'_> {
    fn changed(&mut self, input: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.rng.below(3) {
            let at = self.rng.below(bytes.len());
            let end = (at + self.rng.below(9)).min(bytes.len());
            match self.rng.below(6) {
                0 => flip(&mut bytes[at..], self.rng.below(8)),
                1 => splice(&mut bytes, at..end, &self.rng.bits().to_le_bytes()[..end - at]),
                2 => splice(&mut bytes, at..end, b""),
                3 => self.change_word(&mut bytes, at),
                4 => self.change_number(&mut bytes, at),
                _ => {
                    let other = &self.inputs[self.rng.below(self.inputs.len())];
                    let first = self.rng.below(other.len());
                    let last = (first + self.rng.below(64)).min(other.len());
                    splice(&mut bytes, at..end, &other[first..last.max(first)]);
                }
            }
        }
        bytes.truncate(INPUT_BYTES_MAX);
        bytes
    }

    /// Changes the first quoted word after an offset, so that JSON stays JSON.
    fn change_word(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let quote = |from: usize| bytes[from..].iter().position(|&byte| byte == b'"');
        let Some(first) = quote(at).map(|first| at + first) else { return };
        let Some(n_bytes) = quote(first + 1).map(|n| n + 2) else { return };
        splice(bytes, first..first + n_bytes, &self.words[self.rng.below(self.words.len())]);
    }

    /// Changes the first decimal number after an offset.
    fn change_number(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let Some(first) = bytes[at..].iter().position(is_digit).map(|first| at + first) else {
            return;
        };
        let n_digits = bytes[first..].iter().take_while(|byte| is_digit(byte)).count();
        let number = NUMBERS[self.rng.below(NUMBERS.len())];
        splice(bytes, first..first + n_digits, number.as_bytes());
    }
}

fn flip(bytes: &mut [u8], bit_idx: usize) {
    if let Some(byte) = bytes.first_mut() {
        *byte ^= 1 << bit_idx;
    }
}

fn splice(bytes: &mut Vec<u8>, range: Range<usize>, new: &[u8]) {
    bytes.splice(range, new.iter().copied());
}

/// Returns the words of libFuzzer's dictionary.
fn words() -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(fuzz_dir().join("json.dict")).unwrap();
    let quoted = text.lines().filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    quoted.map(|it| it.replace("\\\"", "\"").replace("\\\\", "\\").into_bytes()).collect()
}

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns a directory's entries by name, so that a seed means the same everywhere.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Returns the seeds of a suite that draws `n` of them in `./test.sh`. `MOEFLUX_SEEDS` sets the
/// number for a suite that draws 200, and scales others in proportion.
#[expect(clippy::disallowed_methods, reason = "a test's own variable: see TESTING.md")]
fn seeds(n: u64) -> Range<u64> {
    const USUAL: u64 = 200;
    let wanted = std::env::var("MOEFLUX_SEEDS").map_or(USUAL, |it| it.parse().expect("a number"));
    0..(n * wanted.max(USUAL)).div_ceil(USUAL)
}

/// The SplitMix64 generator.
struct Rng(u64);

impl Rng {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0 .. n`, or 0 if the range is empty.
    fn below(&mut self, n: usize) -> usize {
        let n = u64::try_from(n.max(1)).unwrap();
        usize::try_from(self.bits() % n).unwrap()
    }
}
