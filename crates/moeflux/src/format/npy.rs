//! Writes rows of f32 to a NumPy file, one at a time.
//!
//! **Invariant:** a finished file has exactly the number of rows in its header. Format 1.0, little
//! endian, C order.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use moeflux_io::create_file;

use crate::error::{Error, Result};

/// Alignment of the data in NumPy files.
const ALIGN: usize = 64;

/// Length of magic, version and header length, which precede the header's text.
const PREAMBLE_BYTES: usize = 10;

/// A float32 matrix being written to a file.
#[derive(Debug)]
pub struct NpyWriter {
    file: BufWriter<File>,
    path: PathBuf,
    n_cols: usize,
    n_rows_left: usize,
}

impl NpyWriter {
    /// Creates or replaces the file and writes its header.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn create(path: &Path, n_rows: usize, n_cols: usize) -> Result<Self> {
        let file = create_file(path).map_err(Error::io("create", path))?;
        let mut file = BufWriter::new(file);
        file.write_all(&header(n_rows, n_cols)).map_err(Error::io("write", path))?;
        Ok(Self { file, path: path.to_owned(), n_cols, n_rows_left: n_rows })
    }

    /// Writes the next row.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn write_row(&mut self, row: &[f32]) -> Result<()> {
        assert_eq!(row.len(), self.n_cols, "columns of a row");
        assert!(self.n_rows_left > 0, "more rows than promised");
        self.n_rows_left -= 1;
        row.iter()
            .try_for_each(|value| self.file.write_all(&value.to_le_bytes()))
            .map_err(Error::io("write", &self.path))
    }

    /// Flushes the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn finish(mut self) -> Result<()> {
        assert_eq!(self.n_rows_left, 0, "fewer rows than promised");
        self.file.flush().map_err(Error::io("write", &self.path))
    }
}

fn header(n_rows: usize, n_cols: usize) -> Vec<u8> {
    let mut text =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({n_rows}, {n_cols}), }}");
    let unpadded = PREAMBLE_BYTES + text.len() + 1;
    text.push_str(&" ".repeat(unpadded.next_multiple_of(ALIGN) - unpadded));
    text.push('\n');
    let text_bytes = u16::try_from(text.len()).expect("two numbers fit in 64 KiB of text");
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(text_bytes.to_le_bytes());
    header.extend(text.as_bytes());
    header
}
