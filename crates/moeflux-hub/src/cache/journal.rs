//! Lists the pieces of a file that are complete: one line for each, added after its bytes were
//! written.
//!
//! **Invariant:** a listed piece was received completely. Its checksum is stored with it, because
//! after a power failure the list may be on the drive without the bytes. Unreadable lines are
//! ignored, so a damaged list costs bytes, but never correctness.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use crate::error::{Error, Result};
use crate::file;

/// The start of a list, which identifies its format.
const HEAD: &str = "moeflux-pieces 1";

/// Maximum size of a list. A line has at most 26 bytes, and a piece one or two lines.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of pieces, so that a false length does not produce a long list: enough for pieces
/// of 16 MiB up to 4 TB.
const N_PIECES_MAX: u64 = 1 << 18;

/// The division of a file into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceLayout {
    n_bytes: u64,
    piece_bytes: u64,
}

impl PieceLayout {
    /// Divides a file of `n_bytes` into pieces of `piece_bytes`, or longer ones if there would be
    /// too many.
    pub(crate) fn new(n_bytes: u64, piece_bytes: u64) -> Self {
        let piece_bytes = piece_bytes.max(n_bytes.div_ceil(N_PIECES_MAX)).max(1);
        Self { n_bytes, piece_bytes }
    }

    /// Returns the length of the file.
    pub(crate) fn n_bytes(self) -> u64 {
        self.n_bytes
    }

    /// Returns the number of pieces.
    pub(crate) fn n_pieces(self) -> usize {
        usize::try_from(self.n_bytes.div_ceil(self.piece_bytes)).unwrap_or(usize::MAX)
    }

    /// Returns the start and end offsets of a piece.
    pub(crate) fn range(self, idx: usize) -> (u64, u64) {
        let begin = idx as u64 * self.piece_bytes;
        (begin, (begin + self.piece_bytes).min(self.n_bytes))
    }

    /// Returns the length of a piece.
    pub(crate) fn len_bytes(self, idx: usize) -> u64 {
        let (begin, end) = self.range(idx);
        end - begin
    }

    fn head(self) -> String {
        format!("{HEAD} {} {}", self.n_bytes, self.piece_bytes)
    }
}

/// A list that is open for appending.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
}

impl Journal {
    /// Writes a list with these pieces and opens it for appending.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(crate) fn begin(path: &Path, layout: PieceLayout, pieces: &[(usize, u64)]) -> Result<Self> {
        let mut text = layout.head() + "\n";
        for (idx, sum) in pieces {
            text.push_str(&line(*idx, *sum));
        }
        file::write_atomic(path, text.as_bytes())?;
        let file = File::options().append(true).open(path).map_err(Error::io("open", path))?;
        Ok(Self { file })
    }

    /// Adds a piece whose bytes were written.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn add(&mut self, idx: usize, sum: u64) -> std::io::Result<()> {
        self.file.write_all(line(idx, sum).as_bytes())
    }
}

fn line(idx: usize, sum: u64) -> String {
    format!("{idx} {sum:016x}\n")
}

/// Reads the pieces in a list, with their checksums; empty if the list is for another division.
pub(crate) fn pieces(path: &Path, layout: PieceLayout) -> Result<Vec<(usize, u64)>> {
    let bytes = file::read_if_there(path, LIST_BYTES_MAX)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.split_inclusive('\n');
    if lines.next().is_none_or(|head| head.trim_end() != layout.head()) {
        return Ok(Vec::new());
    }
    let piece = |line: &str| {
        // The last line may be truncated.
        let (idx, sum) = line.strip_suffix('\n')?.split_once(' ')?;
        let sum = u64::from_str_radix(sum, 16).ok()?;
        Some((idx.parse().ok()?, sum))
    };
    let mut pieces: Vec<(usize, u64)> = lines.filter_map(piece).collect();
    pieces.retain(|(idx, _)| *idx < layout.n_pieces());
    // The last line for a piece counts, because it was fetched again.
    pieces.reverse();
    pieces.sort_by_key(|(idx, _)| *idx);
    pieces.dedup_by_key(|(idx, _)| *idx);
    Ok(pieces)
}

#[cfg(test)]
mod tests {

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    const LAYOUT: PieceLayout = PieceLayout { n_bytes: 25, piece_bytes: 10 };

    #[test]
    fn a_file_is_cut_without_gaps() {
        assert_eq!(LAYOUT.n_pieces(), 3);
        assert_eq!([0, 1, 2].map(|idx| LAYOUT.range(idx)), [(0, 10), (10, 20), (20, 25)]);
        assert_eq!(PieceLayout::new(0, 10).n_pieces(), 0);
        assert_eq!(PieceLayout::new(10, 10).n_pieces(), 1);
        assert_eq!(PieceLayout::new(u64::MAX, 0).n_pieces(), 1 << 18);
    }

    #[test]
    fn a_list_is_read_as_far_as_it_is_sound() {
        let temp = TempDir::new();
        let dir = temp.path().to_owned();
        let path = dir.join("list");
        let mut journal = Journal::begin(&path, LAYOUT, &[(2, 7)]).unwrap();
        journal.add(0, 0xabc).unwrap();
        journal.add(2, 8).unwrap();
        // A folder with an open file cannot be removed on Windows.
        drop(journal);
        assert_eq!(pieces(&path, LAYOUT).unwrap(), [(0, 0xabc), (2, 8)]);
        let text = std::fs::read_to_string(&path).unwrap();
        let check = |text: &str, expected: &[(usize, u64)]| {
            std::fs::write(&path, text).unwrap();
            assert_eq!(pieces(&path, LAYOUT).unwrap(), expected, "{text:?}");
        };
        check(&text[..text.len() - 1], &[(0, 0xabc), (2, 7)]);
        check(&format!("{text}9 1\n-1 2\nx\n1 \n1 zz\n"), &[(0, 0xabc), (2, 8)]);
        check("moeflux-pieces 1 25 11\n0 1\n", &[]);
        check("moeflux-pieces 2 25 10\n0 1\n", &[]);
        check("", &[]);
        assert_eq!(pieces(&dir.join("none"), LAYOUT).unwrap(), []);
    }
}
