//! A folder of safetensors files, or the parts of a GGUF file, as one table of tensors.
//!
//! **Invariant:** every entry lies inside its file, and no two have the same canonical name. Only
//! headers are read; the tensors that a model requires are not known here.

pub(super) mod file_header;
pub(super) mod shard;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::checkpoint::file_header::{FileHeader, read_header};
use crate::format::checkpoint::shard::ShardFile;
use crate::format::dtype::DType;
use crate::format::gguf::{self, GgufFile, Metadata, gguf_at};
use crate::format::names::canonical_name;
use crate::format::packed::rows::PackedRows;
use crate::format::packed::{
    PACK_METADATA, PACK_SUMS_NAME, PackedBank, PackedFile, PackedNorms, PackedRole, RECORD_ALIGN,
    SumTable,
};
use crate::format::quoted;
use crate::format::read::read_file_if_there;
use crate::format::safetensors::header::{HeaderTensor, PREFIX_BYTES};
use crate::format::safetensors::index::{ShardIndex, parse_index};

const INDEX_NAME: &str = "model.safetensors.index.json";

/// Upper bound on an index. It holds little besides the names of tensors, so it is smaller than the
/// headers together.
const INDEX_BYTES_MAX: u64 = 100_000_000;

/// One tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name in the file.
    pub name: String,
    /// Type of the values.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Index into [`Checkpoint::files`].
    pub file_idx: usize,
    /// Offset of its first byte from the start of the file.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// The properties of a packed folder besides its tensors.
#[derive(Clone, Debug, Default)]
pub struct PackedFolder {
    /// Identifier of the pack, the same in all its files.
    pub pack: u64,
    /// Storage of norm gains, if there are resident tensors.
    pub norms: Option<PackedNorms>,
    /// The records of each layer and the index of their file in [`Checkpoint::files`], by canonical
    /// prefix: `model.layers.3.mlp`.
    pub banks: BTreeMap<String, (usize, PackedBank)>,
    /// The tables whose rows are read one by one, in the same way.
    pub tables: BTreeMap<String, (usize, PackedRows)>,
    /// Table of checksums of each of [`Checkpoint::files`].
    pub sums: Vec<SumTable>,
    /// Whether the folder has checksums of its small files.
    pub has_pack_sums: bool,
}

/// The properties of a GGUF file besides its tensors.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// Path of the metadata: the GGUF file, or in a packed folder the kept metadata file.
    pub path: PathBuf,
    /// `general.architecture`.
    pub architecture: String,
    /// All metadata; for a split file, the metadata of its first part.
    pub metadata: Metadata,
}

impl Gguf {
    fn new(path: &Path, metadata: Metadata) -> Result<Self> {
        let key = "general.architecture";
        let architecture = metadata.text(key).map(str::to_owned);
        let missing = || Error::malformed(path, format!("has no key `{key}`"));
        Ok(Self {
            path: path.to_owned(),
            architecture: architecture.ok_or_else(missing)?,
            metadata,
        })
    }
}

/// A model's table of contents.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The folder, or the GGUF file; for a split file, its first part.
    pub dir: PathBuf,
    /// Its files, in order of name.
    pub files: Vec<ShardFile>,
    /// Its tensors by canonical name, without the records and checksums of packed files.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// Properties of the pack, if the folder is packed.
    pub packed: Option<PackedFolder>,
    /// GGUF metadata, also kept if the GGUF file was packed.
    pub gguf: Option<Gguf>,
}

impl Checkpoint {
    /// Drops the text metadata: a vocabulary takes as much memory as the tokenizer built from it.
    pub(crate) fn drop_text(&mut self) {
        if let Some(gguf) = &mut self.gguf {
            gguf.metadata.drop_text();
        }
    }

    /// Reads the headers of all shards in a folder, or of a GGUF file with its other parts.
    ///
    /// # Errors
    ///
    /// The error names the file or tensor that is missing, duplicate, truncated or malformed.
    pub fn open(path: &Path) -> Result<Self> {
        match gguf_at(path)? {
            Some(file) => Self::of_gguf(gguf::read_all(&file)?),
            None => Self::of_folder(path),
        }
    }

    fn of_folder(dir: &Path) -> Result<Self> {
        let listed = list_shards(dir)?;
        let index_path = dir.join(INDEX_NAME);
        let index = read_index(&index_path)?;
        let names = match &index {
            Some(index) => {
                check_folder(&index_path, index, &listed)?;
                index.files.clone()
            }
            None => listed.into_iter().filter(|name| !is_consolidated(name)).collect(),
        };
        if names.is_empty() {
            let problem = "has no *.safetensors files; for weights in a GGUF file, name that file";
            return Err(Error::malformed(dir, problem));
        }
        let mut checkpoint = Self::empty(dir);
        let metadata = dir.join(PACK_METADATA);
        if metadata.exists() {
            checkpoint.gguf = Some(Gguf::new(&metadata, gguf::read_metadata(&metadata)?)?);
        }
        for name in names {
            let path = dir.join(name);
            let header = read_header(&path)?;
            checkpoint.add_file(path, header)?;
        }
        if checkpoint.gguf.is_some() && checkpoint.packed.is_none() {
            let problem = "belongs to a packed GGUF file, but the other files of this folder are \
                           not packed: move it away";
            return Err(Error::malformed(&metadata, problem));
        }
        if let Some(index) = &index {
            checkpoint.check_index(&index_path, index)?;
        }
        if let Some(packed) = &mut checkpoint.packed {
            packed.has_pack_sums = dir.join(PACK_SUMS_NAME).exists();
        }
        Ok(checkpoint)
    }

    /// Combines the parts of a GGUF file.
    fn of_gguf(files: Vec<GgufFile>) -> Result<Self> {
        let dir = files.first().map(|it| it.path.clone()).unwrap_or_default();
        let mut checkpoint = Self::empty(&dir);
        for file in files {
            let GgufFile { path, header, len_bytes, hash, identity } = file;
            if checkpoint.gguf.is_none() {
                checkpoint.gguf = Some(Gguf::new(&path, header.metadata)?);
            }
            let data_at = header.data_at;
            let file =
                ShardFile { path, len_bytes, header_hash: hash, header_at: 0, data_at, identity };
            checkpoint.files.push(file);
            for tensor in header.tensors {
                checkpoint.add_tensor(tensor, data_at)?;
            }
        }
        Ok(checkpoint)
    }

    /// Returns the checkpoint of a GGUF file of `len_bytes`, given its first bytes.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`].
    pub fn of_gguf_bytes(path: &Path, bytes: &[u8], len_bytes: u64) -> Result<Self> {
        Self::of_gguf(vec![GgufFile::of_bytes(path, bytes, len_bytes)?])
    }

    /// Returns the checkpoint of a split GGUF file from the name, length and header of each part.
    /// A header is all bytes before the data.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`].
    pub(crate) fn of_gguf_headers<'a>(
        dir: &Path,
        files: impl IntoIterator<Item = (&'a str, u64, &'a [u8])>,
    ) -> Result<Self> {
        let file = |(name, len_bytes, bytes): (&str, u64, &[u8])| {
            GgufFile::of_bytes(&dir.join(name), bytes, len_bytes)
        };
        Self::of_gguf(files.into_iter().map(file).collect::<Result<_>>()?)
    }

    /// Returns the source of the model's description, for messages.
    #[must_use]
    pub fn described_by(&self) -> &'static str {
        if self.gguf.is_some() { "its metadata" } else { "config.json" }
    }

    /// Returns the name that a tensor has in these files, for messages.
    #[must_use]
    pub fn name_here<'n>(&self, canonical: &'n str) -> Cow<'n, str> {
        match &self.gguf {
            Some(gguf) => gguf::in_gguf(canonical, &gguf.architecture),
            None => Cow::Borrowed(canonical),
        }
    }

    /// Returns the checkpoint of a folder from the name, length and header of each file. Headers
    /// are given without their length prefixes.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`].
    pub fn of_headers<'a>(
        dir: &Path,
        files: impl IntoIterator<Item = (&'a str, u64, &'a [u8])>,
    ) -> Result<Self> {
        let mut checkpoint = Self::empty(dir);
        for (name, len_bytes, bytes) in files {
            let path = dir.join(name);
            let header = FileHeader::of_bytes(&path, bytes, len_bytes)?;
            checkpoint.add_file(path, header)?;
        }
        Ok(checkpoint)
    }

    /// Names what contains the byte at offset `at` of a file, for messages: a tensor, an expert of
    /// a packed layer, or the header.
    #[must_use]
    pub fn name_at(&self, file_idx: usize, at: u64) -> String {
        let has_it = |entry: &&TensorEntry| {
            let end = entry.offset_bytes + entry.len_bytes;
            entry.file_idx == file_idx && (entry.offset_bytes..end).contains(&at)
        };
        if let Some(entry) = self.tensors.values().find(has_it) {
            return format!("tensor `{}`", quoted(&entry.name));
        }
        let tables = self.packed.iter().flat_map(|packed| packed.tables.values());
        if let Some((_, rows)) = tables.into_iter().find(|(rows_idx, _)| *rows_idx == file_idx) {
            return format!("tensor `{}`", quoted(&rows.tensor));
        }
        let banks = self.packed.iter().flat_map(|packed| &packed.banks);
        for (prefix, (bank_file_idx, bank)) in banks {
            let Some(file) = self.files.get(file_idx).filter(|_| *bank_file_idx == file_idx) else {
                continue;
            };
            let skipped = at.saturating_sub(file.data_at + bank.begin_bytes);
            let expert_idx = skipped.checked_div(bank.record_bytes as u64).unwrap_or(0);
            return format!("expert {expert_idx} of `{}`", quoted(prefix));
        }
        "header".to_owned()
    }

    /// Checks that no file was replaced or written to after its header was read.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the path of the file.
    pub fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(ShardFile::check_unchanged)
    }

    fn empty(dir: &Path) -> Self {
        let (files, tensors) = (Vec::new(), BTreeMap::new());
        Self { dir: dir.to_owned(), files, tensors, packed: None, gguf: None }
    }

    fn add_file(&mut self, path: PathBuf, file: FileHeader) -> Result<()> {
        let FileHeader { mut header, packed, data_at, len_bytes, hash, identity } = file;
        let first = self.files.first().map(|first| first.path.clone());
        let pack_tensor_names = match packed {
            Some(packed) => {
                for tensor in &mut header.tensors {
                    if let Some((dtype, shape)) = packed.blocks_of(tensor) {
                        (tensor.dtype, tensor.shape) = (dtype, shape);
                    }
                }
                self.add_packed(&path, packed, data_at)?
            }
            None if self.packed.is_some() => {
                let first = first.unwrap_or_default();
                let problem = format!(
                    "is not packed, but `{}` of the same folder is: move it away",
                    quoted(&first.to_string_lossy())
                );
                return Err(Error::malformed(&path, problem));
            }
            None => Vec::new(),
        };
        let header_at = PREFIX_BYTES;
        let file = ShardFile { path, len_bytes, header_hash: hash, header_at, data_at, identity };
        self.files.push(file);
        for tensor in header.tensors {
            if !pack_tensor_names.contains(&tensor.name) {
                self.add_tensor(tensor, data_at)?;
            }
        }
        Ok(())
    }

    /// Adds a tensor of the file that was added last.
    fn add_tensor(&mut self, tensor: HeaderTensor, data_at: u64) -> Result<()> {
        let HeaderTensor { name, dtype, shape, begin_bytes, len_bytes } = tensor;
        let canonical = self.canonical(&name).into_owned();
        let file_idx = self.files.len() - 1;
        // Cannot overflow: the header was checked against the file's length.
        let offset_bytes = data_at + begin_bytes;
        let entry = TensorEntry { name, dtype, shape, file_idx, offset_bytes, len_bytes };
        match self.tensors.entry(canonical) {
            Entry::Vacant(place) => {
                place.insert(entry);
                Ok(())
            }
            Entry::Occupied(place) => Err(duplicate(&self.files, place.get(), &entry)),
        }
    }

    /// Returns the canonical name of a tensor in these files.
    fn canonical<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match &self.gguf {
            Some(gguf) => gguf::canonical(name, &gguf.architecture),
            None => canonical_name(name),
        }
    }

    /// Records the description of a packed file. Returns the names of its tensors that do not
    /// belong to the model.
    fn add_packed(&mut self, path: &Path, file: PackedFile, data_at: u64) -> Result<Vec<String>> {
        let file_idx = self.files.len();
        if self.packed.is_none() && file_idx > 0 {
            let problem = "is packed, but other files of the same folder are not: move them away";
            return Err(Error::malformed(path, problem));
        }
        let packed = self.packed.get_or_insert_with(PackedFolder::default);
        if file_idx == 0 {
            packed.pack = file.pack;
        }
        if packed.pack != file.pack {
            let problem = format!(
                "belongs to a different pack ({:016x}) than the preceding files ({:016x}): copy \
                 the whole folder again",
                file.pack, packed.pack
            );
            return Err(Error::malformed(path, problem));
        }
        let mut pack_tensor_names = vec![file.sums.tensor.clone()];
        packed.sums.push(file.sums);
        match file.role {
            PackedRole::Extras => {}
            PackedRole::Resident { norms } => {
                if packed.norms.replace(norms).is_some_and(|others| others != norms) {
                    let problem =
                        "stores norms differently from the preceding files: it is damaged";
                    return Err(Error::malformed(path, problem));
                }
            }
            PackedRole::Rows(rows) => {
                check_records_at(path, data_at + rows.begin_bytes)?;
                pack_tensor_names.push(rows.tensor.clone());
                let table = rows.table.clone();
                if let Some((other_idx, _)) = packed.tables.insert(table, (file_idx, rows)) {
                    let other = self.files.get(other_idx).map(|file| file.path.as_path());
                    let problem = format!(
                        "has the rows of the same table as {}: move one of them away",
                        other.unwrap_or(Path::new("")).display()
                    );
                    return Err(Error::malformed(path, problem));
                }
            }
            PackedRole::Experts(bank) => {
                check_records_at(path, data_at + bank.begin_bytes)?;
                pack_tensor_names.push(bank.tensor.clone());
                let prefix = bank.prefix.clone();
                if let Some((other_idx, _)) = packed.banks.insert(prefix, (file_idx, *bank)) {
                    let other = self.files.get(other_idx).map(|file| file.path.as_path());
                    let problem = format!(
                        "has the experts of the same layer as {}: move one of them away",
                        other.unwrap_or(Path::new("")).display()
                    );
                    return Err(Error::malformed(path, problem));
                }
            }
        }
        Ok(pack_tensor_names)
    }

    /// Returns the index of the file that has the tensor of this name.
    fn file_of(&self, name: &str) -> Option<usize> {
        let tensor = self.tensors.get(&*self.canonical(name)).filter(|entry| entry.name == name);
        if let Some(entry) = tensor {
            return Some(entry.file_idx);
        }
        let packed = self.packed.as_ref()?;
        let bank = packed.banks.values().find(|(_, bank)| bank.tensor == name);
        let rows = packed.tables.values().find(|(_, rows)| rows.tensor == name);
        bank.map(|(file_idx, _)| *file_idx).or_else(|| rows.map(|(file_idx, _)| *file_idx))
    }

    /// Checks that every tensor of the index is in the file that the index names.
    fn check_index(&self, index_path: &Path, index: &ShardIndex) -> Result<()> {
        for (name, &file_idx) in &index.tensors {
            let found_in = self.file_of(name);
            if found_in == Some(file_idx) {
                continue;
            }
            let promised = index.files.get(file_idx).map_or("", String::as_str);
            let instead = found_in.and_then(|file_idx| index.files.get(file_idx));
            let instead = instead.map_or_else(
                || "and no other shard has it: fetch that file again".to_owned(),
                |file| {
                    format!("it is in `{}`: index and shards do not belong together", quoted(file))
                },
            );
            let problem = format!(
                "tensor `{}` is not in `{}`, where the index has it; {instead}",
                quoted(name),
                quoted(promised)
            );
            return Err(Error::malformed(index_path, problem));
        }
        Ok(())
    }
}

/// Refuses records that begin within a block. The offset cannot have overflown: the header was
/// checked against the file's length.
fn check_records_at(path: &Path, first_bytes: u64) -> Result<()> {
    if first_bytes.is_multiple_of(RECORD_ALIGN as u64) {
        return Ok(());
    }
    let problem = format!(
        "its records begin at byte {first_bytes}, not at a multiple of {RECORD_ALIGN}: it was \
         written by another program; pack the source again"
    );
    Err(Error::malformed(path, problem))
}

fn duplicate(files: &[ShardFile], first: &TensorEntry, second: &TensorEntry) -> Error {
    let file_name = |entry: &TensorEntry| {
        let path = files.get(entry.file_idx).map(|file| file.path.as_path());
        let name = path.and_then(Path::file_name).unwrap_or_default();
        quoted(&name.to_string_lossy())
    };
    let (first_file, second_file) = (file_name(first), file_name(second));
    let problem = if first.name == second.name {
        format!(
            "is in `{first_file}` and in `{second_file}`: remove the file that does not belong to \
             this model"
        )
    } else {
        format!(
            "in `{second_file}` has the same canonical name as `{}` in `{first_file}`: remove the \
             file that does not belong to this model",
            quoted(&first.name)
        )
    };
    Error::tensor(quoted(&second.name), problem)
}

/// Lists the safetensors files of a folder, sorted.
fn list_shards(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let entry = entry.map_err(Error::io("list", dir))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Hidden files are left behind by operating systems: "._model.safetensors".
        if name.ends_with(".safetensors") && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read_index(path: &Path) -> Result<Option<ShardIndex>> {
    let Some(bytes) = read_file_if_there(path, INDEX_BYTES_MAX)? else { return Ok(None) };
    parse_index(&bytes).map(Some).map_err(|problem| Error::malformed(path, problem.0))
}

/// Checks that the folder has the shards of its index and no others.
fn check_folder(index_path: &Path, index: &ShardIndex, listed: &[String]) -> Result<()> {
    let is_listed = |name: &String| listed.binary_search(name).is_ok();
    let missing: Vec<&String> = index.files.iter().filter(|name| !is_listed(name)).collect();
    if let Some(first) = missing.first() {
        let problem = format!(
            "{} of its {} files are missing, the first is `{}`: the download is incomplete, fetch \
             them again",
            missing.len(),
            index.files.len(),
            quoted(first)
        );
        return Err(Error::malformed(index_path, problem));
    }
    let is_foreign =
        |name: &&String| index.files.binary_search(name).is_err() && !is_consolidated(name);
    if let Some(foreign) = listed.iter().find(is_foreign) {
        let problem = format!(
            "does not name `{}` of the same folder: move that file away if it does not belong to \
             this model, or fetch the index again",
            quoted(foreign)
        );
        return Err(Error::malformed(index_path, problem));
    }
    Ok(())
}

/// Returns whether a file repeats the same weights under other names. Some publishers add such
/// files.
fn is_consolidated(name: &str) -> bool {
    name.starts_with("consolidated")
}
