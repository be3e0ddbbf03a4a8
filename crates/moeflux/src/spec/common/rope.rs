//! Parses the rope of a config, in both dialects: `rope_theta` and `rope_scaling` at the top, or
//! all keys in `rope_parameters`.
//!
//! Follows transformers 5.24: a non-empty `rope_scaling` replaces `rope_parameters` as a whole;
//! keys inside take precedence over keys at the top. Keys of multi-axis ropes have no effect on
//! text.

use crate::error::Result;
use crate::format::ConfigSection;
use crate::spec::config::CheckedConfig;
use crate::spec::{Llama3Spec, Pairing, RopeScaling, RopeSpec, YarnSpec};

/// Upper bound on a scaling factor: no usable frequencies remain beyond it. No other parameter
/// comes near it.
const FACTOR_MAX: f64 = 1e6;
const BETA_FAST: f64 = 32.0;
const BETA_SLOW: f64 = 1.0;

/// Defaults for keys that the config omits.
#[derive(Clone, Copy)]
pub(in crate::spec) struct RopeDefaults {
    /// Base of the frequencies.
    pub(in crate::spec) theta: f64,
    /// Fraction of a head that is rotated.
    pub(in crate::spec) rotary_factor: f64,
}

impl RopeDefaults {
    /// Defaults of most families.
    pub(in crate::spec) const WHOLE: Self = Self { theta: 10_000.0, rotary_factor: 1.0 };
}

/// A rope without its pairing, which the family determines.
pub(in crate::spec) struct ParsedRope {
    theta: f64,
    n_rotated: usize,
    scaling: RopeScaling,
    /// Factor of the MLA scores besides `head_dim^-0.5`.
    pub(in crate::spec) score_factor: f64,
}

impl ParsedRope {
    pub(in crate::spec) fn with_pairing(self, pairing: Pairing) -> RopeSpec {
        let Self { theta, n_rotated, scaling, .. } = self;
        RopeSpec { theta, n_rotated, pairing, scaling }
    }
}

/// Parses the rope of heads. The number of channels is given with its key.
pub(in crate::spec) fn parse(
    config: &CheckedConfig<'_>,
    (head_dim_key, head_dim): (&str, usize),
    defaults: RopeDefaults,
) -> Result<ParsedRope> {
    let keys = RopeKeys::find(config)?;
    let theta = keys.number("rope_theta", defaults.theta, 1.0)?;
    let rotary_factor = keys.number("partial_rotary_factor", defaults.rotary_factor, 0.0)?;
    let n_rotated = rotated(head_dim, rotary_factor);
    if n_rotated == 0 || n_rotated > head_dim || !n_rotated.is_multiple_of(2) {
        let expected = format!(
            "a part of `{head_dim_key}`, {head_dim}, that is an even number of channels; here it \
             is {n_rotated}"
        );
        return Err(keys
            .section("partial_rotary_factor")
            .wrong("partial_rotary_factor", &expected));
    }
    let (scaling, factor) = keys.scaling()?;
    let mscale_all_dim = keys.inside_number("mscale_all_dim")?.filter(|mscale| *mscale != 0.0);
    let temperature = match mscale_all_dim {
        Some(mscale) => YarnSpec::temperature(factor, mscale),
        None => 1.0,
    };
    Ok(ParsedRope { theta, n_rotated, scaling, score_factor: temperature * temperature })
}

/// Returns the number of rotated channels, rounded down as in transformers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounding down is the purpose, and both factors are non-negative"
)]
fn rotated(head_dim: usize, rotary_factor: f64) -> usize {
    (head_dim as f64 * rotary_factor) as usize
}

/// The sections that may have a rope's keys.
struct RopeKeys<'a> {
    inside: Option<ConfigSection<'a>>,
    top: ConfigSection<'a>,
}

impl<'a> RopeKeys<'a> {
    fn find(config: &CheckedConfig<'a>) -> Result<Self> {
        let top = config.text.clone();
        let scaling = top.section("rope_scaling")?.filter(|section| !section.is_empty());
        let inside = match scaling {
            Some(section) => Some(section),
            None => top.section("rope_parameters")?,
        };
        if let Some(section) = &inside {
            let nested = section.entries().find(|(_, value)| value.is_object());
            if let Some((key, _)) = nested {
                let advice = "a separate rope for each kind of layer is not supported";
                return Err(section.unsupported(key, advice));
            }
        }
        Ok(Self { inside, top })
    }

    /// Returns the section that has `key`. The inner one takes precedence.
    fn section(&self, key: &str) -> &ConfigSection<'a> {
        let has_key = |section: &&ConfigSection<'a>| section.value(key).is_some();
        self.inside.as_ref().filter(has_key).unwrap_or(&self.top)
    }

    /// Returns a finite number above `min`.
    fn number(&self, key: &str, default: f64, min: f64) -> Result<f64> {
        let section = self.section(key);
        let value = section.f64_opt(key)?.unwrap_or(default);
        if value.is_finite() && value > min {
            return Ok(value);
        }
        Err(section.wrong(key, &format!("a finite number above {min}")))
    }

    /// Returns a number that may only be in the inner section. Its bounds prevent overflow in later
    /// arithmetic.
    fn inside_number(&self, key: &str) -> Result<Option<f64>> {
        let Some(inside) = &self.inside else { return Ok(None) };
        match inside.f64_opt(key)? {
            Some(value) if !(0.0..=FACTOR_MAX).contains(&value) => {
                Err(inside.wrong(key, &format!("a number from 0 to {FACTOR_MAX}")))
            }
            value => Ok(value),
        }
    }

    /// Returns the scaling and its factor.
    fn scaling(&self) -> Result<(RopeScaling, f64)> {
        let Some(inside) = &self.inside else { return Ok((RopeScaling::None, 1.0)) };
        // Older files use `type`.
        let key = inside.present(&["rope_type", "type"]);
        match inside.str_opt(key)? {
            None | Some("default" | "mrope") => Ok((RopeScaling::None, 1.0)),
            Some("linear") => {
                let factor = self.factor(inside)?.ok_or_else(|| inside.missing("factor"))?;
                Ok((RopeScaling::Linear { factor }, factor))
            }
            Some("yarn") => {
                let yarn = self.yarn(inside)?;
                let factor = yarn.factor;
                Ok((RopeScaling::Yarn(yarn), factor))
            }
            Some("llama3") => {
                let llama = self.llama3(inside)?;
                let factor = llama.factor;
                Ok((RopeScaling::Llama3(llama), factor))
            }
            Some(_) => {
                let advice = "only \"default\", \"linear\", \"yarn\" and \"llama3\" are supported";
                Err(inside.unsupported(key, advice))
            }
        }
    }

    fn factor(&self, inside: &ConfigSection<'a>) -> Result<Option<f64>> {
        match inside.f64_opt("factor")? {
            Some(factor) if !(1.0..=FACTOR_MAX).contains(&factor) => {
                Err(inside.wrong("factor", &format!("a number from 1 to {FACTOR_MAX}")))
            }
            factor => Ok(factor),
        }
    }

    fn llama3(&self, inside: &ConfigSection<'a>) -> Result<Llama3Spec> {
        let required = |key: &str, value: Option<f64>| value.ok_or_else(|| inside.missing(key));
        let rotations = |key: &str| required(key, self.inside_number(key)?);
        let low_rotations = rotations("low_freq_factor")?;
        let high_rotations = rotations("high_freq_factor")?;
        if high_rotations <= low_rotations {
            return Err(inside.wrong("high_freq_factor", "a number above `low_freq_factor`"));
        }
        let key = "original_max_position_embeddings";
        if self.section(key).value(key).is_none() {
            return Err(inside.missing(key));
        }
        Ok(Llama3Spec {
            factor: required("factor", self.factor(inside)?)?,
            low_rotations,
            high_rotations,
            original_context: self.original_context(inside, 0)?,
        })
    }

    fn yarn(&self, inside: &ConfigSection<'a>) -> Result<YarnSpec> {
        let context_max = self.top.usize_at("max_position_embeddings")?;
        let original_context = self.original_context(inside, context_max)?;
        let factor = match self.factor(inside)? {
            Some(factor) => factor,
            None => (context_max as f64 / original_context as f64).clamp(1.0, FACTOR_MAX),
        };
        // As in transformers, 0 means absent for all four keys.
        let non_zero = |key| Ok(self.inside_number(key)?.filter(|value| *value != 0.0));
        let beta_fast = non_zero("beta_fast")?.unwrap_or(BETA_FAST);
        let beta_slow = non_zero("beta_slow")?.unwrap_or(BETA_SLOW);
        let stretch = match (non_zero("mscale")?, non_zero("mscale_all_dim")?) {
            (Some(mscale), Some(all_dim)) => {
                YarnSpec::temperature(factor, mscale) / YarnSpec::temperature(factor, all_dim)
            }
            _ => YarnSpec::temperature(factor, 1.0),
        };
        Ok(YarnSpec {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            amplitude: self.inside_number("attention_factor")?.unwrap_or(stretch),
            is_truncated: inside.bool_opt("truncate")?.unwrap_or(true),
        })
    }

    /// Returns the original context. As in transformers, the key at the top takes precedence.
    fn original_context(&self, inside: &ConfigSection<'a>, context_max: usize) -> Result<usize> {
        let key = "original_max_position_embeddings";
        let section = if self.top.value(key).is_some() { &self.top } else { inside };
        match section.usize_opt(key)?.unwrap_or(context_max) {
            0 => Err(section.wrong(key, "at least 1")),
            original_context => Ok(original_context),
        }
    }
}
