//! A new folder that appears whole or not at all.
//!
//! **Invariant:** files have names that begin with `.partial-` until all of them are written, and
//! `config.json` gets its own last; whatever ends early removes what it made.
//! Knows names and free space, never contents.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use moeflux::{Error, Result};

const UNFINISHED: &str = ".partial-";

/// A folder being filled.
#[derive(Debug)]
pub(super) struct NewFolder {
    dir: PathBuf,
    /// What was not there before, outermost first: removed if the folder is not finished.
    made_dirs: Vec<PathBuf>,
    names: Vec<String>,
    is_finished: bool,
}

impl NewFolder {
    /// Makes `dir` ready for files, or finds it empty.
    ///
    /// # Errors
    ///
    /// If there is something in it, or it cannot be made.
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

    /// A new file that will be called `name`, and what it is called for now.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(super) fn file(&mut self, name: &str) -> Result<(File, PathBuf)> {
        let path = self.unfinished(name);
        let mut options = File::options();
        let file = options.write(true).create_new(true).open(&path);
        let file = file.map_err(Error::io("create", &path))?;
        self.names.push(name.to_owned());
        Ok((file, path))
    }

    /// Gives all files their names, the last one last.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
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
            // An error is on its way already; this one would hide it.
            drop(fs::remove_file(self.unfinished(name)));
            drop(fs::remove_file(self.dir.join(name)));
        }
        for dir in self.made_dirs.iter().rev() {
            drop(fs::remove_dir(dir));
        }
    }
}

/// Refuses a folder that has something in it.
///
/// # Errors
///
/// [`Error::Input`] with the way out.
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

    use super::*;
    use crate::test_dir::TestDir;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_get_their_names_at_the_end() {
        let temp = TestDir::new("names");
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
    fn what_ends_early_leaves_nothing() {
        let temp = TestDir::new("early");
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
        let temp = TestDir::new("kept");
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
