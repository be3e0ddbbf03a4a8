//! Reads the small files beside a checkpoint's weights.
//!
//! **Invariant:** nothing longer than the caller's limit is read, whatever the file's length says.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};

/// Most bytes of a JSON file that configures something. The largest published ones, with
/// thousands of added tokens, have about 2 MB.
pub(super) const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// The bytes of a file, or `None` if there is no such file.
pub(super) fn read(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file at the limit from one above it.
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > bytes_max) {
        let problem = format!("longer than {bytes_max} bytes, the limit for this kind of file");
        return Err(Error::malformed(path, problem));
    }
    Ok(Some(bytes))
}

/// The text of a file.
pub(super) fn read_text(path: &Path, bytes_max: u64) -> Result<Option<String>> {
    let Some(bytes) = read(path, bytes_max)? else { return Ok(None) };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            Err(Error::malformed(path, format!("not UTF-8 at byte {at}")))
        }
    }
}

/// The JSON object in a file.
pub(super) fn read_object(path: &Path) -> Result<Option<Value>> {
    let Some(bytes) = read(path, CONFIG_BYTES_MAX)? else { return Ok(None) };
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| Error::malformed(path, format!("not JSON: {error}")))?;
    if !value.is_object() {
        return Err(Error::malformed(path, "not a JSON object"));
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_bad_contents() {
        let dir = std::env::temp_dir().join(format!("moeflux-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x.json");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap().unwrap(), b"12345");
        assert!(read(&path, 4).unwrap_err().to_string().contains("longer than 4 bytes"));
        assert!(read(&dir.join("none"), 5).unwrap().is_none());
        assert!(read(&dir, 5).unwrap_err().to_string().starts_with("cannot read"));
        assert!(read_object(&path).unwrap_err().to_string().ends_with("not a JSON object"));
        std::fs::write(&path, b"{\"a\":").unwrap();
        assert!(read_object(&path).unwrap_err().to_string().contains("not JSON: EOF"));
        std::fs::write(&path, b"ab\xff").unwrap();
        assert!(read_text(&path, 9).unwrap_err().to_string().ends_with("not UTF-8 at byte 2"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
