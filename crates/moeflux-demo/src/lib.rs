//! The model in the box: the files of a small Mixture-of-Experts checkpoint, and a way to a folder.
//!
//! **Invariant:** the files are a checkpoint as published ones are, so that nothing else treats
//! them specially. Knows nothing of what they mean.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One file of the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct DemoFile {
    /// Its name in the folder.
    pub name: &'static str,
    /// Its contents.
    pub bytes: &'static [u8],
}

/// All files; `config.json` last, because a folder without it is no model.
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

/// How names of files begin that are being written.
const PARTIAL: &str = ".partial-";

/// The checkpoint as a folder below `root`, written there the first time.
///
/// # Errors
///
/// What the system says of writing below `root`.
pub fn unpack(root: &Path) -> io::Result<PathBuf> {
    let dir = root.join(concat!("demo-model-", env!("CARGO_PKG_VERSION")));
    fs::create_dir_all(&dir)?;
    for file in &FILES {
        let path = dir.join(file.name);
        if !is_there(&path, file.bytes)? {
            // Another process may unpack at the same time: whoever renames last writes the same.
            let partial = dir.join(format!("{PARTIAL}{}-{}", std::process::id(), file.name));
            fs::write(&partial, file.bytes)?;
            match fs::rename(&partial, &path) {
                // Another process was sooner, and has swept.
                Err(_) if is_there(&path, file.bytes)? => {}
                renamed => renamed?,
            }
        }
    }
    sweep(&dir)?;
    Ok(dir)
}

/// Removes what processes have left that were killed while they unpacked.
fn sweep(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            // Another process may sweep at the same time.
            fs::remove_file(entry.path()).ok();
        }
    }
    Ok(())
}

/// Every byte is compared, a few milliseconds: another model of the same shape has files of the
/// same lengths.
fn is_there(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    match fs::metadata(path) {
        // Reading a pipe would wait for ever; renaming puts a file in its place.
        Ok(found) => Ok(found.is_file() && fs::read(path)? == bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_has_every_file_and_mends_itself() {
        let root = std::env::temp_dir().join(format!("moeflux-demo-{}", std::process::id()));
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
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_box_is_small_enough_to_publish() {
        let n_bytes: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(n_bytes <= 9_000_000, "{n_bytes} bytes");
    }
}
