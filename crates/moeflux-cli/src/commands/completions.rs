//! `moeflux completions`: shell completion of commands, options, and the names of models.
//!
//! A shell runs this program for each word, so that it offers the models present at that time.
//! **Invariant:** reads no file of a model and uses no network.

use std::env;
use std::ffi::OsStr;

use clap::{Args, Command, ValueEnum};
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Shells};
use moeflux_hub::Cache;

use crate::failure::{CommandFailure, CommandResult};
use crate::model::hub;
use crate::model::known::KNOWN;

/// Names the shell that requests completions.
const VARIABLE: &str = "MOEFLUX_COMPLETE";

/// The arguments of `moeflux completions`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "In bash, this line enables completion; it belongs in ~/.bashrc: \
    `source <(moeflux completions bash)`")]
pub(crate) struct CompletionsArgs {
    /// Shell that the script is for
    #[arg(value_enum)]
    shell: Shell,
}

/// The shells that can ask.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

/// Completes the line given by a shell. Returns whether there was one.
///
/// # Errors
///
/// [`CommandFailure::Usage`] if the shell is unknown.
pub(crate) fn complete(command: fn() -> Command) -> CommandResult<bool> {
    let env = CompleteEnv::with_factory(|| with_models(command())).var(VARIABLE);
    let dir = env::current_dir().ok();
    let done = env.try_complete(env::args_os(), dir.as_deref());
    done.map_err(|error| CommandFailure::Usage(format!("{VARIABLE}: {}", error.kind())))
}

/// Returns the script that enables completion in a shell.
pub(crate) fn run(args: &CompletionsArgs) -> CommandResult<String> {
    let shell = args.shell.to_possible_value().map(|it| it.get_name().to_owned());
    let shells = Shells::builtins();
    let shell = shell.as_deref().and_then(|name| shells.completer(name));
    let mut script = Vec::new();
    shell
        .expect("clap completes for each of these shells")
        .write_registration(VARIABLE, "moeflux", "moeflux", "moeflux", &mut script)
        .expect("a vector takes every byte");
    Ok(String::from_utf8_lossy(&script).trim_end().to_owned())
}

/// Sources of the names of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameSource {
    /// Models of the hub's cache.
    Cached,
    /// Published models that are known by name.
    Known,
    /// The repositories of known models.
    Repositories,
}

/// Returns whether an argument accepts folders and which names, according to its `value_name` in
/// the help.
fn taken(command: &str, value_name: &str) -> (bool, &'static [NameSource]) {
    let mut parts = value_name.split('|');
    let names: &[NameSource] = match command {
        "pull" => &[NameSource::Repositories],
        _ if parts.any(|part| part == "NAME") => &[NameSource::Cached, NameSource::Known],
        _ => &[NameSource::Cached],
    };
    (value_name.contains("DIR"), names)
}

/// Adds completion to each argument that accepts a model, of a command and those below it.
fn with_models(command: Command) -> Command {
    let of = command.get_name().to_owned();
    let command = command.mut_args(|arg| {
        let names = arg.get_value_names().unwrap_or_default();
        match names.first().filter(|it| it.contains("OWNER/NAME")) {
            Some(name) => {
                let taken = taken(&of, name);
                arg.add(ArgValueCompleter::new(move |typed: &OsStr| candidates(taken, typed)))
            }
            None => arg,
        }
    });
    command.mut_subcommands(with_models)
}

fn candidates((is_path, names): (bool, &[NameSource]), typed: &OsStr) -> Vec<CompletionCandidate> {
    let names = names.iter().flat_map(|names| match names {
        NameSource::Cached => cached(),
        NameSource::Known => KNOWN.iter().map(|it| it.name.to_owned()).collect(),
        NameSource::Repositories => {
            KNOWN.iter().filter_map(|it| Some(it.repository()?.to_string())).collect()
        }
    });
    let names: Vec<String> = names.collect();
    let mut found = typed.to_str().map(|typed| beginning(&names, typed)).unwrap_or_default();
    if is_path {
        found.extend(PathCompleter::any().complete(typed));
    }
    found
}

/// Returns the names with the typed prefix, in the typed case, since a shell replaces the word with
/// them.
fn beginning(names: &[String], typed: &str) -> Vec<CompletionCandidate> {
    let begins = |name: &str| {
        let start = name.get(..typed.len())?;
        start.eq_ignore_ascii_case(typed).then(|| format!("{typed}{}", &name[typed.len()..]))
    };
    names.iter().filter_map(|name| begins(name)).map(CompletionCandidate::new).collect()
}

/// Returns the models in the cache; none if it cannot be read.
fn cached() -> Vec<String> {
    let repos = hub::settings().ok().and_then(|it| Cache::new(&it.cache).repos().ok());
    repos.unwrap_or_default().iter().map(|repo| repo.id.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_the_letters_that_were_typed() {
        let names = ["GLM-5".to_owned(), "gpt-oss-20b".to_owned(), "Größe".to_owned()];
        let found = |typed: &str| -> Vec<String> {
            let found = beginning(&names, typed);
            found.iter().map(|it| it.get_value().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(found("g"), ["gLM-5", "gpt-oss-20b", "größe"]);
        assert_eq!(found("GLM"), ["GLM-5"]);
        assert_eq!(found("Gr\u{f6}"), ["Größe"]);
        assert_eq!(found("GrÖ"), [""; 0]);
        assert_eq!(found(""), ["GLM-5", "gpt-oss-20b", "Größe"]);
    }

    #[test]
    fn completions_follow_the_value_names_of_the_help() {
        let of_generate = taken("generate", "DIR|FILE.gguf|OWNER/NAME[:QUANT]");
        assert_eq!(of_generate, (true, &[NameSource::Cached][..]));
        let of_pull = taken("pull", "OWNER/NAME[:QUANT][@REVISION]");
        assert_eq!(of_pull, (false, &[NameSource::Repositories][..]));
        let of_plan = taken("plan", "NAME|CONFIG.json|DIR|OWNER/NAME[:QUANT]");
        assert_eq!(of_plan, (true, &[NameSource::Cached, NameSource::Known][..]));
    }
}
