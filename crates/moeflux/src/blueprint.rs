//! Everything that headers alone say about a model: its spec, its plans, and the location of every
//! byte.
//!
//! **Invariant:** no weight is read. A 400 GB checkpoint takes well under a second, and a bare
//! `config.json` works as well as a folder.

use std::hash::Hasher as _;
use std::path::Path;

use moeflux_kernels::FloatKind;
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::families::{self, ModelPlan};
use crate::format::{Checkpoint, PACK_JOURNAL, PACK_METADATA, RawConfig, gguf_at};
use crate::spec::{FfnSpec, ModelSpec};
use crate::weights::{
    Binder, ExpertBank, Manifest, Shares, SyntheticFormat, SyntheticKind, TensorSource,
};

/// A model before its weights are read.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// Shapes and constants.
    pub spec: ModelSpec,
    /// The operations to run.
    pub plan: ModelPlan,
    /// Location of every byte.
    pub manifest: Manifest,
    /// `model_type` of the config, or `general.architecture` of a GGUF file.
    pub model_type: String,
    /// The same model with the feed-forward of each layer as its only expert, if all layers are
    /// dense and so stored that this is possible: where memory is short, these are streamed, and
    /// several machines divide them. It computes the same bits.
    pub streamed: Option<Box<Self>>,
}

impl Blueprint {
    /// Reads the headers of a model in a folder or a GGUF file. Also returns its checkpoint. Does
    /// not check that the files of a pack belong together.
    ///
    /// # Errors
    ///
    /// If the config, the headers, or the tensors they name are invalid.
    pub(crate) fn read(path: &Path) -> Result<(Self, Checkpoint)> {
        if gguf_at(path)?.is_some() || path.join(PACK_METADATA).exists() {
            let checkpoint = Checkpoint::open(path)?;
            return Ok((Self::of_gguf(&checkpoint)?, checkpoint));
        }
        let raw = RawConfig::open(path).map_err(|error| Self::unfinished(path).unwrap_or(error))?;
        let spec = ModelSpec::from_config(&raw)?;
        let checkpoint = Checkpoint::open(path)?;
        let blueprint =
            Self::bind((spec, model_type(&raw)), TensorSource::Checkpoint(&checkpoint))?;
        Ok((blueprint, checkpoint))
    }

    /// Returns the error for a folder with an unfinished pack: its config is written last.
    pub(crate) fn unfinished(dir: &Path) -> Option<Error> {
        let problem = "contains an unfinished pack: run the same `moeflux pack` again";
        let is_unfinished = dir.join(PACK_JOURNAL).exists() && !dir.join("config.json").exists();
        is_unfinished.then(|| Error::malformed(dir, problem))
    }

    /// Builds the blueprint of a GGUF file from its header.
    ///
    /// # Errors
    ///
    /// If the config, the headers, or the tensors they name are invalid.
    ///
    /// # Panics
    ///
    /// If the checkpoint is not a GGUF file.
    pub fn of_gguf(checkpoint: &Checkpoint) -> Result<Self> {
        let spec = ModelSpec::from_gguf(checkpoint)?;
        let architecture = checkpoint.gguf.as_ref().map(|gguf| gguf.architecture.clone());
        let model_type = architecture.unwrap_or_default();
        Self::bind((spec, model_type), TensorSource::Checkpoint(checkpoint))
    }

    /// Builds the blueprint from a config and the headers of a checkpoint.
    ///
    /// # Errors
    ///
    /// If the config, the headers, or the tensors they name are invalid.
    pub fn of_parts(raw: &RawConfig, checkpoint: &Checkpoint) -> Result<Self> {
        let named = (ModelSpec::from_config(raw)?, model_type(raw));
        Self::bind(named, TensorSource::Checkpoint(checkpoint))
    }

    /// Builds the blueprint that the model of `raw` would have if it were stored as `kind`.
    ///
    /// # Errors
    ///
    /// If the config is invalid.
    pub fn synthetic(raw: &RawConfig, kind: SyntheticKind) -> Result<Self> {
        let spec = ModelSpec::from_config(raw)?;
        let scale = match kind {
            SyntheticKind::Gguf(_) => FloatKind::F32,
            SyntheticKind::Affine(_)
            | SyntheticKind::AffineExperts(_)
            | SyntheticKind::Fp8
            | SyntheticKind::Mxfp4
            | SyntheticKind::Ints(_)
            | SyntheticKind::Float => FloatKind::Bf16,
        };
        let format = SyntheticFormat { kind, scale };
        Self::bind((spec, model_type(raw)), TensorSource::Synthetic(format))
    }

    fn bind((spec, model_type): (ModelSpec, String), source: TensorSource<'_>) -> Result<Self> {
        let streamed = spec.with_streamed_layers();
        let streamed = streamed.map(|spec| Self::bind((spec, model_type.clone()), source));
        let streamed = streamed.and_then(|bound| {
            let problem = "the layers of this dense model cannot be streamed";
            bound.inspect_err(|error| tracing::warn!(%error, model_type, "{problem}")).ok()
        });
        let streamed = streamed.map(Box::new);
        let mut binder = Binder::new(source, &spec);
        let plan = families::build(&spec, &mut binder)?;
        let manifest = binder.finish()?;
        Ok(Self { spec, plan, manifest, model_type, streamed })
    }

    /// Keeps only the part of every expert that one of several machines holds and computes. Returns
    /// the banks of whole experts.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the rows cannot be sharded in these shares.
    pub fn shard(&mut self, shares: &Shares, rank: usize) -> Result<Vec<ExpertBank>> {
        let banks = &self.manifest.banks;
        self.plan.shard(banks, shares, rank)?;
        let parts = banks.iter().map(|bank| bank.part_of(shares, rank)).collect::<Result<_>>()?;
        Ok(std::mem::replace(&mut self.manifest.banks, parts))
    }

    /// Returns the bytes of routed experts that one token reads when none is in memory.
    #[must_use]
    pub fn routed_bytes_per_token(&self) -> u64 {
        let banks = self.manifest.banks.iter();
        let per_bank = banks.map(|bank| match &self.spec.layers[bank.layer.0].ffn {
            FfnSpec::Moe(moe) => bank.layout.stored_bytes() * moe.top_k as u64,
            FfnSpec::Dense { .. } => 0,
        });
        per_bank.sum()
    }

    /// Returns how many rows of tables a token needs, and their bytes as stored.
    #[must_use]
    pub fn rows_per_token(&self) -> (usize, u64) {
        let lookups = self.plan.layers.iter().filter_map(|layer| layer.lookup.as_ref());
        lookups.fold((0, 0), |(n_rows, n_bytes), lookup| {
            let n_heads = lookup.hash.n_heads();
            let row_bytes = self.manifest.table(lookup.table).row_bytes();
            (n_rows + n_heads, n_bytes + (n_heads * row_bytes) as u64)
        })
    }

    /// Returns a hash of the files' headers and the model's geometry, known before any weight is
    /// read. It also depends on the names of the spec's fields: a version that renames them refuses
    /// older saved states, which is safe.
    #[must_use]
    pub fn header_fingerprint(&self, checkpoint: &Checkpoint) -> u64 {
        let mut hash = XxHash3_64::new();
        hash.write(format!("{:?}", self.spec).as_bytes());
        for file in &checkpoint.files {
            hash.write_u64(file.header_hash);
            hash.write_u64(file.len_bytes);
        }
        hash.finish()
    }
}

fn model_type(raw: &RawConfig) -> String {
    let name = raw.root().str_opt("model_type").ok().flatten();
    name.unwrap_or_default().to_owned()
}
