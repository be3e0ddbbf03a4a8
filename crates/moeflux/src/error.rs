//! What can go wrong outside of this program, with the numbers a reader needs.
//!
//! **Invariant:** every message is one line that names what, where and the way out. Whatever files
//! and others say in it is harmless on a terminal, and is cut where it is long.
//! Our own mistakes are assertions, not errors.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_io::OneLine;

/// The result of everything that can fail for outside reasons.
pub type Result<T> = std::result::Result<T, Error>;

/// An outside failure. A clone says the same and has the same [`Fault`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on a file.
    #[error("cannot {action} {}: {}", Named(path), Said(&source.to_string()))]
    Io {
        /// What was tried: "read", "create".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// A file's contents are not what its format asks for.
    #[error("{}: {}", Named(path), Said(problem))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with numbers, and what to do about it.
        problem: String,
    },
    /// A file names a tokenizer that this program does not know, or has none.
    #[error("{}: {}; {}", Named(path), Said(problem), Remedy::TokenizerFile)]
    UnknownTokenizer {
        /// The file.
        path: PathBuf,
        /// What it names and what is known, or what is missing.
        problem: String,
    },
    /// A small file of a pack is not as it was packed.
    #[error("{}: {}; {}", Named(path), Said(problem), Remedy::AcceptedEdits)]
    Altered {
        /// The file.
        path: PathBuf,
        /// How it differs.
        problem: String,
    },
    /// A tensor is missing, left over, or of the wrong shape.
    #[error("tensor `{}`: {}", OneLine::name(name), Said(problem))]
    Tensor {
        /// Its name in the checkpoint.
        name: String,
        /// What is wrong, with numbers.
        problem: String,
    },
    /// A routed expert could not be had from its drive.
    #[error("expert {expert} of layer {layer}: {}", Said(problem))]
    Expert {
        /// Its layer.
        layer: usize,
        /// Which of the layer.
        expert: usize,
        /// What went wrong: the file, the bytes, the attempts.
        problem: String,
    },
    /// The model or option is well-formed, but this program does not know it.
    #[error("{}", Said(.0))]
    Unsupported(String),
    /// The caller's tokens, text or parameters cannot be used.
    #[error("{}", Said(.0))]
    Input(String),
    /// A text has more tokens than its caller has a use for; the rest of it was not encoded.
    #[error("the text has more than {n_tokens_max} tokens, which is the limit: shorten it")]
    TooManyTokens {
        /// The caller's limit.
        n_tokens_max: usize,
    },
    /// Weights that are damaged, or too large for the arithmetic, gave NaN or infinity.
    #[error("{}: gives values that are NaN or infinite: {}", Said(place), Remedy::SoundWeights)]
    NonFinite {
        /// The layer and the operation.
        place: String,
    },
    /// There is not enough memory or disk.
    #[error(
        "{}: needs {}{}; {remedy}",
        Said(what),
        ByteCount(*needed_bytes),
        Room { available_bytes: *available_bytes, needs }
    )]
    NoRoom {
        /// What should have been stored.
        what: String,
        /// Its size.
        needed_bytes: u64,
        /// What there is, if that is known.
        available_bytes: Option<u64>,
        /// What the size consists of, where it has parts.
        needs: Vec<Need>,
        /// The way out.
        remedy: Remedy,
    },
    /// The disk became full while a file was written.
    #[error(
        "the disk became full while {} was written ({source}): free some space and try again",
        Named(path)
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The system refuses something other than a file or memory: threads, a lock.
    #[error("{}", Said(.0))]
    Machine(String),
    /// Reading from a drive does not work any more, whatever is read.
    #[error("{}", Said(.0))]
    Drive(String),
    /// The engine does not work any more, after a panic of ours or because its files were replaced
    /// while it read them: all of its sessions are lost, and it has to be opened again.
    #[error("{}", Said(.0))]
    Stopped(String),
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
    #[error("saved state: {}", Said(.0))]
    SavedState(String),
    /// A device other than the CPU failed, or is not there.
    #[error("{}: {}{}", OneLine::name(device), Said(problem), Behind(*remedy))]
    Device {
        /// What it calls itself, or how it was asked for.
        device: String,
        /// What happened.
        problem: String,
        /// The way out, where there is one.
        remedy: Option<Remedy>,
    },
    /// One of the machines that run a model together failed, or does not answer.
    #[error("rank {rank} ({}): {}", OneLine::name(host), Said(problem))]
    Rank {
        /// Which.
        rank: usize,
        /// The machine that it runs on.
        host: String,
        /// What went wrong, with numbers.
        problem: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// What went wrong, which may quote others: as a line.
struct Said<'a>(&'a str);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        OneLine::message(self.0).fmt(f)
    }
}

/// A path, whoever named its folders.
struct Named<'a>(&'a Path);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        OneLine::message(&self.0.to_string_lossy()).fmt(f)
    }
}

/// Whose fault a failure is, for programs that answer others: who can do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Whoever called: a parameter, a prompt, a path that is not there. The same call fails again.
    Caller,
    /// The model's files: damaged, incomplete, or of a kind that is not supported.
    Checkpoint,
    /// The machine: memory, disk space, threads. May work later, or with less.
    Machine,
    /// A drive that does not read, or reads something else than was written.
    Drive,
    /// A device other than the CPU, or its driver.
    Device,
    /// This program.
    Ourselves,
}

/// What helps against a failure; as text without the names of any program's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remedy {
    /// Less in memory.
    FreeMemory,
    /// Less on the disk.
    FreeDisk,
    /// A model that is smaller as a whole.
    SmallerModel,
    /// Fewer rows in one step.
    SmallerSteps,
    /// Sessions with room for fewer tokens.
    ShorterContext,
    /// Fewer sessions, or more memory for them.
    FewerSessions,
    /// Fewer checkpoints of sessions.
    FewerCheckpoints,
    /// A smaller budget: experts are then read from the drive.
    SmallerBudget,
    /// A larger budget, or less that it has to hold.
    LargerBudget,
    /// The CPU instead of a device.
    Cpu,
    /// The name of another device.
    AnotherDevice,
    /// Weights without damage, or arithmetic that takes larger values.
    SoundWeights,
    /// The file that the model's makers published its tokenizer in.
    TokenizerFile,
    /// The file as it was packed, or its edits accepted.
    AcceptedEdits,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FreeMemory => "close other programs",
            Self::FreeDisk => "free some space, or name another place",
            Self::SmallerModel => "close other programs, or use a smaller model or fewer bits",
            Self::SmallerSteps => "smaller steps need less",
            Self::ShorterContext => "a shorter context needs less",
            Self::FewerSessions => "end other sessions, or give a larger budget",
            Self::FewerCheckpoints => "keep fewer checkpoints",
            Self::SmallerBudget => {
                "close other programs, or give a smaller budget: experts are then streamed"
            }
            Self::LargerBudget => {
                "a shorter context, smaller steps or a larger budget is the way out"
            }
            Self::Cpu => "the CPU backend has no such limit",
            Self::AnotherDevice => "name another one",
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
    /// What takes it.
    pub of: String,
    /// How much.
    pub n_bytes: u64,
}

impl Need {
    /// A part of a size.
    pub fn new(of: impl Into<String>, n_bytes: u64) -> Self {
        Self { of: of.into(), n_bytes }
    }
}

/// The text behind a size that there is no room for.
struct Room<'a> {
    available_bytes: Option<u64>,
    needs: &'a [Need],
}

impl fmt::Display for Room<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, need) in self.needs.iter().enumerate() {
            let before = if idx == 0 { ", that is " } else { ", " };
            write!(f, "{before}{} for {}", ByteCount(need.n_bytes).rounded(), need.of)?;
        }
        match self.available_bytes {
            Some(n_bytes) => write!(f, "; {} are available", ByteCount(n_bytes)),
            None => Ok(()),
        }
    }
}

/// A remedy behind a problem, if there is one.
struct Behind(Option<Remedy>);

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
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
        move |source| Self::Io { action, path, source: Arc::new(source) }
    }

    /// An [`Error::NoRoom`] where neither more is known nor the size has parts.
    #[must_use]
    pub fn no_room(what: impl Into<String>, needed_bytes: u64, remedy: Remedy) -> Self {
        let (what, available_bytes, needs) = (what.into(), None, Vec::new());
        Self::NoRoom { what, needed_bytes, available_bytes, needs, remedy }
    }

    /// The same; this much is available.
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

    /// Whose fault it is.
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
            Self::Expert { .. } | Self::Drive(_) => Fault::Drive,
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

    /// What helps, where a program can do something about it.
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

/// A path that is not there was named by somebody; a full disk is the machine's; the rest did not
/// work although the file is there.
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
    fn a_failure_is_somebodys() {
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
                let said = error.to_string();
                assert!(!said.contains(moeflux_io::is_harmful), "{said:?}");
                assert!(said.len() < 10_000, "{} bytes", said.len());
            }
        }
        // What helps is said behind a name that is long.
        let said = Error::tensor(long, "is not part of the model").to_string();
        assert!(said.ends_with(" more bytes)`: is not part of the model"), "{said}");
    }

    #[test]
    fn room_names_what_there_is_and_the_parts() {
        let error = Error::no_room("a step", 2_000, Remedy::SmallerSteps);
        let text = "a step: needs 2.00 kB (2,000 bytes); smaller steps need less";
        assert_eq!(error.to_string(), text);
        assert_eq!((error.fault(), error.remedy()), (Fault::Machine, Some(Remedy::SmallerSteps)));
        let error = Error::NoRoom {
            what: "the model".to_owned(),
            needed_bytes: 30,
            available_bytes: Some(20),
            needs: vec![Need::new("a step", 10), Need::new("experts", 20)],
            remedy: Remedy::FreeMemory,
        };
        let text = "the model: needs 30 bytes, that is 10 bytes for a step, 20 bytes for experts; \
                    20 bytes are available; close other programs";
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
