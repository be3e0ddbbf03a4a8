//! The checksums of a whole pack: written when it is finished, checked by `verify`, and added to
//! packs that lack them.
//!
//! **Invariant:** the document is written atomically, and only after all the files that it covers.

use std::path::Path;

use moeflux_io::{FileIdentity, ReadFile};

use crate::error::{Error, Result};
use crate::format::{
    AlteredDocument, Checkpoint, DocumentSum, PACK_SUMS_NAME, PackSums, is_packed, read_range,
};
use crate::pack::folder::{self, PackFolder};
use crate::pack::plan::PackPlan;
use crate::pack::verify::damage::{Damage, DamagedPart};

/// Computes the checksums of a pack whose files are all in place except its `description`, which is
/// given by name and contents.
///
/// # Errors
///
/// If a file cannot be read.
pub(in crate::pack) fn of_finished(
    (plan, pack): (&PackPlan, u64),
    folder: &PackFolder,
    description: (&str, &[u8]),
) -> Result<PackSums> {
    let mut sums = PackSums::of_documents(pack, folder.dir())?;
    let (name, bytes) = description;
    sums.documents.insert(name.to_owned(), DocumentSum::of_bytes(bytes));
    for file in &plan.files {
        let path = folder.path(&file.name);
        let opened = ReadFile::open(&path).map_err(Error::io("open", &path))?;
        let last_bytes = size_of::<u64>() as u64;
        let bytes = read_range(&opened, &path, file.len_bytes() - last_bytes, last_bytes)?;
        let sum = bytes.try_into().map_or(0, u64::from_le_bytes);
        sums.weights.insert(file.name.clone(), sum);
    }
    Ok(sums)
}

/// Writes the checksums of a pack that has none, or whose small files were edited deliberately. The
/// pack should have been verified first. Returns the names of the small files.
///
/// # Errors
///
/// [`Error::Input`] if the folder is not a pack; if a file cannot be read or written.
pub fn write_sums(dir: &Path) -> Result<Vec<String>> {
    let checkpoint = Checkpoint::open(dir)?;
    let Some(packed) = &checkpoint.packed else { return Err(not_packed(dir)) };
    let sums = PackSums::of_folder(&checkpoint, packed)?;
    PackFolder::open(dir)?.put(PACK_SUMS_NAME, &sums.to_bytes())?;
    checkpoint.check_unchanged()?;
    Ok(sums.documents.into_keys().collect())
}

/// Returns whether a folder is a pack whose small files have no checksums, judged by its first
/// weight file.
#[must_use]
pub fn lacks_sums(dir: &Path) -> bool {
    if !dir.is_dir() || dir.join(PACK_SUMS_NAME).exists() {
        return false;
    }
    let names = folder::names(dir).unwrap_or_default();
    let first = names.iter().find(|name| name.ends_with(".safetensors"));
    first.is_some_and(|name| is_packed(&dir.join(name)).unwrap_or(false))
}

/// The reference for the small files of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Documents {
    /// The checksums of the packed files.
    AsPacked,
    /// None: the files were edited deliberately.
    Accepted,
}

/// The result of checking a folder's small files: their checksums, and the damage found before
/// weights are read.
#[derive(Debug)]
pub(in crate::pack) struct DocumentCheck {
    /// The checksums; `None` if they are absent or damaged.
    sums: Option<PackSums>,
    /// Whether the stored checksums are absent or do not match.
    is_outdated: bool,
    /// Damaged checksums, and small files that have changed since packing.
    pub(in crate::pack) damages: Vec<Damage>,
}

impl DocumentCheck {
    /// Checks the small files of a folder.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(in crate::pack) fn of_folder(dir: &Path, documents: Documents) -> Result<Self> {
        let mut damages = Vec::new();
        let sums = match PackSums::load(dir) {
            Err(Error::Malformed { path, problem }) => {
                let found = FileIdentity::of_path(&path).map_err(Error::io("look at", &path))?;
                let (part, len_bytes) = (DamagedPart::PackSums, found.len_bytes);
                damages.push(Damage { part, file: path, first_bytes: 0, len_bytes, problem });
                None
            }
            loaded => loaded?,
        };
        let altered = sums.as_ref().map(|sums| sums.altered_documents(dir)).transpose()?;
        damages.extend(altered.into_iter().flatten().map(|altered| {
            let AlteredDocument { path, len_bytes, problem } = altered;
            Damage { part: DamagedPart::Document, file: path, first_bytes: 0, len_bytes, problem }
        }));
        let is_outdated = sums.is_none() || !damages.is_empty();
        if documents == Documents::Accepted {
            damages.clear();
        }
        Ok(Self { sums, is_outdated, damages })
    }

    /// Returns the number of small files that have checksums.
    pub(in crate::pack) fn n_documents(&self) -> usize {
        self.sums.as_ref().map_or(0, |sums| sums.documents.len())
    }

    /// Returns whether the checksums should be written if nothing is damaged.
    pub(in crate::pack) fn needs_writing(&self) -> bool {
        self.is_outdated
    }

    /// Compares the last checksums of the weight files as well.
    ///
    /// # Errors
    ///
    /// As [`PackSums::foreign_files`]; [`Error::Input`] for [`Documents::Accepted`] if the model is
    /// not packed.
    pub(in crate::pack) fn add_foreign_files(
        &mut self,
        checkpoint: &Checkpoint,
        documents: Documents,
    ) -> Result<()> {
        if documents == Documents::Accepted && checkpoint.packed.is_none() {
            return Err(not_packed(&checkpoint.dir));
        }
        let Some(sums) = &self.sums else { return Ok(()) };
        for (file_idx, problem) in sums.foreign_files(checkpoint)? {
            let shard = &checkpoint.files[file_idx];
            self.damages.push(Damage {
                part: DamagedPart::ForeignFile,
                file: shard.path.clone(),
                first_bytes: 0,
                len_bytes: shard.len_bytes,
                problem,
            });
        }
        Ok(())
    }
}

fn not_packed(dir: &Path) -> Error {
    let problem = "is not packed, so its small files have no checksums";
    Error::Input(format!("{} {problem}", dir.display()))
}
