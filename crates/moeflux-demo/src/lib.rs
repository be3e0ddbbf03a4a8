//! The built-in demo model: the files of a small Mixture-of-Experts checkpoint, and a way to unpack
//! them.
//!
//! **Invariant:** the files form a checkpoint like published ones, so that no other code treats
//! them specially. Does not interpret them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One file of the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct DemoFile {
    /// Its name in the directory.
    pub name: &'static str,
    /// Its contents.
    pub bytes: &'static [u8],
}

/// All files; `config.json` comes last, because a directory without it is no model.
pub const FILES: [DemoFile; 6] = [
    DemoFile { name: "model.safetensors", bytes: include_bytes!("../model/model.safetensors") },
    DemoFile { name: "tokenizer.json", bytes: include_bytes!("../model/tokenizer.json") },
    DemoFile {
        name: "tokenizer_config.json",
        bytes: include_bytes!("../model/tokenizer_config.json"),
    },
    DemoFile { name: "chat_template.jinja", bytes: include_bytes!("../model/chat_template.jinja") },
    DemoFile {
        name: "generation_config.json",
        bytes: include_bytes!("../model/generation_config.json"),
    },
    DemoFile { name: "config.json", bytes: include_bytes!("../model/config.json") },
];

/// The prefix of files that are being written.
const PARTIAL: &str = ".partial-";

/// Returns the checkpoint's directory below `root`; writes missing or damaged files.
///
/// # Errors
///
/// The error of reading or writing below `root`.
pub fn unpack(root: &Path) -> io::Result<PathBuf> {
    let dir = root.join(concat!("demo-model-", env!("CARGO_PKG_VERSION")));
    fs::create_dir_all(&dir)?;
    for file in &FILES {
        let path = dir.join(file.name);
        if !is_there(&path, file.bytes)? {
            // Another process may unpack at the same time: the last rename wins, with the same
            // content.
            let partial = dir.join(format!("{PARTIAL}{}-{}", std::process::id(), file.name));
            fs::write(&partial, file.bytes)?;
            match fs::rename(&partial, &path) {
                // Another process was faster, and removed the partial files.
                Err(_) if is_there(&path, file.bytes)? => {}
                renamed => renamed?,
            }
        }
    }
    sweep(&dir)?;
    Ok(dir)
}

/// Removes files that killed processes left behind.
fn sweep(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            // Another process may do the same.
            fs::remove_file(entry.path()).ok();
        }
    }
    Ok(())
}

/// Whether a file exists with these contents. Compares every byte, which takes a few milliseconds:
/// another model of the same shape has files of the same lengths.
fn is_there(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    match fs::metadata(path) {
        // Reading a pipe would block for ever; renaming replaces it with a file.
        Ok(found) => Ok(found.is_file() && fs::read(path)? == bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn the_folder_has_every_file_and_mends_itself() {
        let temp = TempDir::new();
        let root = temp.path().to_owned();
        let dir = unpack(&root).unwrap();
        let mut damaged = FILES[0].bytes.to_vec();
        damaged[4_000_000] ^= 1;
        fs::write(dir.join(FILES[0].name), damaged).unwrap();
        fs::write(dir.join("config.json"), "{}").unwrap();
        fs::remove_file(dir.join("tokenizer.json")).unwrap();
        assert_eq!(unpack(&root).unwrap(), dir);
        for file in &FILES {
            assert!(fs::read(dir.join(file.name)).unwrap() == file.bytes, "{}", file.name);
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), FILES.len());
    }

    #[test]
    fn the_box_is_small_enough_to_publish() {
        let n_bytes: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(n_bytes <= 9_000_000, "{n_bytes} bytes");
    }
}
