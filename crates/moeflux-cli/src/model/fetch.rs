//! Resolves a model that is not present: finds it under its other name, or downloads it first.
//!
//! **Invariant:** nothing is downloaded without a confirmation on the terminal or `--yes`. An
//! existing path is used as it is.

use std::io::{IsTerminal as _, stderr, stdin};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use moeflux::Error;
use moeflux_hub::{Cache, ModelRef};

use crate::failure::CommandResult;
use crate::model::hub;
use crate::model::known;
use crate::output::print;

/// The location of a model.
#[derive(Debug, PartialEq, Eq)]
enum ModelLocation {
    /// The argument is a path, or will be refused as one.
    Path,
    /// In the cache, under this name.
    Cache(ModelRef),
    /// Not present; the hub may have it under this name.
    Hub(ModelRef),
}

/// Makes the value of an option denote a model that is present, if possible. Returns the exit code
/// of a failed download, which has already reported its error.
///
/// # Errors
///
/// Fails with a suggestion for a download, or if the name is ambiguous or unknown.
pub(crate) fn missing(model: &mut Option<PathBuf>, yes: bool) -> CommandResult<Option<ExitCode>> {
    let Some(path) = model.clone() else { return Ok(None) };
    let settings = hub::settings()?;
    let cache = Cache::new(&settings.cache);
    let wanted = match locate(&path, &cache)? {
        ModelLocation::Path => return Ok(None),
        ModelLocation::Cache(wanted) => {
            *model = Some(PathBuf::from(wanted.to_string()));
            return Ok(None);
        }
        ModelLocation::Hub(wanted) => wanted,
    };
    let is_asked = stdin().is_terminal() && stderr().is_terminal();
    if !yes && !is_asked {
        let folder = settings.cache.display();
        let problem = format!(
            "there is no such folder, and no such model in the cache {folder}: `moeflux pull \
             {wanted}` downloads it, and --yes does so here"
        );
        return Err(Error::malformed(&path, problem).into());
    }
    print::stderr_line(&format!("{} is not here: asking the hub for {wanted}", path.display()));
    *model = Some(PathBuf::from(wanted.to_string()));
    pull(&wanted, yes)
}

fn locate(path: &Path, cache: &Cache) -> CommandResult<ModelLocation> {
    let named = hub::named(path);
    if path.exists() {
        let hidden = path.to_str().and_then(|it| it.parse::<ModelRef>().ok());
        if hidden.is_some_and(|it| it.id.as_str().contains('/') && cache.has(&it.id)) {
            let path = path.display();
            print::stderr_line(&format!(
                "note: using the path {path}; a model of this name is in the cache, too"
            ));
        }
        return Ok(ModelLocation::Path);
    }
    if let Some(wanted) = named {
        // A partial download is reported when the model is opened.
        return Ok(if cache.has(&wanted.id) {
            ModelLocation::Path
        } else {
            ModelLocation::Hub(wanted)
        });
    }
    if let Some(unclear) = known::unclear(path) {
        return Err(unclear.into());
    }
    let Some(wanted) = known::named(path).and_then(known::KnownModel::repository) else {
        return Ok(ModelLocation::Path);
    };
    Ok(if cache.has(&wanted.id) {
        ModelLocation::Cache(wanted)
    } else {
        ModelLocation::Hub(wanted)
    })
}

/// Runs `moeflux pull`, which describes the download and asks. A separate process, so that Ctrl-C
/// affects only the download.
fn pull(wanted: &ModelRef, yes: bool) -> CommandResult<Option<ExitCode>> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| Error::Input(format!("cannot find moeflux: {error}")))?;
    let mut command = Command::new(program);
    command.arg("pull").arg(wanted.to_string()).stdout(Stdio::from(stderr()));
    if yes {
        command.arg("--yes");
    }
    let status = command.status();
    let status =
        status.map_err(|error| Error::Input(format!("cannot run `moeflux pull`: {error}")))?;
    if status.success() {
        return Ok(None);
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Some(code.map_or(ExitCode::FAILURE, ExitCode::from)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn a_name_is_a_path_a_model_in_the_cache_or_one_of_the_hub() {
        let dir = TempDir::new();
        let cache = Cache::new(dir.path());
        let wanted = |text: &str| text.parse::<ModelRef>().unwrap();
        let found = |text: &str| locate(Path::new(text), &cache).unwrap();
        let repository = "mlx-community/Qwen3-30B-A3B-4bit";
        assert_eq!(found("src"), ModelLocation::Path);
        assert_eq!(found("./nowhere"), ModelLocation::Path);
        assert_eq!(found("nowhere.gguf"), ModelLocation::Path);
        assert_eq!(found("a/b:Q4_K_M"), ModelLocation::Hub(wanted("a/b:Q4_K_M")));
        assert_eq!(found("https://hf.co/a/b"), ModelLocation::Hub(wanted("a/b")));
        assert_eq!(found("qwen3-30b-a3b"), ModelLocation::Hub(wanted(repository)));
        fs::create_dir(dir.path().join("models--mlx-community--Qwen3-30B-A3B-4bit")).unwrap();
        assert_eq!(found("qwen3-30b-a3b"), ModelLocation::Cache(wanted(repository)));
        assert_eq!(found(repository), ModelLocation::Path);
        let error = locate(Path::new("qwen3"), &cache).unwrap_err().to_string();
        assert!(error.contains("is ambiguous"), "{error}");
    }
}
