//! All that can be known of a model from headers alone: spec, plans, where every byte lies.
//!
//! **Invariant:** no weight is read, so that a 400 GB checkpoint is understood in well under a
//! second, and a bare `config.json` as well as a folder.

use std::hash::Hasher as _;
use std::path::Path;

use moeflux_kernels::FloatKind;
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::families::{self, ModelPlan};
use crate::format::{Checkpoint, PACK_JOURNAL, PACK_METADATA, RawConfig, gguf_at};
use crate::spec::{FfnSpec, ModelSpec};
use crate::weights::{Binder, ExpertBank, Imagined, ImaginedKind, Manifest, Shares, Source};

/// A model before its weights are read.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// Shapes and constants.
    pub spec: ModelSpec,
    /// What to run.
    pub plan: ModelPlan,
    /// Where every byte lies.
    pub manifest: Manifest,
    /// `model_type` of the config, or `general.architecture` of a GGUF file.
    pub model_type: String,
}

impl Blueprint {
    /// The model in a folder or a GGUF file, with its table of contents. Nothing here checks that
    /// the files of a pack belong together.
    ///
    /// # Errors
    ///
    /// What is wrong with the config, the headers, or the tensors they name.
    pub(crate) fn read(path: &Path) -> Result<(Self, Checkpoint)> {
        if gguf_at(path)?.is_some() || path.join(PACK_METADATA).exists() {
            let checkpoint = Checkpoint::open(path)?;
            return Ok((Self::of_gguf(&checkpoint)?, checkpoint));
        }
        let raw = RawConfig::open(path).map_err(|error| Self::unfinished(path).unwrap_or(error))?;
        let spec = ModelSpec::from_config(&raw)?;
        let checkpoint = Checkpoint::open(path)?;
        let blueprint = Self::bind((spec, model_type(&raw)), Source::Checkpoint(&checkpoint))?;
        Ok((blueprint, checkpoint))
    }

    /// What to say of a folder that gets its config when it is finished.
    pub(crate) fn unfinished(dir: &Path) -> Option<Error> {
        let problem = "holds a pack that is not finished: repeat the `moeflux pack` that began it";
        let is_unfinished = dir.join(PACK_JOURNAL).exists() && !dir.join("config.json").exists();
        is_unfinished.then(|| Error::malformed(dir, problem))
    }

    /// The model that a GGUF file's header describes.
    ///
    /// # Errors
    ///
    /// What is wrong with the config, the headers, or the tensors they name.
    ///
    /// # Panics
    ///
    /// If the checkpoint is no GGUF file.
    pub fn of_gguf(checkpoint: &Checkpoint) -> Result<Self> {
        let spec = ModelSpec::from_gguf(checkpoint)?;
        let architecture = checkpoint.gguf.as_ref().map(|gguf| gguf.architecture.clone());
        let model_type = architecture.unwrap_or_default();
        Self::bind((spec, model_type), Source::Checkpoint(checkpoint))
    }

    /// The model that a config and a table of contents describe.
    ///
    /// # Errors
    ///
    /// What is wrong with the config, the headers, or the tensors they name.
    pub fn of_parts(raw: &RawConfig, checkpoint: &Checkpoint) -> Result<Self> {
        let named = (ModelSpec::from_config(raw)?, model_type(raw));
        Self::bind(named, Source::Checkpoint(checkpoint))
    }

    /// The model that `raw` would be if it were stored so.
    ///
    /// # Errors
    ///
    /// What is wrong with the config.
    pub fn imagined(raw: &RawConfig, kind: ImaginedKind) -> Result<Self> {
        let spec = ModelSpec::from_config(raw)?;
        let scale = match kind {
            ImaginedKind::Gguf(_) => FloatKind::F32,
            ImaginedKind::Affine(_)
            | ImaginedKind::AffineExperts(_)
            | ImaginedKind::Fp8
            | ImaginedKind::Mxfp4
            | ImaginedKind::Ints(_)
            | ImaginedKind::Float => FloatKind::Bf16,
        };
        let imagined = Imagined { kind, scale };
        Self::bind((spec, model_type(raw)), Source::Imagined(imagined))
    }

    fn bind((spec, model_type): (ModelSpec, String), source: Source<'_>) -> Result<Self> {
        let mut binder = Binder::new(source, &spec);
        let plan = families::build(&spec, &mut binder)?;
        let manifest = binder.finish()?;
        Ok(Self { spec, plan, manifest, model_type })
    }

    /// Leaves what one of several machines has and computes of every expert; gives back the whole
    /// ones.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the rows cannot be divided so.
    pub fn divide(&mut self, shares: &Shares, rank: usize) -> Result<Vec<ExpertBank>> {
        let banks = &self.manifest.banks;
        self.plan.divide(banks, shares, rank)?;
        let parts = banks.iter().map(|bank| bank.part_of(shares, rank)).collect::<Result<_>>()?;
        Ok(std::mem::replace(&mut self.manifest.banks, parts))
    }

    /// Bytes of routed experts that one token reads when none is in memory.
    #[must_use]
    pub fn routed_bytes_per_token(&self) -> u64 {
        let banks = self.manifest.banks.iter();
        let per_bank = banks.map(|bank| match &self.spec.layers[bank.layer.0].ffn {
            FfnSpec::Moe(moe) => bank.layout.stored_bytes() * moe.top_k as u64,
            FfnSpec::Dense { .. } => 0,
        });
        per_bank.sum()
    }

    /// A number for these files' headers and this geometry, before any weight is read. It hangs on
    /// the names of the spec's fields too: a version that renames them refuses older states, which
    /// is safe.
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
