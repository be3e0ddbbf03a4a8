//! What can go wrong outside of this program, with the numbers a reader needs.
//!
//! **Invariant:** every message is one line that names what, where and the way out.
//! Our own mistakes are assertions, not errors.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of everything that can fail for outside reasons.
pub type Result<T> = std::result::Result<T, Error>;

/// An outside failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: "read", "create".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file's contents are not what its format asks for.
    #[error("{}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with numbers, and what to do about it.
        problem: String,
    },
    /// A tensor is missing, left over, or of the wrong shape.
    #[error("tensor `{name}`: {problem}")]
    Tensor {
        /// Its name in the checkpoint.
        name: String,
        /// What is wrong, with numbers.
        problem: String,
    },
    /// A routed expert could not be had from its drive.
    #[error("expert {expert} of layer {layer}: {problem}")]
    Expert {
        /// Its layer.
        layer: usize,
        /// Which of the layer.
        expert: usize,
        /// What went wrong: the file, the bytes, the attempts.
        problem: String,
    },
    /// The model or option is well-formed, but this program does not know it.
    #[error("{0}")]
    Unsupported(String),
    /// The caller's tokens, text or parameters cannot be used.
    #[error("{0}")]
    Input(String),
    /// Weights that are damaged, or too large for the arithmetic, gave NaN or infinity.
    #[error(
        "{place}: gives values that are NaN or infinite: the weights are damaged (`moeflux verify` \
         reads all of them) or too large for this arithmetic (--precise computes in f32)"
    )]
    NonFinite {
        /// The layer and the operation.
        place: String,
    },
    /// There is not enough memory or disk.
    #[error("{what}: needs {}; {advice}", ByteCount(*needed_bytes))]
    NoRoom {
        /// What should have been stored.
        what: String,
        /// Its size.
        needed_bytes: u64,
        /// The way out.
        advice: String,
    },
    /// A recurrent layer cannot forget its last tokens one by one.
    #[error(
        "cannot cut {len} tokens to {wanted}: the model's recurrent layers keep no history; \
         take a checkpoint at {wanted} beforehand, or clear and feed the tokens again"
    )]
    CannotTruncateRecurrentState {
        /// Tokens in the session.
        len: usize,
        /// Tokens that should have remained.
        wanted: usize,
    },
    /// There is no checkpoint at the asked position.
    #[error("no checkpoint at position {wanted}; there are checkpoints at {available:?}")]
    NoCheckpoint {
        /// The asked position.
        wanted: usize,
        /// Positions that have one.
        available: Vec<usize>,
    },
    /// A saved state does not belong to this model, or is damaged.
    #[error("saved state: {0}")]
    SavedState(String),
    /// A device other than the CPU failed, or is not there.
    #[error("{device}: {problem}")]
    Device {
        /// What it calls itself, or how it was asked for.
        device: String,
        /// What happened, and the way out.
        problem: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// A number of bytes as people read it, rounded, with the exact count:
/// `4.25 GB (4,246,732,800 bytes)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// Rounded, in powers of 1000: `4.25 GB`.
    #[must_use]
    pub fn rounded(self) -> String {
        let n_bytes = u128::from(self.0);
        let (mut divisor, mut unit) = (1_u128, "bytes");
        for larger in ["kB", "MB", "GB", "TB"] {
            // 999.9996 kB would be printed as 1000.00 kB.
            if n_bytes + divisor / 200 < divisor * 1000 {
                break;
            }
            (divisor, unit) = (divisor * 1000, larger);
        }
        if divisor == 1 {
            return format!("{n_bytes} bytes");
        }
        let n_hundredths = (n_bytes * 100 + divisor / 2) / divisor;
        format!("{}.{:02} {unit}", n_hundredths / 100, n_hundredths % 100)
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ..1000 => f.write_str(&self.rounded()),
            n_bytes => write!(f, "{} ({} bytes)", self.rounded(), grouped(n_bytes)),
        }
    }
}

/// A count with separators: `7,077,888`.
#[must_use]
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

impl Error {
    /// An [`Error::Io`] maker for `map_err`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// An [`Error::Malformed`].
    #[must_use]
    pub fn malformed(path: &Path, problem: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), problem: problem.into() }
    }

    /// An [`Error::Tensor`].
    #[must_use]
    pub fn tensor(name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Tensor { name: name.into(), problem: problem.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_rounded_and_exact() {
        for (n_bytes, expected) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1000, "1.00 kB (1,000 bytes)"),
            (999_994, "999.99 kB (999,994 bytes)"),
            (999_995, "1.00 MB (999,995 bytes)"),
            (7_077_888, "7.08 MB (7,077,888 bytes)"),
            (4_246_732_800, "4.25 GB (4,246,732,800 bytes)"),
            (u64::MAX, "18446744.07 TB (18,446,744,073,709,551,615 bytes)"),
        ] {
            assert_eq!(ByteCount(n_bytes).to_string(), expected);
        }
    }
}
