//! Reads a model's recommended sampling settings from `generation_config.json`.
//!
//! Sampling is greedy only if the file says `"do_sample": false`. Chat models repeat themselves
//! under greedy decoding, so a missing key or file means sampling. If the file is missing or sets
//! no sampling value, temperature 0.7 and top-p 0.95 apply. Otherwise, a missing value is off; the
//! top-k of 50 that transformers assumes is not added. End tokens of the same file are read
//! elsewhere.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::{parse_json, read_file_if_there, word};
use crate::sample::config::SamplerConfig;

const FILE: &str = "generation_config.json";
/// Published files have a few hundred bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
const TEMPERATURE: f32 = 0.7;
const TOP_P: f32 = 0.95;

/// A value of the file, or the problem with it.
type SettingResult<T> = std::result::Result<T, String>;

/// Recommended sampling settings; values that are not given are off.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerDefaults {
    config: SamplerConfig,
}

impl Default for SamplerDefaults {
    /// The settings for a model without the file.
    fn default() -> Self {
        let config =
            SamplerConfig { temperature: TEMPERATURE, top_p: TOP_P, ..SamplerConfig::greedy() };
        Self { config }
    }
}

impl SamplerDefaults {
    /// Reads the file in a model's folder.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the file is not a JSON object, or a value has the wrong type or is
    /// out of range; it names the key. [`Error::Io`] if the file cannot be read.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let Some(bytes) = read_file_if_there(&path, FILE_BYTES_MAX)? else {
            return Ok(Self::default());
        };
        let json = parse_json(&bytes)
            .map_err(|error| Error::malformed(&path, format!("is not JSON: {error}")))?;
        Self::from_json(&json).map_err(|problem| Error::malformed(&path, problem))
    }

    /// Reads the settings from the parsed file.
    ///
    /// # Errors
    /// [`Error::Malformed`] if a value has the wrong type or is out of range; it names the key.
    pub fn from_generation_config(json: &Value) -> Result<Self> {
        Self::from_values(Path::new(FILE), json)
    }

    /// As [`Self::from_generation_config`], with values from the file at `path`.
    ///
    /// # Errors
    /// As [`Self::from_generation_config`].
    pub fn from_values(path: &Path, json: &Value) -> Result<Self> {
        Self::from_json(json).map_err(|problem| Error::malformed(path, problem))
    }

    fn from_json(json: &Value) -> SettingResult<Self> {
        if !json.is_object() {
            return Err("not a JSON object".to_owned());
        }
        let temperature = number(json, "temperature")?;
        let top_k = count(json, "top_k")?;
        let top_p = number(json, "top_p")?;
        let min_p = number(json, "min_p")?;
        let named = temperature.is_some() || top_k.is_some() || top_p.is_some() || min_p.is_some();
        let mut config = if named { SamplerConfig::greedy() } else { Self::default().config };
        if named {
            config.temperature = temperature.unwrap_or(1.0);
            config.top_k = top_k.unwrap_or(0);
            config.top_p = top_p.unwrap_or(1.0);
            config.min_p = min_p.unwrap_or(0.0);
        }
        config.repetition_penalty = number(json, "repetition_penalty")?.unwrap_or(1.0);
        if boolean(json, "do_sample")? == Some(false) {
            config.temperature = 0.0;
        }
        config.validate().map_err(|error| error.to_string())?;
        Ok(Self { config })
    }

    /// Returns a config with these values and a seed; everything else is off.
    #[must_use]
    pub fn config(&self, seed: u64) -> SamplerConfig {
        SamplerConfig { seed, ..self.config.clone() }
    }
}

fn given<'j>(json: &'j Value, key: &str) -> Option<&'j Value> {
    json.get(key).filter(|value| !value.is_null())
}

fn wrong(key: &str, value: &Value, wanted: &str) -> String {
    let shown = word(value).map_or_else(|| value.to_string(), str::to_owned);
    let shown: String = shown.chars().take(60).collect();
    format!("`{key}` is {shown}, which is not {wanted}")
}

#[expect(clippy::cast_possible_truncation, reason = "f64 to f32 rounds; ranges are checked later")]
fn number(json: &Value, key: &str) -> SettingResult<Option<f32>> {
    let Some(value) = given(json, key) else { return Ok(None) };
    value.as_f64().map(|number| Some(number as f32)).ok_or_else(|| wrong(key, value, "a number"))
}

/// Some writers use -1 for "top-k is off".
fn count(json: &Value, key: &str) -> SettingResult<Option<usize>> {
    let Some(value) = given(json, key) else { return Ok(None) };
    if value.as_i64() == Some(-1) {
        return Ok(Some(0));
    }
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    count.map(Some).ok_or_else(|| wrong(key, value, "a whole number of 0 or more"))
}

fn boolean(json: &Value, key: &str) -> SettingResult<Option<bool>> {
    let Some(value) = given(json, key) else { return Ok(None) };
    value.as_bool().map(Some).ok_or_else(|| wrong(key, value, "true or false"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(json: &Value, temperature: f32, top_k: usize, top_p: f32) {
        let config = SamplerDefaults::from_generation_config(json).unwrap().config(9);
        assert_eq!((config.temperature, config.top_k, config.top_p), (temperature, top_k, top_p));
        assert_eq!(config.seed, 9);
    }

    #[test]
    fn published_files() {
        let qwen = json!({"bos_token_id": 151_643, "do_sample": true, "eos_token_id": [1, 2],
            "temperature": 0.6, "top_k": 20, "top_p": 0.95});
        check(&qwen, 0.6, 20, 0.95);
        check(&json!({"do_sample": true, "temperature": 0.6, "top_p": 0.95}), 0.6, 0, 0.95);
        check(&json!({"do_sample": false, "temperature": 0.6}), 0.0, 0, 1.0);
        check(&json!({"top_k": -1, "temperature": 1}), 1.0, 0, 1.0);
        check(&json!({"top_p": 0.5, "temperature": null}), 1.0, 0, 0.5);
        check(&json!({"eos_token_id": 1}), 0.7, 0, 0.95);
        assert_eq!(
            SamplerDefaults::default().config(0),
            SamplerDefaults::from_generation_config(&json!({})).unwrap().config(0)
        );
    }

    #[test]
    fn wrong_values_are_named_by_key() {
        let refused =
            |json| SamplerDefaults::from_generation_config(&json).unwrap_err().to_string();
        assert_eq!(
            refused(json!({"top_p": "high"})),
            "generation_config.json: `top_p` is \"high\", which is not a number"
        );
        assert!(refused(json!({"top_k": 2.5})).contains("`top_k` is 2.5"));
        assert!(refused(json!({"do_sample": 1})).contains("`do_sample` is 1"));
        assert!(refused(json!({"min_p": 2})).contains("min_p is 2: give a number from 0 to 1"));
        assert!(refused(json!([1])).contains("not a JSON object"));
    }
}
