//! What `--model` names and is not here: found under its other name, or downloaded first.
//!
//! **Invariant:** nothing is downloaded unless it was asked and answered on the terminal, or
//! `--yes` was given. A path that exists means itself.

use std::io::{IsTerminal as _, stderr, stdin};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use moeflux::Error;
use moeflux_hub::{Cache, Wanted};

use crate::args::ModelArgs;
use crate::failure::Outcome;
use crate::hub;
use crate::known;
use crate::print;

/// Where a model is.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// What was given is a path, or will be refused as one.
    Path,
    /// In the cache, under this name.
    Cache(Wanted),
    /// Nowhere here; the hub may have it under this name.
    Hub(Wanted),
}

/// Makes `--model` name something that is here, where that can be done. Answers the exit code of a
/// download that failed, which has said why.
///
/// # Errors
///
/// What to download instead, or why the name means nothing.
pub(crate) fn missing(args: &mut ModelArgs) -> Outcome<Option<ExitCode>> {
    let Some(path) = args.model.clone() else { return Ok(None) };
    let settings = hub::settings()?;
    let cache = Cache::new(&settings.cache);
    let wanted = match place(&path, &cache)? {
        Place::Path => return Ok(None),
        Place::Cache(wanted) => {
            args.model = Some(PathBuf::from(wanted.to_string()));
            return Ok(None);
        }
        Place::Hub(wanted) => wanted,
    };
    let is_asked = stdin().is_terminal() && stderr().is_terminal();
    if !args.yes && !is_asked {
        let folder = settings.cache.display();
        let problem = format!(
            "there is no such folder, and no such model in the cache {folder}: `moeflux pull \
             {wanted}` downloads it, and --yes does so here"
        );
        return Err(Error::malformed(&path, problem).into());
    }
    print::aside(&format!("{} is not here: asking the hub for {wanted}", path.display()));
    args.model = Some(PathBuf::from(wanted.to_string()));
    pull(&wanted, args.yes)
}

fn place(path: &Path, cache: &Cache) -> Outcome<Place> {
    let named = hub::named(path);
    if path.exists() {
        let hidden = path.to_str().and_then(|it| it.parse::<Wanted>().ok());
        if hidden.is_some_and(|it| it.id.as_str().contains('/') && cache.has(&it.id)) {
            let path = path.display();
            print::aside(&format!(
                "note: {path} is a path here, and is used; a model of this name is in the cache, \
                 too"
            ));
        }
        return Ok(Place::Path);
    }
    if let Some(wanted) = named {
        // One that is there in part is told of by who opens it.
        return Ok(if cache.has(&wanted.id) { Place::Path } else { Place::Hub(wanted) });
    }
    if let Some(unclear) = known::unclear(path) {
        return Err(unclear.into());
    }
    let Some(wanted) = known::named(path).and_then(known::Known::repository) else {
        return Ok(Place::Path);
    };
    Ok(if cache.has(&wanted.id) { Place::Cache(wanted) } else { Place::Hub(wanted) })
}

/// Runs `moeflux pull`, which says what it would download and asks. It is a process of its own, so
/// that Ctrl-C means the download alone.
fn pull(wanted: &Wanted, yes: bool) -> Outcome<Option<ExitCode>> {
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

    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn a_name_is_a_path_a_model_in_the_cache_or_one_of_the_hub() {
        let dir = TestDir::new("fetch");
        let cache = Cache::new(dir.path());
        let wanted = |text: &str| text.parse::<Wanted>().unwrap();
        let found = |text: &str| place(Path::new(text), &cache).unwrap();
        let repository = "mlx-community/Qwen3-30B-A3B-4bit";
        assert_eq!(found("src"), Place::Path);
        assert_eq!(found("./nowhere"), Place::Path);
        assert_eq!(found("nowhere.gguf"), Place::Path);
        assert_eq!(found("a/b:Q4_K_M"), Place::Hub(wanted("a/b:Q4_K_M")));
        assert_eq!(found("https://hf.co/a/b"), Place::Hub(wanted("a/b")));
        assert_eq!(found("qwen3-30b-a3b"), Place::Hub(wanted(repository)));
        fs::create_dir(dir.path().join("models--mlx-community--Qwen3-30B-A3B-4bit")).unwrap();
        assert_eq!(found("qwen3-30b-a3b"), Place::Cache(wanted(repository)));
        assert_eq!(found(repository), Place::Path);
        let error = place(Path::new("qwen3"), &cache).unwrap_err().to_string();
        assert!(error.contains("means several models"), "{error}");
    }
}
