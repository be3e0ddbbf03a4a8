//! The cache of the Hugging Face hub, as located by the environment, and the names in it.
//!
//! **Invariant:** an existing folder takes precedence over a name in the cache.

use std::path::{Path, PathBuf};

use moeflux::provider::format::RawConfig;
use moeflux::provider::spec::ModelSpec;
use moeflux::{Error, Result};
use moeflux_hub::{Cache, ModelRef, RepoId, Settings};

use crate::failure::{CommandFailure, CommandResult};
use crate::system::cache;

/// Extensions of files, as opposed to names of models on the hub.
const FILE_ENDS: [&str; 3] = ["json", "safetensors", "gguf"];

/// Reads the settings from the environment variables of `huggingface_hub`.
pub(crate) fn settings() -> CommandResult<Settings> {
    let variable =
        |name: &str| cache::variable(name).and_then(|it| it.into_os_string().into_string().ok());
    Ok(Settings::from_environment(&variable)?)
}

impl From<moeflux_hub::Error> for CommandFailure {
    fn from(error: moeflux_hub::Error) -> Self {
        use moeflux_hub::Error as Hub;
        match error {
            Hub::Asked(problem) => Self::Usage(problem),
            Hub::Cancelled => Self::interrupted(),
            Hub::Io { action, path, source } => Error::io(action, &path)(source).into(),
            other => Error::Input(other.to_string()).into(),
        }
    }
}

/// Parses `OWNER/NAME[:QUANT][@REVISION]`, or a link of the hub's pages.
pub(crate) fn wanted(text: &str) -> std::result::Result<ModelRef, String> {
    text.parse::<ModelRef>().map_err(|error| error.to_string())
}

/// Parses the same for a download, which requires an owner: every model on the hub has one, so a
/// bare name would not be found.
pub(crate) fn wanted_of_owner(text: &str) -> std::result::Result<ModelRef, String> {
    let wanted = wanted(text)?;
    match wanted.id.to_string().contains('/') {
        true => Ok(wanted),
        false => Err(format!("write OWNER/NAME, with the owner of the repository: .../{wanted}")),
    }
}

/// Returns the folder that `--model` denotes: the path itself, or the folder of a model in the
/// cache.
pub(crate) fn found(path: &Path) -> Result<PathBuf> {
    let Some(wanted) = named(path) else { return Ok(path.to_owned()) };
    let Ok(settings) = settings() else { return Ok(path.to_owned()) };
    let cache = Cache::new(&settings.cache);
    cache.find(&wanted).map_err(|error| match error {
        moeflux_hub::Error::Cache(problem) if cache.has(&wanted.id) => {
            Error::Input(format!("{problem}; `moeflux pull {wanted}` completes it"))
        }
        _ => {
            let folder = settings.cache.display();
            Error::malformed(path, format!(
                "there is no such folder, and no such model in the cache {folder}: `moeflux pull \
                 {wanted}` downloads it"
            ))
        }
    })
}

/// Parses a path that does not exist but could be a name on the hub:
/// `OWNER/NAME[:QUANT][@REVISION]`, or a link.
pub(crate) fn named(path: &Path) -> Option<ModelRef> {
    let text = path.to_str()?;
    if text.starts_with("https://") || text.starts_with("http://") || text.starts_with("hf.co/") {
        return text.parse().ok();
    }
    let id = text.split('@').next()?;
    let end = Path::new(id).extension().unwrap_or_default();
    let is_file = FILE_ENDS.iter().any(|it| end.eq_ignore_ascii_case(it));
    if path.exists() || is_file || id.matches('/').count() != 1 {
        return None;
    }
    text.parse().ok()
}

/// Returns the name of a model: that of its GGUF file, its repository if it is in the cache, or its
/// folder.
pub(crate) fn name_of(dir: &Path) -> String {
    if let Some(stem) = dir.file_stem().filter(|_| dir.is_file()) {
        return stem.to_string_lossy().into_owned();
    }
    let dir = dunce::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let of_hub = RepoId::of_snapshot(&dir).map(|id| id.to_string());
    let of_dir = || Some(dir.file_name()?.to_string_lossy().into_owned());
    of_hub.or_else(of_dir).unwrap_or_else(|| "moeflux".to_owned())
}

/// Returns a model's type and the format of its weights. Fails if it cannot be run.
pub(crate) fn described(config: &[u8]) -> Result<String> {
    let raw = RawConfig::parse(Path::new("config.json"), config)?;
    let spec = ModelSpec::from_config(&raw)?;
    let model_type = raw.root().str_opt("model_type")?.unwrap_or("a model");
    let text = |key: &str| raw.root().str_opt(key).ok().flatten();
    let stored = match (spec.quantisation.default, spec.quantisation.native) {
        (Some(params), _) => format!("{} bits in groups of {}", params.bits, params.group),
        (None, Some(native)) => native.name().to_owned(),
        (None, None) => {
            let dtype = text("torch_dtype").or_else(|| text("dtype")).unwrap_or("");
            moeflux_io::OneLine::name(dtype).to_string()
        }
    };
    let comma = if stored.is_empty() { "" } else { ", " };
    Ok(format!("{model_type}{comma}{stored}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_distinguished_from_paths() {
        for name in ["Qwen/Qwen3-30B-A3B", "a/b@v1", "a/b@refs/pr/1", "a/b:Q4_K_M"] {
            assert_eq!(named(Path::new(name)).unwrap().to_string(), name);
        }
        for path in
            ["a", "./a", "/a/b", "a/b/c", "../a", "src/main.json", "a/b.gguf", "a\\b", "C:/a"]
        {
            assert_eq!(named(Path::new(path)), None, "{path}");
        }
        // The tests run in the crate's folder, where this is a folder.
        assert_eq!(named(Path::new("src/commands")), None);
    }
}
