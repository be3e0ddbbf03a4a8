//! `moeflux list`: lists the models in the hub's cache.
//!
//! **Invariant:** reads names, lengths, listings and configs; never weights.

use std::path::Path;

use clap::Args;
use moeflux::provider::format::gguf_at;
use moeflux::provider::model::Headers;
use moeflux::{ByteCount, Model};
use moeflux_hub::{Cache, Repo, Snapshot, State};
use moeflux_io::OneLine;
use serde_json::{Value, json};

use crate::failure::CommandResult;
use crate::model::hub::{described, settings};

/// Published configs have at most 1 MB.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// The arguments of `moeflux list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A revision, and whether it can be run.
struct SnapshotRow<'a> {
    snapshot: &'a Snapshot,
    runs: Result<String, String>,
}

/// Lists the models. Returns the text to print.
///
/// # Errors
///
/// Fails if the cache cannot be read.
pub(crate) fn run(args: &ListArgs) -> CommandResult<String> {
    let settings = settings()?;
    let repos = Cache::new(&settings.cache).repos()?;
    if args.json {
        let repos: Vec<Value> = repos.iter().map(repo_json).collect();
        return Ok(format!("{:#}", json!({"cache": settings.cache, "models": repos})));
    }
    if repos.is_empty() {
        return Ok(format!("no models in {}", settings.cache.display()));
    }
    let total: u64 = repos.iter().map(|it| it.n_bytes).sum();
    let mut lines: Vec<String> = repos.iter().flat_map(repo_lines).collect();
    lines.push(format!("{} in {}", ByteCount(total).rounded(), settings.cache.display()));
    Ok(lines.join("\n"))
}

/// Determines whether a revision can be run, and why not.
fn row(snapshot: &Snapshot) -> SnapshotRow<'_> {
    let config =
        moeflux::provider::format::read_file(&snapshot.dir.join("config.json"), CONFIG_BYTES_MAX);
    let runs = match (&snapshot.state, config) {
        (State::NoWeights, _) if snapshot.has_gguf => gguf_described(&snapshot.dir),
        (State::NoWeights, _) => Err("no *.safetensors".to_owned()),
        (State::Missing { .. }, _) => {
            Err(format!("incomplete: {}", snapshot.state.missing().unwrap_or_default()))
        }
        (State::Whole, Err(_)) => Err("no config.json".to_owned()),
        (State::Whole, Ok(config)) => {
            described(&config).map_err(|error| format!("moeflux cannot run it: {error}"))
        }
    };
    SnapshotRow { snapshot, runs }
}

/// Like [`described`], for a folder with a GGUF file.
fn gguf_described(dir: &Path) -> Result<String, String> {
    // Several files can be run, each by its own name.
    gguf_at(dir).map_err(|error| error.to_string())?;
    let model = Model::open(dir).map_err(|error| format!("moeflux cannot run it: {error}"))?;
    let blueprint = model.blueprint();
    let kinds = blueprint.manifest.kinds();
    let most = kinds.first().map(|count| format!(", mostly {}", count.kind)).unwrap_or_default();
    Ok(format!("{}{most}", blueprint.model_type))
}

fn repo_lines(repo: &Repo) -> Vec<String> {
    let size = ByteCount(repo.n_bytes).rounded();
    let partial = match repo.incomplete_bytes {
        0 => String::new(),
        n_bytes => format!(", {} of it in incomplete files", ByteCount(n_bytes).rounded()),
    };
    let mut lines = vec![format!("{}: {size}{partial}", repo.id)];
    lines.extend(repo.snapshots.iter().map(|snapshot| {
        let SnapshotRow { snapshot, runs } = row(snapshot);
        let refs: Vec<String> =
            snapshot.refs.iter().map(|it| OneLine::name(it).to_string()).collect();
        let refs = if refs.is_empty() { "-".to_owned() } else { refs.join(" ") };
        let size = ByteCount(snapshot.n_bytes).rounded();
        let (mark, text) = match &runs {
            Ok(text) => (' ', text),
            Err(problem) => ('!', problem),
        };
        format!("{mark} {refs:<12} {:.12} {size:>10}  {text}", snapshot.commit)
    }));
    lines
}

fn repo_json(repo: &Repo) -> Value {
    let revision = |snapshot: &Snapshot| {
        let SnapshotRow { snapshot, runs } = row(snapshot);
        let (state, n_missing) = match &snapshot.state {
            State::Whole => ("whole", 0),
            State::Missing { n_files, .. } => ("incomplete", *n_files),
            State::NoWeights => ("no weights", 0),
        };
        json!({
            "commit": snapshot.commit,
            "refs": snapshot.refs,
            "dir": snapshot.dir,
            "bytes": snapshot.n_bytes,
            "state": state,
            "n_files_missing": n_missing,
            "has_gguf": snapshot.has_gguf,
            "model": runs.as_ref().ok(),
            "problem": runs.as_ref().err(),
        })
    };
    json!({
        "name": repo.id.as_str(),
        "bytes": repo.n_bytes,
        "incomplete_bytes": repo.incomplete_bytes,
        "revisions": repo.snapshots.iter().map(revision).collect::<Vec<_>>(),
    })
}
