//! The files of the repository, as text and in the views that rules use.
//!
//! **Invariant:** paths are relative to the root, with `/`, sorted. Files that git ignores are
//! absent; of data under [`DATA_FOLDERS`], only Markdown has contents, other files only names and
//! sizes.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::tidy::lex;

/// Directories of generated data: rules read only their Markdown files.
pub(super) const DATA_FOLDERS: [&str; 3] =
    ["golden/", "fuzz/corpus/", "crates/moeflux-demo/model/"];

/// One file of the repository.
#[derive(Debug)]
pub(super) struct SourceFile {
    /// Its path, relative to the root.
    pub(super) path: String,
    /// Its size.
    pub(super) n_bytes: u64,
    /// Its contents; empty if they are not UTF-8 text.
    pub(super) text: String,
    /// Code without comments and literals; empty for files that are not source.
    pub(super) code: String,
    /// Comments alone; empty for files that are not source.
    pub(super) comments: String,
    /// Number of lines of code.
    pub(super) n_code_lines: usize,
}

impl SourceFile {
    fn new(path: &str, n_bytes: u64, text: String) -> Self {
        let is_source = [".rs", ".wgsl"].iter().any(|ending| path.ends_with(ending));
        let views = lex::split(if is_source { &text } else { "" });
        let lex::Views { code, comments, n_code_lines } = views;
        Self { path: path.to_owned(), n_bytes, text, code, comments, n_code_lines }
    }

    /// Whether the byte at this offset belongs to the contents of a Rust or WGSL literal.
    pub(super) fn is_literal(&self, at: usize) -> bool {
        let is_blank = |view: &str| view.as_bytes().get(at) == Some(&b' ');
        is_blank(&self.code) && is_blank(&self.comments) && !is_blank(&self.text)
    }

    /// Returns the file name without directory and extension.
    pub(super) fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.split('.').next().unwrap_or_default()
    }

    /// Whether it is Rust source.
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether it is source in a language that rules about code know.
    pub(super) fn is_source(&self) -> bool {
        self.is_rust() || self.path.ends_with(".wgsl")
    }
}

/// All files.
#[derive(Debug)]
pub(super) struct Tree {
    /// Sorted by path.
    pub(super) files: Vec<SourceFile>,
}

impl Tree {
    /// Reads the files of the repository at `root`: those that git tracks or would add, or, without
    /// git, all but build output and hidden directories.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let mut paths = match listed_by_git(root) {
            Some(paths) => paths,
            None => walked(root, "")?,
        };
        paths.sort();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            files.extend(read_file(root, &path)?);
        }
        Ok(Self { files })
    }

    /// Makes a tree of given files, for tests of rules.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| {
            SourceFile::new(path, u64::try_from(text.len()).unwrap(), text.to_owned())
        };
        Self { files: files.iter().map(file).collect() }
    }

    /// Returns the file at `path`.
    pub(super) fn get(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns the files whose paths begin with `prefix`.
    pub(super) fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a SourceFile> {
        self.files.iter().filter(move |file| file.path.starts_with(prefix))
    }

    /// Returns all Rust files.
    pub(super) fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.is_rust())
    }
}

/// Reads a file. Returns `None` for a link, and for a file that git lists but that is gone.
fn read_file(root: &Path, path: &str) -> Result<Option<SourceFile>, String> {
    let full = root.join(path);
    let Ok(metadata) = fs::symlink_metadata(&full) else { return Ok(None) };
    if !metadata.is_file() {
        return Ok(None);
    }
    let is_data =
        DATA_FOLDERS.iter().any(|folder| path.starts_with(folder)) && !path.ends_with(".md");
    let bytes = if is_data { Ok(Vec::new()) } else { fs::read(&full) };
    let bytes = bytes.map_err(|error| format!("cannot read {path}: {error}"))?;
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    Ok(Some(SourceFile::new(path, metadata.len(), text.unwrap_or_default())))
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        // Also checks a clone with another owner, as in containers.
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walked(root: &Path, folder: &str) -> Result<Vec<String>, String> {
    let cannot_list = |error| format!("cannot list {}: {error}", root.join(folder).display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(root.join(folder)).map_err(cannot_list)? {
        let entry = entry.map_err(cannot_list)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{folder}{name}");
        if !entry.file_type().map_err(cannot_list)?.is_dir() {
            paths.push(path);
        } else if name != "target" && name != "__pycache__" && !name.starts_with('.') {
            paths.extend(walked(root, &format!("{path}/"))?);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::repository_root;

    #[test]
    fn git_and_walking_agree_on_sources() {
        let root = repository_root();
        let mut walked = walked(&root, "").unwrap();
        walked.retain(|path| path.ends_with(".rs"));
        walked.sort();
        assert!(walked.contains(&"xtask/src/main.rs".to_owned()));
        let tree = Tree::read(&root).unwrap();
        let read: Vec<&str> = tree.rust().map(|file| file.path.as_str()).collect();
        assert!(read.iter().all(|path| walked.contains(&(*path).to_owned())));
    }

    #[test]
    fn a_stem_is_a_name_without_folder_and_ending() {
        let tree = Tree::of(&[("a/b.rs", ""), ("c/d.e.txt", "")]);
        let stems: Vec<&str> = tree.files.iter().map(SourceFile::stem).collect();
        assert_eq!(stems, ["b", "d"]);
    }

    #[test]
    fn only_sources_have_code() {
        let tree = Tree::of(&[("a.rs", "fn f() {}"), ("a.md", "fn f() {}")]);
        assert_eq!(tree.files.iter().map(|file| file.n_code_lines).collect::<Vec<_>>(), [1, 0]);
    }
}
