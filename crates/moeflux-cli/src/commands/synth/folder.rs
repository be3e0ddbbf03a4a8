//! A new folder that appears complete or not at all.
//!
//! **Invariant:** all files have names that begin with `.partial-` until the last one is written,
//! and `config.json` gets its final name last; an early exit removes everything it made. Handles
//! names and free space, never contents.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use moeflux::{Error, Result};

const UNFINISHED: &str = ".partial-";

/// A folder being filled.
#[derive(Debug)]
pub(super) struct NewFolder {
    dir: PathBuf,
    /// Folders that did not exist before, outermost first: removed if the folder is not finished.
    made_dirs: Vec<PathBuf>,
    names: Vec<String>,
    is_finished: bool,
}

impl NewFolder {
    /// Creates `dir`, or checks that it is empty.
    ///
    /// # Errors
    ///
    /// Fails if the folder is not empty or cannot be created.
    pub(super) fn create(dir: &Path) -> Result<Self> {
        check_vacant(dir)?;
        let missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
        let mut made_dirs: Vec<PathBuf> =
            dir.ancestors().take_while(missing).map(Path::to_owned).collect();
        made_dirs.reverse();
        let mut folder = Self {
            dir: dir.to_owned(),
            made_dirs: Vec::new(),
            names: Vec::new(),
            is_finished: false,
        };
        for made in made_dirs {
            fs::create_dir(&made).map_err(Error::io("create", &made))?;
            folder.made_dirs.push(made);
        }
        Ok(folder)
    }

    /// Creates a file that will be called `name`. Returns it and its temporary path.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be created.
    pub(super) fn file(&mut self, name: &str) -> Result<(File, PathBuf)> {
        let path = self.unfinished(name);
        let mut options = File::options();
        let file = options.write(true).create_new(true).open(&path);
        let file = file.map_err(Error::io("create", &path))?;
        self.names.push(name.to_owned());
        Ok((file, path))
    }

    /// Gives all files their names, in order.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a file cannot be renamed.
    pub(super) fn finish(mut self) -> Result<()> {
        for name in &self.names {
            let from = self.unfinished(name);
            moeflux_io::rename(&from, &self.dir.join(name)).map_err(Error::io("rename", &from))?;
        }
        self.is_finished = true;
        Ok(())
    }

    fn unfinished(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{UNFINISHED}{name}"))
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        for name in &self.names {
            // An error is already being reported; this one would hide it.
            drop(fs::remove_file(self.unfinished(name)));
            drop(fs::remove_file(self.dir.join(name)));
        }
        for dir in self.made_dirs.iter().rev() {
            drop(fs::remove_dir(dir));
        }
    }
}

/// Refuses a folder that is not empty.
///
/// # Errors
///
/// [`Error::Input`] with a remedy if the folder is not empty, [`Error::Io`] if it cannot be listed.
pub(super) fn check_vacant(dir: &Path) -> Result<()> {
    let mut entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("list", dir)(error)),
    };
    let Some(first) = entries.next() else { return Ok(()) };
    let first = first.map_err(Error::io("list", dir))?.file_name();
    let first = first.to_string_lossy();
    let what =
        if first.starts_with(UNFINISHED) { "files of an interrupted synth" } else { "files" };
    Err(Error::Input(format!(
        "{} has {what} in it (`{}`): name another folder, or remove this one first",
        dir.display(),
        moeflux_io::OneLine::name(&first)
    )))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_get_their_names_at_the_end() {
        let temp = TempDir::new();
        let dir = temp.path().join("a/b");
        let mut folder = NewFolder::create(&dir).unwrap();
        for name in ["x", "config.json"] {
            folder.file(name).unwrap().0.write_all(name.as_bytes()).unwrap();
        }
        assert_eq!(names(&dir), [".partial-config.json", ".partial-x"]);
        folder.finish().unwrap();
        assert_eq!(names(&dir), ["config.json", "x"]);
        assert_eq!(fs::read(dir.join("x")).unwrap(), b"x");
    }

    #[test]
    fn unfinished_folders_are_removed() {
        let temp = TempDir::new();
        let mut folder = NewFolder::create(&temp.path().join("a/b")).unwrap();
        folder.file("x").unwrap();
        drop(folder);
        assert!(names(temp.path()).is_empty());

        let mut folder = NewFolder::create(temp.path()).unwrap();
        folder.file("x").unwrap();
        drop(folder);
        assert!(temp.path().exists(), "it was there before");
        assert!(names(temp.path()).is_empty());
    }

    #[test]
    fn a_folder_with_files_is_refused_and_kept() {
        let temp = TempDir::new();
        fs::write(temp.path().join("mine"), "x").unwrap();
        let error = NewFolder::create(temp.path()).unwrap_err().to_string();
        assert!(error.contains("`mine`") && error.contains("another folder"), "{error}");
        assert_eq!(names(temp.path()), ["mine"]);

        fs::rename(temp.path().join("mine"), temp.path().join(".partial-x")).unwrap();
        let error = check_vacant(temp.path()).unwrap_err().to_string();
        assert!(error.contains("interrupted"), "{error}");
        let error = check_vacant(&temp.path().join(".partial-x")).unwrap_err().to_string();
        assert!(error.starts_with("cannot list"), "{error}");
    }
}
