//! `moeflux prefix list`: what is saved, by model and owner.
//!
//! **Invariant:** reads headers and names of models, and changes nothing. The folder has no names
//! of owners: they are known by their hashes alone.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use clap::Args;
use moeflux::ByteCount;
use moeflux::provider::error::grouped;
use moeflux_io::OneLine;
use moeflux_prefix::{
    ModelName, ObjectFacts, ObjectKind, OwnerId, PlaceKey, PrefixNamespace, Store,
};
use serde_json::{Value, json};

use crate::commands::prefix::{existing, failed, nothing};
use crate::failure::CommandResult;
use crate::options::cache::{CacheDirArgs, default_bytes, shown};
use crate::system::clock;
use crate::system::measurements::ago;

/// Digits of a hash in the table.
const N_DIGITS: usize = 8;

/// The arguments of `moeflux prefix list`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "The digits after a model's name are a hash of its weights, of the arithmetic \
    that computes it and of the owner: conversations in different lines share nothing. Owners are \
    shown by a hash of their key."
)]
pub(super) struct PrefixListArgs {
    #[command(flatten)]
    dir: CacheDirArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What one owner saved with one model.
#[derive(Debug, Default, PartialEq, Eq)]
struct SavedGroup {
    /// The model's name, if it is known.
    name: Option<String>,
    n_conversations: usize,
    /// They belong to a tokenizer and its chat template, and are in groups of their own.
    n_answers: usize,
    n_objects: usize,
    n_tokens: u64,
    n_bytes: u64,
    last_used: Duration,
}

/// Lists what is saved. Returns the text to print.
pub(super) fn run(args: &PrefixListArgs) -> CommandResult<String> {
    let (objects, names) = match existing(&args.dir)? {
        Some(folder) => {
            let store = Store::open_to_read(folder).map_err(failed)?;
            (store.list(), store.model_names().map_err(failed)?)
        }
        None => (Vec::new(), Vec::new()),
    };
    let groups = groups(&objects, &names);
    let folder = args.dir.folder()?;
    let n_bytes: u64 = groups.iter().map(|(_, group)| group.n_bytes).sum();
    if args.json {
        let groups: Vec<Value> = groups.iter().map(group_json).collect();
        let found = json!({"cache_dir": folder.path(), "bytes": n_bytes, "models": groups});
        return Ok(format!("{found:#}"));
    }
    if groups.is_empty() {
        return nothing(&args.dir);
    }
    let titles = ["conversations", "tokens", "size"];
    let mut lines = vec![row("owner", titles, "last used", "model")];
    lines.extend(groups.iter().map(group_line));
    lines.push(format!(
        "{} in {}; without --cache-size, programs keep it below {}",
        ByteCount(n_bytes).rounded(),
        shown(folder.path()),
        ByteCount(default_bytes(folder.path())).rounded()
    ));
    Ok(lines.join("\n"))
}

/// Adds up objects, the latest used first.
fn groups(objects: &[ObjectFacts], names: &[ModelName]) -> Vec<(PrefixNamespace, SavedGroup)> {
    let segments = || objects.iter().filter(|it| it.id.kind == ObjectKind::Segment);
    let continued: HashSet<PlaceKey> = segments().map(|it| it.id.start).collect();
    let mut groups: BTreeMap<PrefixNamespace, SavedGroup> = BTreeMap::new();
    for object in objects {
        let group = groups.entry(object.namespace).or_default();
        let is_end = object.id.kind == ObjectKind::Segment && !continued.contains(&object.id.end);
        group.n_conversations += usize::from(is_end);
        group.n_objects += 1;
        group.n_answers += usize::from(object.id.kind == ObjectKind::Answer);
        group.n_tokens += object.end - object.first;
        group.n_bytes += object.file_bytes;
        group.last_used = group.last_used.max(object.last_used);
    }
    for (namespace, group) in &mut groups {
        let name = names.iter().find(|it| it.is_of(*namespace));
        group.name = name.map(|it| OneLine::name(&it.name).to_string());
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.last_used));
    groups
}

fn group_line((namespace, group): &(PrefixNamespace, SavedGroup)) -> String {
    let n_conversations = match group.n_conversations {
        0 => "-".to_owned(),
        n => grouped(n as u64),
    };
    let n_tokens = grouped(group.n_tokens);
    let numbers = [&n_conversations, &n_tokens, &*ByteCount(group.n_bytes).rounded()];
    let owner = match namespace.owner() {
        OwnerId::ANONYMOUS => "without key".to_owned(),
        owner => digits(owner.to_string()),
    };
    let age_s = clock::since_1970().saturating_sub(group.last_used).as_secs();
    let age = ago(i64::try_from(age_s).unwrap_or(i64::MAX));
    let hash = digits(namespace.to_string());
    let model = match &group.name {
        Some(name) => format!("{name} ({hash})"),
        None if group.n_answers > 0 => format!("sampled tokens of answers ({hash})"),
        None => hash,
    };
    row(&owner, numbers, &age, &model)
}

fn row(owner: &str, [conversations, tokens, size]: [&str; 3], last: &str, model: &str) -> String {
    format!("{owner:<12} {conversations:>13} {tokens:>12} {size:>10}  {last:<15}  {model}")
}

fn digits(mut hash: String) -> String {
    hash.truncate(N_DIGITS);
    hash
}

fn group_json((namespace, group): &(PrefixNamespace, SavedGroup)) -> Value {
    let owner = namespace.owner();
    json!({
        "model": group.name,
        "hash": namespace.to_string(),
        "owner": (owner != OwnerId::ANONYMOUS).then(|| owner.to_string()),
        "n_conversations": group.n_conversations,
        "n_answers": group.n_answers,
        "n_files": group.n_objects,
        "n_tokens": group.n_tokens,
        "bytes": group.n_bytes,
        "last_used_s": group.last_used.as_secs(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Arc;

    use moeflux_prefix::{NewObject, PrefixFolder, StoreLimits, WallClock};
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[derive(Debug)]
    struct NoClock;

    impl WallClock for NoClock {
        fn since_1970(&self) -> Duration {
            Duration::from_secs(1_000)
        }
    }

    #[test]
    fn branches_are_conversations_and_owners_have_lines_of_their_own() {
        let root = TempDir::new();
        let folder = PrefixFolder::new(root.file("cache"), Arc::new(NoClock));
        let limits = StoreLimits { n_bytes_max: 1 << 30, write_bytes_per_day: 1 << 30 };
        let store = Store::open(folder, limits).unwrap();
        let anonymous = PrefixNamespace::new(b"model", OwnerId::ANONYMOUS);
        let owned = PrefixNamespace::new(b"model", store.owner("a-key").unwrap());
        let put = |namespace, kind, tokens: &[u32], first| {
            let payload_bytes = 3;
            let object = NewObject { namespace, kind, tokens, first, payload_bytes, saved_ms: 1 };
            let mut writer = store.begin(&object).unwrap();
            writer.write_all(b"abc").unwrap();
            writer.commit().unwrap();
        };
        for (tokens, first) in [(&[1, 2][..], 0), (&[1, 2, 3, 4], 2), (&[1, 2, 9], 2), (&[5], 0)] {
            put(anonymous, ObjectKind::Segment, tokens, first);
        }
        put(anonymous, ObjectKind::State, &[1, 2, 9], 3);
        put(owned, ObjectKind::Segment, &[1, 2], 0);
        put(PrefixNamespace::new(b"a", OwnerId::ANONYMOUS), ObjectKind::Answer, &[1, 2, 3], 2);
        store.name_model(b"model", "ann/model").unwrap();
        let groups = groups(&store.list(), &store.model_names().unwrap());
        let words = |line: String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut lines: Vec<String> = groups.iter().map(|it| words(group_line(it))).collect();
        // Hexadecimal digits come before `without key`, and `-` before digits.
        lines.sort();
        let answers = lines.remove(1);
        assert!(answers.starts_with("without key - 1 4.11 kB "), "{answers}");
        assert!(answers.contains(" sampled tokens of answers ("), "{answers}");
        let owner = digits(owned.owner().to_string());
        // A file has a block for its header, 3 bytes, and a checksum of 8.
        let begins = [format!("{owner} 1 2 4.11 kB "), "without key 3 6 20.54 kB ".to_owned()];
        for ((line, begin), namespace) in lines.iter().zip(begins).zip([owned, anonymous]) {
            let end = format!(" ann/model ({})", digits(namespace.to_string()));
            assert!(line.starts_with(&begin) && line.ends_with(&end), "{line}");
        }
        assert_eq!(lines.len(), 2);
        assert!(!lines.join("").contains("a-key"), "a key is a secret");
    }
}
