//! Plans the files of a pack from a checkpoint's table of contents: the place of every tensor,
//! before any data is read.
//!
//! **Invariant:** the plan is a pure function of config, headers and options, so that a later run
//! derives the same plan from a journal, byte for byte. Every tensor of the source is in exactly
//! one file: as a resident tensor, in records, or as an extra.

pub(super) mod rows;
mod heads;
pub(super) mod file;
mod table;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use moeflux_io::OneLine;
use moeflux_kernels::{Affine, BlockKind, FloatKind, MatrixKind, MatrixLayout};

use crate::blueprint::Blueprint;
use crate::error::{Error, Result};
use crate::format::{
    Checkpoint, DType, PackedBank, PackedNorms, PackedRole, RECORD_ALIGN, TensorEntry,
};
use crate::ids::ExpertIdx;
use crate::pack::plan::file::{Conversion, FilePlan, OutputTensor, RecordPlan};
use crate::pack::plan::heads::{KvProjectionKind, KvProjectionPart, MlaHeads};
use crate::pack::plan::rows::FloatRows;
use crate::spec::{MixerSpec, QuantParams};
use crate::weights::{
    ExpertBank, ExpertLayout, FileExtent, Manifest, MatrixSource, ValueTransform, VectorSource,
    described, dtype_of, params_of_mlx,
};

/// Target length of files without records. They are split between tensors, so that an interrupted
/// run repeats little.
const FILE_BYTES: u64 = 4 << 30;

/// Upper bound on a record, because it is assembled in memory. It is ten times the largest known; a
/// larger record is refused.
pub(crate) const RECORD_BYTES_MAX: usize = 256 << 20;

/// All files of a pack.
#[derive(Debug)]
pub(super) struct PackPlan {
    /// Files in the order in which they are written.
    pub(super) files: Vec<FilePlan>,
    /// Quantisation of matrices that does not follow the default, by name in the pack; for a GGUF
    /// source by canonical name.
    pub(super) overrides: Vec<(String, QuantParams)>,
}

/// The source and the options of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanRequest<'a> {
    pub(super) blueprint: &'a Blueprint,
    pub(super) checkpoint: &'a Checkpoint,
    /// Quantisation; `None` keeps all values.
    pub(super) params: Option<QuantParams>,
    /// The type that the config declares for all weights, as mlx-lm reads it.
    pub(super) cast: Option<FloatKind>,
    /// Identifier of the pack.
    pub(super) pack: u64,
}

/// The name of a module: that of its tensor without `.weight`.
#[derive(Clone, Copy, Debug)]
struct ModuleName<'n> {
    canonical: &'n str,
    in_file: &'n str,
}

/// Tensors to be written, their position in the source, and the conversion that makes them.
struct PlannedTensors {
    at: (usize, u64),
    tensors: Vec<OutputTensor>,
    conversion: Conversion,
}

impl PackPlan {
    /// Plans all files.
    ///
    /// # Errors
    ///
    /// If the source is already quantised and should be quantised again; if a record is too large.
    pub(super) fn new(request: &PlanRequest<'_>) -> Result<Self> {
        let mut planner = Planner {
            request,
            matrices: BTreeMap::new(),
            merged: HashSet::new(),
            overrides: Vec::new(),
        };
        planner.plan()
    }
}

struct Planner<'a> {
    request: &'a PlanRequest<'a>,
    /// Matrices that are not copied, by the canonical name of their weights.
    matrices: BTreeMap<String, &'a MatrixSource>,
    /// Canonical names of tensors that are merged into others.
    merged: HashSet<String>,
    overrides: Vec<(String, QuantParams)>,
}

impl<'a> Planner<'a> {
    fn plan(&mut self) -> Result<PackPlan> {
        let PlanRequest { blueprint, checkpoint, pack, .. } = *self.request;
        let manifest = &blueprint.manifest;
        if self.request.params.is_some() {
            self.check_unquantised()?;
            for matrix in &manifest.matrices {
                self.register(matrix);
            }
        }
        let uses = TensorUses::new(checkpoint, manifest);
        let (mut resident, mut extras) = (Vec::new(), Vec::new());
        for (name, entry) in &checkpoint.tensors {
            if self.merged.contains(name) {
                continue;
            }
            match uses.of(entry) {
                TensorUse::Bank | TensorUse::Table => {}
                TensorUse::Resident => self.resident(name, entry, &mut resident)?,
                TensorUse::Unused => extras.push(PlannedTensors::copied(entry)),
            }
        }
        let norms = norms_of(manifest);
        let mut files = in_files("resident", &PackedRole::Resident { norms }, resident, pack);
        files.extend(in_files("extras", &PackedRole::Extras, extras, pack));
        for bank in &manifest.banks {
            files.push(self.bank(bank)?);
        }
        for (table_idx, table) in manifest.tables.iter().enumerate() {
            let name = format!("rows-{:05}.safetensors", table_idx + 1);
            files.push(FilePlan::of_table(name, &Arc::new(table.clone()), pack));
        }
        Ok(PackPlan { files, overrides: std::mem::take(&mut self.overrides) })
    }

    fn check_unquantised(&self) -> Result<()> {
        let Blueprint { manifest, .. } = self.request.blueprint;
        // Models are trained with MXFP4 weights: requantising would lose the benefit.
        let is_affine = |layout: &MatrixLayout| {
            matches!(layout.kind, MatrixKind::Affine(_) | MatrixKind::Block(BlockKind::MXFP4_APART))
        };
        let matrix = manifest.matrices.iter().find(|it| is_affine(&it.layout));
        let of_bank = |bank: &&ExpertBank| {
            [bank.layout.gate, bank.layout.up, bank.layout.down]
                .iter()
                .any(|it| is_affine(&it.layout))
        };
        let bank = manifest.banks.iter().find(of_bank);
        match matrix.map(|it| &it.name).or(bank.map(|it| &it.name)) {
            None => Ok(()),
            Some(name) => Err(Error::Input(format!(
                "{} is quantised already (`{}`): pack it without quantising it, or \
                 quantise the published files",
                self.request.checkpoint.dir.display(),
                OneLine::name(name)
            ))),
        }
    }

    /// Registers a matrix that must be converted.
    fn register(&mut self, matrix: &'a MatrixSource) {
        let is_fp8 = matches!(matrix.layout.kind, MatrixKind::Fp8(_));
        let is_split = matrix.name.ends_with(".self_attn.kv_b_proj");
        if is_fp8 {
            self.merged.insert(format!("{}.{}", matrix.name, matrix.parts.scales));
        }
        if is_fp8 || is_split || self.params(&matrix.name, matrix.layout.n_cols).is_some() {
            self.matrices.insert(format!("{}.weight", matrix.name), matrix);
        }
    }

    fn params(&self, base: &str, n_cols: usize) -> Option<QuantParams> {
        let PlanRequest { blueprint, params, .. } = self.request;
        params_of_mlx(blueprint.spec.family, base, n_cols, (*params)?)
    }

    /// Returns the type that mlx-lm gives a matrix before quantisation.
    fn cast(&self, stored: MatrixKind) -> FloatKind {
        self.request.cast.unwrap_or(match stored {
            MatrixKind::Float(kind) => kind,
            // Bf16 represents all values of MXFP4; f16 keeps more digits of the other block types.
            MatrixKind::Fp8(_) | MatrixKind::Block(BlockKind::MXFP4) | MatrixKind::Affine(_) => {
                FloatKind::Bf16
            }
            MatrixKind::Block(_) => FloatKind::F16,
        })
    }

    fn resident(
        &mut self,
        name: &str,
        entry: &TensorEntry,
        items: &mut Vec<PlannedTensors>,
    ) -> Result<()> {
        let Some(&matrix) = self.matrices.get(name) else {
            items.push(PlannedTensors::copied(entry));
            return Ok(());
        };
        let base = ModuleName {
            canonical: name.strip_suffix(".weight").unwrap_or(name),
            in_file: entry.name.strip_suffix(".weight").unwrap_or(&entry.name),
        };
        let layout = MatrixLayout { n_rows: matrix.stored_rows, ..matrix.layout };
        let rows = FloatRows {
            name: entry.name.clone(),
            layout,
            codes: matrix.codes,
            scales: matrix.scales,
            cast: self.cast(layout.kind),
        };
        let heads = self.heads(&matrix.name);
        let Some(heads) = heads else {
            let lead = entry.shape.split_last().map_or(&[][..], |(_, lead)| lead);
            // A matrix with one row may be stored without that dimension.
            let lead = if lead.is_empty() { &[1][..] } else { lead };
            items.push(self.converted(base, lead, rows, None)?);
            return Ok(());
        };
        for (module, part) in [
            ("embed_q", KvProjectionPart { heads, kind: KvProjectionKind::Keys }),
            ("unembed_out", KvProjectionPart { heads, kind: KvProjectionKind::Values }),
        ] {
            let (_, n_rows, _) = part.shape();
            let shape = [heads.n_heads, n_rows];
            let [canonical, in_file] = self.names_of_part(base, module);
            let base = ModuleName { canonical: &canonical, in_file: &in_file };
            items.push(self.converted(base, &shape, rows.clone(), Some(part))?);
        }
        Ok(())
    }

    /// Returns the names of a part of `kv_b_proj`: the canonical name, and the name in the pack.
    fn names_of_part(&self, base: ModuleName<'_>, module: &str) -> [String; 2] {
        let replaced = |name: &str| {
            let prefix = name.strip_suffix("kv_b_proj").unwrap_or(name);
            format!("{prefix}{module}")
        };
        let canonical = replaced(base.canonical);
        if self.request.checkpoint.gguf.is_none() {
            return [canonical, replaced(base.in_file)];
        }
        let weight = format!("{canonical}.weight");
        let in_file = self.request.checkpoint.name_here(&weight);
        let in_file = in_file.strip_suffix(".weight").unwrap_or(&in_file).to_owned();
        [canonical, in_file]
    }

    /// Returns the heads of a `kv_b_proj`, which mlx-lm splits.
    fn heads(&self, base: &str) -> Option<MlaHeads> {
        let layer = base.strip_prefix("model.layers.")?.strip_suffix(".self_attn.kv_b_proj")?;
        let layer_idx: usize = layer.parse().ok()?;
        match &self.request.blueprint.spec.layers.get(layer_idx)?.mixer {
            MixerSpec::Mla(mla) => Some(MlaHeads {
                n_heads: mla.n_heads,
                nope_dim: mla.nope_dim,
                v_dim: mla.v_dim,
                kv_rank: mla.kv_rank,
            }),
            MixerSpec::Attention(_) | MixerSpec::GatedDelta(_) => None,
        }
    }

    /// Plans a converted matrix: quantised if its columns are whole groups, otherwise in floats.
    fn converted(
        &mut self,
        ModuleName { canonical, in_file: base }: ModuleName<'_>,
        lead: &[usize],
        rows: FloatRows,
        part: Option<KvProjectionPart>,
    ) -> Result<PlannedTensors> {
        let n_cols = part.map_or(rows.layout.n_cols, |part| part.shape().2);
        let params = self.params(canonical, n_cols);
        // mlx-lm lists the modules that it decides about, even where they follow the default.
        let is_gate = canonical.ends_with(".mlp.gate") || canonical.ends_with("shared_expert_gate");
        if let Some(params) = params.filter(|_| is_gate) {
            let name = if self.request.checkpoint.gguf.is_some() { canonical } else { base };
            self.overrides.push((name.to_owned(), params));
        }
        let kind = target_kind(params, rows.cast);
        let n_rows = part.map_or(rows.layout.n_rows, KvProjectionPart::n_rows);
        let layout = layout_of(base, kind, n_rows, n_cols)?;
        let tensor = |suffix: &str, dtype: DType, width: usize, n_bytes: usize| OutputTensor {
            name: format!("{base}.{suffix}"),
            dtype,
            shape: [lead, &[width]].concat(),
            len_bytes: n_bytes as u64,
        };
        let tensors = match kind {
            MatrixKind::Affine(affine) => {
                let n_groups = n_cols / usize::from(affine.group);
                let scale = dtype_of(affine.scale);
                vec![
                    tensor("weight", DType::U32, layout.row_bytes() / 4, layout.code_bytes()),
                    tensor("scales", scale, n_groups, layout.scale_bytes()),
                    tensor("biases", scale, n_groups, layout.bias_bytes()),
                ]
            }
            _ => vec![tensor("weight", dtype_of(rows.cast), n_cols, layout.code_bytes())],
        };
        let at = (rows.codes.file_idx, rows.codes.offset_bytes);
        let conversion = match part {
            None => Conversion::Rows { rows, layout },
            Some(part) => Conversion::Heads { rows, part, layout },
        };
        Ok(PlannedTensors { at, tensors, conversion })
    }

    /// Plans the file of a layer's records.
    fn bank(&self, bank: &ExpertBank) -> Result<FilePlan> {
        let matrices = [bank.layout.gate, bank.layout.up, bank.layout.down].map(|span| span.layout);
        let target = |name: &str, stored: MatrixLayout| {
            if self.request.params.is_none() {
                return Ok(stored);
            }
            let base = format!("{}.switch_mlp.{name}", bank.name);
            let kind = target_kind(self.params(&base, stored.n_cols), self.cast(stored.kind));
            layout_of(&base, kind, stored.n_rows, stored.n_cols)
        };
        let [gate, up, down] = matrices;
        let layout = ExpertLayout::new(
            target("gate_proj", gate)?,
            target("up_proj", up)?,
            target("down_proj", down)?,
        );
        let record_bytes = layout.record_bytes().next_multiple_of(RECORD_ALIGN);
        let casts = matrices.map(|stored| self.cast(stored.kind));
        if record_bytes > RECORD_BYTES_MAX {
            return Err(Error::Unsupported(format!(
                "an expert of layer {} takes {record_bytes} bytes; records of at most \
                 {RECORD_BYTES_MAX} are packed",
                bank.layer.0
            )));
        }
        let role = PackedRole::Experts(Box::new(PackedBank {
            prefix: bank.name.clone(),
            tensor: format!("{}.experts.records", bank.name),
            n_experts: bank.n_experts,
            record_bytes,
            begin_bytes: 0,
            matrices: [layout.gate, layout.up, layout.down].map(|span| described(&span)),
        }));
        let name = format!("experts-{:05}.safetensors", bank.layer.0);
        let plan = RecordPlan {
            bank: bank.clone(),
            is_quantised: self.request.params.is_some(),
            layout,
            casts,
        };
        Ok(FilePlan::of_records(name, role, plan, self.request.pack))
    }
}

fn target_kind(params: Option<QuantParams>, cast: FloatKind) -> MatrixKind {
    match params {
        Some(QuantParams { bits, group }) => MatrixKind::Affine(Affine::new(bits, group, cast)),
        None => MatrixKind::Float(cast),
    }
}

fn layout_of(base: &str, kind: MatrixKind, n_rows: usize, n_cols: usize) -> Result<MatrixLayout> {
    MatrixLayout::new(kind, n_rows, n_cols).map_err(|error| Error::tensor(base, error.to_string()))
}

impl PlannedTensors {
    fn copied(entry: &TensorEntry) -> Self {
        let TensorEntry { name, dtype, shape, file_idx, offset_bytes, len_bytes } = entry;
        let extent =
            FileExtent { file_idx: *file_idx, offset_bytes: *offset_bytes, len_bytes: *len_bytes };
        let tensor = OutputTensor {
            name: name.clone(),
            dtype: *dtype,
            shape: shape.clone(),
            len_bytes: *len_bytes,
        };
        let at = (*file_idx, *offset_bytes);
        Self { at, tensors: vec![tensor], conversion: Conversion::Copied(extent) }
    }

    fn len_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len_bytes).sum()
    }
}

/// Groups items by their order in the source into files of at most [`FILE_BYTES`]. A larger item
/// has its own file.
fn in_files(
    stem: &str,
    role: &PackedRole,
    mut items: Vec<PlannedTensors>,
    pack: u64,
) -> Vec<FilePlan> {
    items.sort_by_key(|item| item.at);
    let mut files: Vec<Vec<PlannedTensors>> = Vec::new();
    let mut n_bytes = 0;
    for item in items {
        n_bytes += item.len_bytes();
        match files.last_mut() {
            Some(file) if n_bytes <= FILE_BYTES => file.push(item),
            _ => {
                n_bytes = item.len_bytes();
                files.push(vec![item]);
            }
        }
    }
    let numbered = files.into_iter().enumerate().map(|(file_idx, items)| {
        let stem = format!("{stem}-{:05}", file_idx + 1);
        let parts = items.into_iter().map(|item| (item.tensors, item.conversion)).collect();
        FilePlan::of_tensors(&stem, role.clone(), parts, pack)
    });
    numbered.collect()
}

fn norms_of(manifest: &Manifest) -> PackedNorms {
    let adds_one = |vector: &VectorSource| match vector {
        VectorSource::Stored(stored) => stored.transform == ValueTransform::AddOne,
        VectorSource::Constant(_) => false,
    };
    if manifest.vectors.iter().any(adds_one) {
        PackedNorms::ZeroCentred
    } else {
        PackedNorms::Plain
    }
}

/// The use that a model has for a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorUse {
    Resident,
    Bank,
    Table,
    Unused,
}

/// The use of each position in the source's files.
struct TensorUses {
    /// Offsets of resident tensors and of the parts of banks, by file.
    used: BTreeMap<(usize, u64), TensorUse>,
}

impl TensorUses {
    fn new(checkpoint: &Checkpoint, manifest: &Manifest) -> Self {
        let mut used = BTreeMap::new();
        let mut add = |extent: &FileExtent, tensor_use: TensorUse| {
            used.insert((extent.file_idx, extent.offset_bytes), tensor_use);
        };
        for matrix in &manifest.matrices {
            let parts = [Some(matrix.codes), matrix.scales, matrix.biases];
            parts.iter().flatten().for_each(|extent| add(extent, TensorUse::Resident));
        }
        for vector in &manifest.vectors {
            if let VectorSource::Stored(stored) = vector {
                add(&stored.extent, TensorUse::Resident);
            }
        }
        for bank in &manifest.banks {
            for part in &bank.parts {
                for expert_idx in 0..bank.n_experts {
                    add(&part.extent(ExpertIdx(expert_idx)), TensorUse::Bank);
                }
            }
        }
        for integers in &manifest.integers {
            add(&integers.extent, TensorUse::Resident);
        }
        for table in &manifest.tables {
            for extent in table.extents(&(0..table.n_rows as u64)) {
                add(&extent, TensorUse::Table);
            }
        }
        debug_assert!(checkpoint.packed.is_none(), "the source is not packed");
        Self { used }
    }

    /// Returns the use of a tensor. Parts of several experts may lie in one tensor, so any offset
    /// inside it counts. A tensor without bytes is unused.
    fn of(&self, entry: &TensorEntry) -> TensorUse {
        let first = (entry.file_idx, entry.offset_bytes);
        let end = (entry.file_idx, entry.offset_bytes + entry.len_bytes);
        self.used.range(first..end).next().map_or(TensorUse::Unused, |(_, tensor_use)| *tensor_use)
    }
}

/// Returns the type that the config declares for all weights, from the keys that mlx-lm reads.
pub(super) fn config_cast(
    torch_dtype: Option<&str>,
    text_dtype: Option<&str>,
) -> Option<FloatKind> {
    match torch_dtype.or(text_dtype)? {
        "float32" => Some(FloatKind::F32),
        "float16" => Some(FloatKind::F16),
        "bfloat16" => Some(FloatKind::Bf16),
        _ => None,
    }
}
