//! A config with getters that enforce the limits of a model.
//!
//! **Invariant:** every number returned is within its limit, so that products of two of them and a
//! type's size fit into 64 bits, and a false number cannot inflate a table. Both the published keys
//! and those that transformers 5 writes are read.

use super::FfnSpec;
use crate::error::{Error, Result};
use crate::format::ConfigSection;

/// Upper bound on experts: a hundred times the largest known number.
const N_EXPERTS_MAX: usize = 65_536;
/// Upper bound on the widths of the residual stream, of all heads together and of an inner layer.
const WIDTH_MAX: usize = 1 << 20;

/// A model's config, with getters that enforce limits.
pub(super) struct CheckedConfig<'a> {
    pub(super) root: ConfigSection<'a>,
    /// Section of the language model.
    pub(super) text: ConfigSection<'a>,
}

impl CheckedConfig<'_> {
    /// Returns a required count from 1 to `max`.
    pub(super) fn count(&self, key: &str, max: usize) -> Result<usize> {
        self.checked(key, self.text.usize_at(key)?, max)
    }

    fn checked(&self, key: &str, value: usize, max: usize) -> Result<usize> {
        if (1..=max).contains(&value) {
            return Ok(value);
        }
        Err(self.text.wrong(key, &format!("an integer from 1 to {max}")))
    }

    /// Returns a count from 1 to `max` with a default.
    pub(super) fn count_or(&self, key: &str, default: usize, max: usize) -> Result<usize> {
        self.checked(key, self.text.usize_opt(key)?.unwrap_or(default), max)
    }

    /// Returns a required width.
    pub(super) fn width(&self, key: &str) -> Result<usize> {
        self.count(key, WIDTH_MAX)
    }

    /// Returns a width with a default.
    pub(super) fn width_or(&self, key: &str, default: usize) -> Result<usize> {
        self.checked(key, self.text.usize_opt(key)?.unwrap_or(default), WIDTH_MAX)
    }

    /// Returns the number of routed experts, from the first of these keys that is present.
    pub(super) fn n_experts(&self, names: &[&str]) -> Result<usize> {
        self.count(self.text.present(names), N_EXPERTS_MAX)
    }

    /// Returns the number of experts per token.
    pub(super) fn top_k(&self, n_experts: usize) -> Result<usize> {
        let key = "num_experts_per_tok";
        let top_k = self.text.usize_at(key)?;
        if (1..=n_experts).contains(&top_k) {
            return Ok(top_k);
        }
        Err(self.text.wrong(key, &format!("1 to the number of experts, {n_experts}")))
    }

    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.text.bool_opt(key)?.unwrap_or(default))
    }

    /// Returns a finite number above 0.
    #[expect(clippy::cast_possible_truncation, reason = "kernels compute in f32")]
    pub(super) fn positive_or(&self, key: &str, default: f64) -> Result<f32> {
        let value = self.text.f64_opt(key)?.unwrap_or(default) as f32;
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(self.text.wrong(key, "a number above 0 that an f32 can hold"))
    }

    /// Checks that `part` divides `whole`.
    pub(super) fn divides(&self, part: (&str, usize), whole: (&str, usize)) -> Result<()> {
        if whole.1.is_multiple_of(part.1) {
            return Ok(());
        }
        let expected = format!("a divisor of `{}`, {}", self.text.full_key(whole.0), whole.1);
        Err(self.text.wrong(part.0, &expected))
    }

    /// Checks that `n` heads of `dim` channels are within the maximum width.
    pub(super) fn fits(&self, n: (&str, usize), dim: (&str, usize)) -> Result<()> {
        if n.1.checked_mul(dim.1).is_some_and(|width| width <= WIDTH_MAX) {
            return Ok(());
        }
        let expected = format!(
            "at most {WIDTH_MAX} in product with `{}`, {}",
            self.text.full_key(dim.0),
            dim.1
        );
        Err(self.text.wrong(n.0, &expected))
    }

    /// Returns whether each layer has full attention, called by one of `names`: from `layer_types`,
    /// otherwise every `interval`-th layer.
    pub(super) fn is_full_attention(&self, n_layers: usize, names: &[&str]) -> Result<Vec<bool>> {
        let Some(kinds) = self.text.str_list_opt("layer_types")? else {
            let key = "full_attention_interval";
            let interval = self.text.usize_opt(key)?.unwrap_or(4);
            let interval = self.checked(key, interval, usize::MAX)?;
            return Ok((1..=n_layers).map(|nth| nth.is_multiple_of(interval)).collect());
        };
        self.one_for_each_layer("layer_types", kinds.len(), n_layers)?;
        let is_full = |kind: &&str| match *kind {
            "linear_attention" => Ok(false),
            name if names.contains(&name) => Ok(true),
            other => Err(self.unknown_layer(other)),
        };
        kinds.iter().map(is_full).collect()
    }

    /// Refuses layers that attend to only a part of the context.
    pub(super) fn all_full_attention(&self) -> Result<()> {
        if self.flag_or("use_sliding_window", false)? {
            let advice = "attention to a window of the context is not supported";
            return Err(self.text.unsupported("use_sliding_window", advice));
        }
        let kinds = self.text.str_list_opt("layer_types")?.unwrap_or_default();
        match kinds.into_iter().find(|kind| *kind != "full_attention") {
            Some(other) => Err(self.unknown_layer(other)),
            None => Ok(()),
        }
    }

    /// Returns the window of each layer: from `layer_types`, otherwise every other layer has one.
    pub(super) fn windows(&self, n_layers: usize) -> Result<Vec<Option<usize>>> {
        let window = || self.count("sliding_window", usize::MAX);
        let Some(kinds) = self.text.str_list_opt("layer_types")? else {
            let of_layer = |layer: usize| layer.is_multiple_of(2).then(window).transpose();
            return (0..n_layers).map(of_layer).collect();
        };
        self.one_for_each_layer("layer_types", kinds.len(), n_layers)?;
        let of_kind = |kind: &&str| match *kind {
            "full_attention" => Ok(None),
            "sliding_attention" => window().map(Some),
            other => Err(self.unknown_layer(other)),
        };
        kinds.iter().map(of_kind).collect()
    }

    /// Returns the window of all layers, if there is one.
    pub(super) fn window_opt(&self) -> Result<Option<usize>> {
        let key = "sliding_window";
        self.text.value(key).map(|_| self.count(key, usize::MAX)).transpose()
    }

    fn one_for_each_layer(&self, key: &str, n_found: usize, n_layers: usize) -> Result<()> {
        if n_found == n_layers {
            return Ok(());
        }
        let expected = format!("one kind for each of the {n_layers} layers");
        Err(self.text.wrong(key, &expected))
    }

    fn unknown_layer(&self, kind: &str) -> Error {
        let advice =
            format!("layers of kind \"{}\" are not supported", moeflux_io::OneLine::name(kind));
        self.text.unsupported("layer_types", &advice)
    }

    /// Returns whether each layer has experts, in the qwen families.
    pub(super) fn is_sparse(&self, n_layers: usize) -> Result<Vec<bool>> {
        let key = "decoder_sparse_step";
        let step = self.checked(key, self.text.usize_opt(key)?.unwrap_or(1), usize::MAX)?;
        let mut is_sparse: Vec<bool> = (1..=n_layers).map(|nth| nth.is_multiple_of(step)).collect();
        for layer in self.text.usize_list_opt("mlp_only_layers")?.unwrap_or_default() {
            // As in transformers, indices past the last layer are ignored.
            if let Some(is_sparse) = is_sparse.get_mut(layer) {
                *is_sparse = false;
            }
        }
        Ok(is_sparse)
    }

    /// Returns whether each layer has experts in families whose first layers are dense: from
    /// `mlp_layer_types`, otherwise from `first_k_dense_replace`.
    pub(super) fn is_sparse_after_dense(
        &self,
        n_dense_by_default: usize,
        n_layers: usize,
    ) -> Result<Vec<bool>> {
        let key = "mlp_layer_types";
        let Some(kinds) = self.text.str_list_opt(key)? else {
            let n_dense = self.text.usize_opt("first_k_dense_replace")?;
            let n_dense = n_dense.unwrap_or(n_dense_by_default);
            return Ok((0..n_layers).map(|layer| layer >= n_dense).collect());
        };
        self.one_for_each_layer(key, kinds.len(), n_layers)?;
        let is_sparse = |kind: &&str| match *kind {
            "sparse" => Ok(true),
            "dense" => Ok(false),
            _ => Err(self.text.wrong(key, "\"dense\" or \"sparse\" for each layer")),
        };
        kinds.iter().map(is_sparse).collect()
    }

    /// Returns a dense layer of the published width.
    pub(super) fn dense_ffn(&self) -> Result<FfnSpec> {
        Ok(FfnSpec::Dense { inner: self.width("intermediate_size")?, has_bias: false })
    }
}
