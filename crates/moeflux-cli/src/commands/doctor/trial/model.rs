//! Random models for measuring a machine.
//!
//! **Invariant:** a model's folder is removed on drop.

use std::fs;
use std::path::PathBuf;

use moeflux::provider::model::Headers;
use moeflux::{Engine, EngineBuilder, Error, Model, Result};
use serde_json::{Value, json};

use crate::commands::synth::{self, SynthArgs};
use crate::model::bare_config::{BITS_DEFAULT, GROUP_DEFAULT};
use crate::model::needs::{Needs, float};
use crate::system::cache;
use crate::system::interrupt::Interrupt;

/// The capacity of sessions in tokens.
pub(super) const CONTEXT: usize = 2048;

/// The dimensions of a trial model.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrialShape {
    name: &'static str,
    hidden: u64,
    inner: u64,
    n_heads: u64,
    n_layers: u64,
    n_experts: u64,
}

/// Layers and experts of the size found in models with 30 billion weights.
pub(super) const SMALL: TrialShape =
    TrialShape { name: "small", hidden: 2048, inner: 768, n_heads: 32, n_layers: 4, n_experts: 24 };

/// For GPUs: deep, because the fixed time of a token outweighs that of a few layers.
pub(super) const DEEP: TrialShape = TrialShape { name: "deep", n_layers: 12, ..SMALL };

/// For GPUs: few layers.
pub(super) const SHALLOW: TrialShape = TrialShape { name: "shallow", n_layers: 2, ..SMALL };

/// For prompts on GPUs: many experts.
pub(super) const MANY: TrialShape =
    TrialShape { name: "many", n_layers: 2, n_experts: 128, ..SMALL };

/// Layers and experts of the size found in models with 235 billion weights.
pub(super) const LARGE: TrialShape = TrialShape {
    name: "large",
    hidden: 4096,
    inner: 1536,
    n_heads: 64,
    n_layers: 2,
    n_experts: 12,
};

impl TrialShape {
    fn config(&self) -> Value {
        json!({
            "model_type": "qwen3_moe",
            "vocab_size": 512,
            "hidden_size": self.hidden,
            "intermediate_size": 3 * self.hidden,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": false,
            "attention_bias": false,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": self.inner,
            "norm_topk_prob": true,
            "num_experts": self.n_experts,
            "num_experts_per_tok": 8,
            "use_sliding_window": false,
        })
    }
}

/// A random model, whose folder is removed on drop.
#[derive(Debug)]
pub(super) struct TrialModel {
    root: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) needs: Needs,
}

impl TrialModel {
    pub(super) fn write(shape: TrialShape, interrupt: &Interrupt) -> Result<Self> {
        let name = format!("trial-{}-{}", shape.name, std::process::id());
        let root = cache::folder().join(name);
        fs::create_dir_all(&root).map_err(Error::io("create", &root))?;
        let mut model = Self { dir: root.join("model"), root, needs: Needs::default() };
        let config = model.root.join("config.json");
        let text = shape.config().to_string();
        fs::write(&config, text).map_err(Error::io("write", &config))?;
        let args = SynthArgs {
            config,
            out: model.dir.clone(),
            bits: BITS_DEFAULT,
            group: GROUP_DEFAULT,
            gguf: None,
            experts: None,
            seed: 1,
            shard_size: 1 << 40,
            threads: None,
        };
        synth::run(&args, interrupt.flag())?;
        let (blueprint, _) = Model::open(&model.dir)?.into_parts();
        model.needs = Needs::new(&blueprint);
        Ok(model)
    }

    pub(super) fn builder(&self) -> Result<EngineBuilder> {
        Ok(Engine::builder(Model::open(&self.dir)?).context(CONTEXT))
    }

    pub(super) fn token_bytes(&self) -> f64 {
        float(self.needs.resident.n_bytes() + self.needs.routed_bytes())
    }
}

impl Drop for TrialModel {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.root));
    }
}
