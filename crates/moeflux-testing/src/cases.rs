//! Golden cases and measures of distance, for the tests of all crates that run models.

use std::fs::DirEntry;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use moeflux::provider::error::Result;
use moeflux::provider::format::{Checkpoint, DType};
use moeflux::provider::ids::TokenId;
use moeflux::provider::session::{Session, Wanted};

/// A golden case: a tiny checkpoint and the logits that another implementation computes for it.
#[derive(Debug)]
pub struct GoldenCase {
    /// Its folder.
    pub dir: PathBuf,
    /// The tokens to feed.
    pub tokens: Vec<TokenId>,
    /// `[n_tokens, vocab]`.
    pub logits: Vec<Vec<f32>>,
}

impl GoldenCase {
    /// The case of this name.
    pub fn load(name: &str) -> Self {
        let dir = golden_dir().join(name);
        let tokens = read_tokens(&dir.join("tokens.json"));
        let logits = read_npy(&dir.join("logits.npy"));
        assert_eq!(logits.len(), tokens.len(), "{name}: a row of logits per token");
        Self { dir, tokens, logits }
    }

    /// The demo model on a held-out page, with the logits of every 32nd token alone.
    pub fn demo() -> (Self, usize) {
        let dir = golden_dir().join("../crates/moeflux-demo/model");
        let tokens = read_tokens(&golden_dir().join("demo-tokens.json"));
        let logits = read_npy(&golden_dir().join("demo-logits.npy"));
        assert_eq!((tokens.len(), logits.len()), (256, 8));
        (Self { dir, tokens, logits }, 32)
    }
}

/// Names of all golden cases that run as they are, sorted.
pub fn case_names() -> Vec<String> {
    let entries = std::fs::read_dir(golden_dir()).unwrap();
    let is_case = |entry: &DirEntry| entry.path().join("tokens.json").exists();
    let folders = entries.map(|entry| entry.unwrap()).filter(is_case);
    let mut names: Vec<_> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= 20, "only {} golden cases: is golden/ complete?", names.len());
    names
}

/// The repository's `golden/`.
pub fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden")
}

/// Feeds tokens and collects all their logits; panics if that fails.
pub fn feed_all(session: &mut Session, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    try_feed_all(session, tokens).unwrap()
}

/// Feeds tokens and collects all their logits.
///
/// # Errors
///
/// As [`Session::feed`].
pub fn try_feed_all(session: &mut Session, tokens: &[TokenId]) -> Result<Vec<Vec<f32>>> {
    let mut rows = Vec::new();
    let watch = &mut |_| ControlFlow::Continue(());
    session.feed(tokens, Wanted::All, watch, &mut |_, logits| {
        rows.push(logits.to_vec());
        Ok(())
    })?;
    Ok(rows)
}

/// Writes a value to all places of a tensor.
pub fn fill_tensor(dir: &Path, name: &str, value: f32) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let entry = checkpoint.tensors.get(name).expect(name);
    let path = &checkpoint.files[entry.file_idx].path;
    let mut bytes = std::fs::read(path).unwrap();
    let at = usize::try_from(entry.offset_bytes).unwrap();
    let tensor = &mut bytes[at..][..usize::try_from(entry.len_bytes).unwrap()];
    match entry.dtype {
        DType::Bf16 => {
            let high = value.to_le_bytes();
            tensor.chunks_exact_mut(2).for_each(|it| it.copy_from_slice(&high[2..]));
        }
        DType::F32 => {
            tensor.chunks_exact_mut(4).for_each(|it| it.copy_from_slice(&value.to_le_bytes()));
        }
        other => panic!("{name} is {other}"),
    }
    std::fs::write(path, bytes).unwrap();
}

fn read_tokens(path: &Path) -> Vec<TokenId> {
    let tokens: Vec<u32> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    tokens.into_iter().map(TokenId).collect()
}

/// A float32 matrix as NumPy wrote it (format 1.0, C order).
fn read_npy(path: &Path) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00", "{}", path.display());
    let header_len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..10 + header_len]).unwrap();
    assert!(header.contains("'<f4'") && header.contains("'fortran_order': False"), "{header}");
    let shape = header.split("'shape': (").nth(1).unwrap().split(')').next().unwrap();
    let dims: Vec<usize> = shape.split(", ").map(|dim| dim.parse().unwrap()).collect();
    let [n_rows, n_cols] = dims[..] else { panic!("{header}") };
    let (values, rest) = bytes[10 + header_len..].as_chunks::<4>();
    assert!(rest.is_empty() && values.len() == n_rows * n_cols, "{}", path.display());
    let values: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    values.chunks(n_cols).map(<[f32]>::to_vec).collect()
}

/// How far logits are from a reference.
#[derive(Debug)]
pub struct Distance {
    /// Largest absolute difference.
    pub max_abs: f64,
    /// Sum of squared differences by sum of squared references.
    pub nmse: f64,
    /// Share of rows whose largest logit is the same.
    pub top1: f64,
    /// Mean share of the 20 largest that are the same.
    pub top20: f64,
    /// Mean KL(reference || tested).
    pub kl: f64,
}

impl Distance {
    /// The distance of `tested` from `reference`.
    pub fn between(tested: &[Vec<f32>], reference: &[Vec<f32>]) -> Self {
        assert_eq!(tested.len(), reference.len(), "rows");
        let n_rows = reference.len() as f64;
        let (mut max_abs, mut error, mut norm) = (0.0_f64, 0.0, 0.0);
        let (mut top1, mut top20, mut kl) = (0.0, 0.0, 0.0);
        for (tested, reference) in tested.iter().zip(reference) {
            assert_eq!(tested.len(), reference.len(), "columns");
            let (tested_z, reference_z) = (log_z(tested), log_z(reference));
            for (&a, &b) in tested.iter().zip(reference) {
                let (a, b) = (f64::from(a), f64::from(b));
                // `max` would swallow a NaN.
                max_abs = if (a - b).abs() <= max_abs { max_abs } else { (a - b).abs() };
                error += (a - b) * (a - b);
                norm += b * b;
                kl += (b - reference_z).exp() * ((b - reference_z) - (a - tested_z));
            }
            let (mine, theirs) = (largest(tested), largest(reference));
            top1 += f64::from(u8::from(mine[0] == theirs[0]));
            let n_same = mine.iter().filter(|idx| theirs.contains(idx)).count();
            top20 += n_same as f64 / theirs.len() as f64;
        }
        Self {
            max_abs,
            nmse: error / norm,
            top1: top1 / n_rows,
            top20: top20 / n_rows,
            kl: kl / n_rows,
        }
    }

    /// Describes the differences if they exceed the limits for f32 arithmetic. Independent
    /// implementations differ by 2e-6 to 3e-5 (once 1.8e-4) and NMSE 3e-13 to 5e-12 (once 3e-11).
    pub fn beyond_f32_limits(&self) -> Option<String> {
        let is_within = self.max_abs <= 5e-4
            && self.nmse <= 1e-9
            && self.top1 >= 1.0
            && self.top20 >= 0.995
            && self.kl <= 1e-8;
        (!is_within).then(|| format!("{self:?}"))
    }
}

fn log_z(row: &[f32]) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + row.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
}

fn largest(row: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    order.truncate(20);
    order
}
