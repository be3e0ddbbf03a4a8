//! Failures with causes outside of this program, with the numbers a user needs.
//!
//! **Invariant:** every message is one line that names what failed, where, and a remedy. Text from
//! files and other programs is escaped, so that it is harmless on a terminal, and long text is cut.
//! Bugs in this program are assertions, not errors.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_io::OneLine;

/// The result of an operation that can fail for external reasons.
pub type Result<T> = std::result::Result<T, Error>;

/// An external failure. A clone has the same message and the same [`Fault`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on a file.
    #[error("cannot {action} {}: {}", OneLinePath(path), OneLineText(&source.to_string()))]
    Io {
        /// The operation: "read", "create".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The contents of a file do not follow its format.
    #[error("{}: {}", OneLinePath(path), OneLineText(problem))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem, with numbers, and a remedy.
        problem: String,
    },
    /// A file has no tokenizer, or one that this program does not support.
    #[error("{}: {}; {}", OneLinePath(path), OneLineText(problem), Remedy::TokenizerFile)]
    UnknownTokenizer {
        /// The file.
        path: PathBuf,
        /// The tokenizer's name and the supported ones, or the missing part.
        problem: String,
    },
    /// A small file of a pack differs from the one that was packed.
    #[error("{}: {}; {}", OneLinePath(path), OneLineText(problem), Remedy::AcceptedEdits)]
    Altered {
        /// The file.
        path: PathBuf,
        /// The difference.
        problem: String,
    },
    /// A tensor is missing, superfluous, or of the wrong shape.
    #[error("tensor `{}`: {}", OneLine::name(name), OneLineText(problem))]
    Tensor {
        /// Its name in the checkpoint.
        name: String,
        /// The problem, with numbers.
        problem: String,
    },
    /// A routed expert could not be read from its drive.
    #[error("expert {expert} of layer {layer}: {}", OneLineText(problem))]
    Expert {
        /// Its layer.
        layer: usize,
        /// Its index in the layer.
        expert: usize,
        /// The problem: the file, the bytes, the attempts.
        problem: String,
    },
    /// A row of a table could not be read from its drive.
    #[error("row {row} of `{}`: {}", OneLine::name(table), OneLineText(problem))]
    TableRow {
        /// The table's name.
        table: String,
        /// The index of the row.
        row: u64,
        /// The problem: the file, the bytes, the attempts.
        problem: String,
    },
    /// The model or option is well-formed, but this program does not support it.
    #[error("{}", OneLineText(.0))]
    Unsupported(String),
    /// The caller's tokens, text or parameters cannot be used.
    #[error("{}", OneLineText(.0))]
    Input(String),
    /// A text has more tokens than the caller allows; the rest was not encoded.
    #[error("the text has more than {n_tokens_max} tokens, which is the limit: shorten it")]
    TooManyTokens {
        /// The caller's limit.
        n_tokens_max: usize,
    },
    /// An operation computed NaN or infinity: the weights are damaged, or too large for the
    /// arithmetic.
    #[error("{}: produced NaN or infinite values: {}", OneLineText(place), Remedy::SoundWeights)]
    NonFinite {
        /// The layer and the operation.
        place: String,
    },
    /// Memory or disk space is insufficient.
    #[error(
        "{}: needs {}{}; {remedy}",
        OneLineText(what),
        ByteCount(*needed_bytes),
        SizeBreakdown { available_bytes: *available_bytes, needs }
    )]
    NoRoom {
        /// The data that was to be stored.
        what: String,
        /// Its size.
        needed_bytes: u64,
        /// The available bytes, if known.
        available_bytes: Option<u64>,
        /// The parts of the size, if it has any.
        needs: Vec<Need>,
        /// The remedy.
        remedy: Remedy,
    },
    /// The disk filled up while a file was being written.
    #[error(
        "the disk filled up while writing {} ({source}): free some space and try again",
        OneLinePath(path)
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The system refused something other than a file or memory: a thread, a lock.
    #[error("{}", OneLineText(.0))]
    Machine(String),
    /// A drive has failed: nothing can be read from it any more.
    #[error("{}", OneLineText(.0))]
    Drive(String),
    /// The engine has stopped, after a panic or because its files were replaced while it read them.
    /// All of its sessions are lost, and it has to be opened again.
    #[error("{}", OneLineText(.0))]
    Stopped(String),
    /// A recurrent layer cannot remove its last tokens.
    #[error(
        "cannot truncate {len} tokens to {wanted}: the model's recurrent layers keep no history; \
         take a checkpoint at {wanted} beforehand, or clear and feed the tokens again"
    )]
    CannotTruncateRecurrentState {
        /// Tokens in the session.
        len: usize,
        /// Tokens that were to remain.
        wanted: usize,
    },
    /// There is no checkpoint at the requested position.
    #[error("no checkpoint at position {wanted}; there are checkpoints at {available:?}")]
    NoCheckpoint {
        /// The requested position.
        wanted: usize,
        /// Positions with a checkpoint.
        available: Vec<usize>,
    },
    /// A saved state does not belong to this model, or is damaged.
    #[error("saved state: {}", OneLineText(.0))]
    SavedState(String),
    /// A device other than the CPU failed, or does not exist.
    #[error("{}: {}{}", OneLine::name(device), OneLineText(problem), RemedySuffix(*remedy))]
    Device {
        /// The device's own name, or the name by which it was requested.
        device: String,
        /// The problem.
        problem: String,
        /// The remedy, if there is one.
        remedy: Option<Remedy>,
    },
    /// One of the machines that run a model together failed, or does not respond.
    #[error("rank {rank} ({}): {}", OneLine::name(host), OneLineText(problem))]
    Rank {
        /// Its index.
        rank: usize,
        /// The machine it runs on.
        host: String,
        /// The problem, with numbers.
        problem: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// A problem's text, which may quote files or other programs, as one line.
struct OneLineText<'a>(&'a str);

impl fmt::Display for OneLineText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        OneLine::message(self.0).fmt(f)
    }
}

/// A path as one line; others may have named its folders.
struct OneLinePath<'a>(&'a Path);

impl fmt::Display for OneLinePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        OneLine::message(&self.0.to_string_lossy()).fmt(f)
    }
}

/// The origin of a failure, which decides who can mend it. For programs that serve others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The caller: a parameter, a prompt, a path that does not exist. The same call fails again.
    Caller,
    /// The model's files: damaged, incomplete, or of an unsupported kind.
    Checkpoint,
    /// The machine: memory, disk space, threads. The call may succeed later, or with less.
    Machine,
    /// A drive that cannot be read, or returns other data than was written.
    Drive,
    /// A device other than the CPU, or its driver.
    Device,
    /// This program: a bug.
    Ourselves,
}

/// A remedy for a failure. Its text names no option of any program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remedy {
    /// Free memory.
    FreeMemory,
    /// Free disk space, or use another place.
    FreeDisk,
    /// Use a smaller model.
    SmallerModel,
    /// Compute fewer rows in one step.
    SmallerSteps,
    /// Open sessions for fewer tokens.
    ShorterContext,
    /// End sessions, or give them more memory.
    FewerSessions,
    /// Keep fewer checkpoints of sessions.
    FewerCheckpoints,
    /// Give a smaller budget: experts are then read from the drive.
    SmallerBudget,
    /// Give a larger budget, or put less into it.
    LargerBudget,
    /// As `LargerBudget`, or use weights with fewer bits: a dense model has no experts to stream.
    LargerBudgetOrFewerBits,
    /// Use the CPU instead of a device.
    Cpu,
    /// Name another device.
    AnotherDevice,
    /// Use undamaged weights, or arithmetic that takes larger values.
    SoundWeights,
    /// Use the tokenizer file that the model was published with.
    TokenizerFile,
    /// Restore the file as it was packed, or accept its changes.
    AcceptedEdits,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FreeMemory => "close other programs",
            Self::FreeDisk => "free some space, or name another place",
            Self::SmallerModel => "close other programs, or use a smaller model or fewer bits",
            Self::SmallerSteps => "use smaller steps",
            Self::ShorterContext => "use a shorter context",
            Self::FewerSessions => "end other sessions, or set a larger budget",
            Self::FewerCheckpoints => "keep fewer checkpoints",
            Self::SmallerBudget => {
                "close other programs, or set a smaller budget, so that experts are streamed"
            }
            Self::LargerBudget => "use a shorter context, smaller steps or a larger budget",
            Self::LargerBudgetOrFewerBits => {
                "a dense model has no experts to stream: use a shorter context, smaller steps, a \
                 larger budget or weights with fewer bits"
            }
            Self::Cpu => "the CPU backend has no such limit",
            Self::AnotherDevice => "choose another device",
            Self::SoundWeights => {
                "the weights are damaged, or too large for this arithmetic (f32 takes more)"
            }
            Self::TokenizerFile => {
                "put the original model's tokenizer.json next to the file, or name one"
            }
            Self::AcceptedEdits => {
                "copy it again, or accept it as it is if it was changed on purpose"
            }
        })
    }
}

/// One part of a size.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Need {
    /// The purpose of the bytes.
    pub of: String,
    /// Number of bytes.
    pub n_bytes: u64,
}

impl Need {
    /// Creates a part of a size.
    pub fn new(of: impl Into<String>, n_bytes: u64) -> Self {
        Self { of: of.into(), n_bytes }
    }
}

/// The parts of a size for which there is no room, and the available bytes, as text.
struct SizeBreakdown<'a> {
    available_bytes: Option<u64>,
    needs: &'a [Need],
}

impl fmt::Display for SizeBreakdown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, need) in self.needs.iter().enumerate() {
            let before = if idx == 0 { ": " } else { ", " };
            write!(f, "{before}{} for {}", ByteCount(need.n_bytes).rounded(), need.of)?;
        }
        match self.available_bytes {
            Some(n_bytes) => write!(f, "; {} are available", ByteCount(n_bytes)),
            None => Ok(()),
        }
    }
}

/// A remedy after a problem, if there is one.
struct RemedySuffix(Option<Remedy>);

impl fmt::Display for RemedySuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

/// A number of bytes for display: rounded, with the exact count: `4.25 GB (4,246,732,800 bytes)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// Formats the number rounded, in powers of 1000: `4.25 GB`.
    #[must_use]
    pub fn rounded(self) -> String {
        let n_bytes = u128::from(self.0);
        let (mut divisor, mut unit) = (1_u128, "bytes");
        for larger in ["kB", "MB", "GB", "TB"] {
            // 999.9996 kB would print as 1000.00 kB.
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

/// Formats a count with separators: `7,077,888`.
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
    /// Returns a closure for `map_err` that creates an [`Error::Io`].
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source: Arc::new(source) }
    }

    /// Creates an [`Error::NoRoom`] without available bytes and parts.
    #[must_use]
    pub fn no_room(what: impl Into<String>, needed_bytes: u64, remedy: Remedy) -> Self {
        let (what, available_bytes, needs) = (what.into(), None, Vec::new());
        Self::NoRoom { what, needed_bytes, available_bytes, needs, remedy }
    }

    /// Creates an [`Error::NoRoom`] with the available bytes, without parts.
    #[must_use]
    pub fn no_room_in(
        available_bytes: u64,
        what: impl Into<String>,
        needed_bytes: u64,
        remedy: Remedy,
    ) -> Self {
        let (what, available_bytes, needs) = (what.into(), Some(available_bytes), Vec::new());
        Self::NoRoom { what, needed_bytes, available_bytes, needs, remedy }
    }

    /// Returns the cause of the failure.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Io { source, .. } => fault_of_io(source.kind()),
            Self::Malformed { .. }
            | Self::UnknownTokenizer { .. }
            | Self::Altered { .. }
            | Self::Tensor { .. }
            | Self::Unsupported(_)
            | Self::NonFinite { .. } => Fault::Checkpoint,
            Self::Expert { .. } | Self::TableRow { .. } | Self::Drive(_) => Fault::Drive,
            Self::NoRoom { .. } | Self::DiskFull { .. } | Self::Machine(_) | Self::Rank { .. } => {
                Fault::Machine
            }
            Self::Device { .. } => Fault::Device,
            Self::Stopped(_) => Fault::Ourselves,
            Self::Input(_)
            | Self::TooManyTokens { .. }
            | Self::CannotTruncateRecurrentState { .. }
            | Self::NoCheckpoint { .. }
            | Self::SavedState(_)
            | Self::Cancelled => Fault::Caller,
        }
    }

    /// Returns the remedy, where a program can do something about the failure.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NoRoom { remedy, .. } => Some(*remedy),
            Self::Device { remedy, .. } => *remedy,
            Self::DiskFull { .. } => Some(Remedy::FreeDisk),
            Self::NonFinite { .. } => Some(Remedy::SoundWeights),
            Self::UnknownTokenizer { .. } => Some(Remedy::TokenizerFile),
            Self::Altered { .. } => Some(Remedy::AcceptedEdits),
            _ => None,
        }
    }

    /// Creates an [`Error::Malformed`].
    #[must_use]
    pub fn malformed(path: &Path, problem: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), problem: problem.into() }
    }

    /// Creates an [`Error::Tensor`].
    #[must_use]
    pub fn tensor(name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Tensor { name: name.into(), problem: problem.into() }
    }
}

/// Classifies a failed file operation. A missing path is the caller's, a full disk the machine's.
/// Other failures happen although the file exists; they are the drive's.
fn fault_of_io(kind: io::ErrorKind) -> Fault {
    use io::ErrorKind as Kind;
    match kind {
        Kind::NotFound
        | Kind::PermissionDenied
        | Kind::AlreadyExists
        | Kind::InvalidInput
        | Kind::NotADirectory
        | Kind::IsADirectory
        | Kind::ReadOnlyFilesystem => Fault::Caller,
        Kind::StorageFull | Kind::QuotaExceeded | Kind::OutOfMemory | Kind::WouldBlock => {
            Fault::Machine
        }
        _ => Fault::Drive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_fault() {
        let io = |kind: io::ErrorKind| Error::io("read", Path::new("x"))(kind.into()).fault();
        assert_eq!(io(io::ErrorKind::NotFound), Fault::Caller);
        assert_eq!(io(io::ErrorKind::StorageFull), Fault::Machine);
        assert_eq!(io(io::ErrorKind::UnexpectedEof), Fault::Drive);
        assert_eq!(Error::malformed(Path::new("x"), "y").fault(), Fault::Checkpoint);
        assert_eq!(Error::Stopped(String::new()).fault(), Fault::Ourselves);
    }

    #[test]
    fn a_message_is_one_harmless_line_of_bounded_length() {
        let long = "x".repeat(1 << 20);
        for evil in ["a\nb", "\x1b[2J", "\x07", "\u{9b}31m", "\u{202e}", "\u{2028}", "\r", &long] {
            let path = PathBuf::from(evil);
            let io = io::Error::other(evil);
            let text = || evil.to_owned();
            let errors = [
                Error::Io { action: "read", path: path.clone(), source: Arc::new(io) },
                Error::malformed(&path, evil),
                Error::UnknownTokenizer { path: path.clone(), problem: text() },
                Error::Altered { path: path.clone(), problem: text() },
                Error::tensor(evil, evil),
                Error::Expert { layer: 1, expert: 2, problem: text() },
                Error::TableRow { table: text(), row: 3, problem: text() },
                Error::Unsupported(text()),
                Error::Input(text()),
                Error::NonFinite { place: text() },
                Error::NoRoom {
                    what: text(),
                    needed_bytes: 1,
                    available_bytes: None,
                    needs: vec![Need::new("a part", 1)],
                    remedy: Remedy::FreeDisk,
                },
                Error::DiskFull { path, source: Arc::new(io::ErrorKind::StorageFull.into()) },
                Error::Machine(text()),
                Error::Drive(text()),
                Error::Stopped(text()),
                Error::SavedState(text()),
                Error::Device { device: text(), problem: text(), remedy: Some(Remedy::Cpu) },
                Error::Rank { rank: 1, host: text(), problem: text() },
            ];
            for error in errors {
                let message = error.to_string();
                assert!(!message.contains(moeflux_io::is_harmful), "{message:?}");
                assert!(message.len() < 10_000, "{} bytes", message.len());
            }
        }
        // A long name does not cut off the remedy after it.
        let message = Error::tensor(long, "is not part of the model").to_string();
        assert!(message.ends_with(" more bytes)`: is not part of the model"), "{message}");
    }

    #[test]
    fn missing_room_is_stated_with_its_parts() {
        let error = Error::no_room("a step", 2_000, Remedy::SmallerSteps);
        let text = "a step: needs 2.00 kB (2,000 bytes); use smaller steps";
        assert_eq!(error.to_string(), text);
        assert_eq!((error.fault(), error.remedy()), (Fault::Machine, Some(Remedy::SmallerSteps)));
        let error = Error::NoRoom {
            what: "the model".to_owned(),
            needed_bytes: 30,
            available_bytes: Some(20),
            needs: vec![Need::new("a step", 10), Need::new("experts", 20)],
            remedy: Remedy::FreeMemory,
        };
        let text = "the model: needs 30 bytes: 10 bytes for a step, 20 bytes for experts; 20 bytes \
                    are available; close other programs";
        assert_eq!(error.to_string(), text);
    }

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
