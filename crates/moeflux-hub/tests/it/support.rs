//! A cache for one test, and its contents.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moeflux_hub::{
    Cache, Error, FileSelection, Glob, Hub, HubTimeouts, Pulled, Remote, Result, Settings,
    StopFlag, Token, Trust,
};
use moeflux_testing::hub::{Access, HostedContents, HubFile, HubServer};
use moeflux_testing::temp_dir::TempDir;

/// The repository of most tests.
pub(crate) const ID: &str = "owner/model";

/// The first commit of the model.
pub(crate) const FIRST: &str = "0123456789abcdef0123456789abcdef01234567";

/// Another commit of the model.
pub(crate) const SECOND: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// The size of a piece in the tests' downloads: small files have many.
pub(crate) const PIECE: u64 = 8 << 10;

/// A hub, and a cache that is empty.
pub(crate) struct Bench {
    pub(crate) server: HubServer,
    pub(crate) root: PathBuf,
    _dir: TempDir,
}

impl Bench {
    /// Creates a hub with the files of [`model`] at [`FIRST`].
    pub(crate) fn new() -> Self {
        let bench = Self::empty();
        bench.server.put(ID, Access::Open, FIRST, &model());
        bench
    }

    pub(crate) fn empty() -> Self {
        let dir = TempDir::new();
        Self { server: HubServer::new(), root: dir.file("hub"), _dir: dir }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            cache: self.root.clone(),
            endpoint: self.server.url(),
            token: None,
            is_offline: false,
            has_no_links: false,
            timeouts: HubTimeouts {
                idle: Duration::from_millis(400),
                first_wait: Duration::from_millis(1),
                longest_wait: Duration::from_millis(4),
                longest_retry_after: Duration::from_secs(2),
            },
        }
    }

    pub(crate) fn hub(&self) -> Hub {
        Hub::new(self.settings(), Trust::Marks, StopFlag::default())
    }

    pub(crate) fn hub_with(&self, token: &str) -> Hub {
        let token = Token::new(token);
        Hub::new(Settings { token, ..self.settings() }, Trust::Marks, StopFlag::default())
    }

    pub(crate) fn cache(&self) -> Cache {
        Cache::new(&self.root)
    }

    pub(crate) fn resolve(&self, wanted: &str) -> Result<Remote> {
        self.hub().resolve(&wanted.parse()?, &FileSelection::Usual)
    }

    pub(crate) fn pull(&self, wanted: &str) -> Result<Pulled> {
        pull(&self.hub(), wanted, &[])
    }

    /// The folder of the model.
    pub(crate) fn dir(&self) -> PathBuf {
        self.root.join("models--owner--model")
    }

    /// A file of the model's snapshot, through its link.
    pub(crate) fn read(&self, commit: &str, path: &str) -> Vec<u8> {
        std::fs::read(self.dir().join("snapshots").join(commit).join(path)).unwrap()
    }

    /// The contents of a file.
    pub(crate) fn blob(&self, file: &HubFile) -> PathBuf {
        self.dir().join("blobs").join(file.etag())
    }

    /// Checks that no partial file is left.
    pub(crate) fn check_tidy(&self) {
        let names: Vec<String> = tree(&self.dir()).into_keys().collect();
        assert!(
            !names.iter().any(|it| it.contains("incomplete") || it.ends_with(".tmp")),
            "{names:?}"
        );
    }
}

pub(crate) fn pull(hub: &Hub, wanted: &str, globs: &[&str]) -> Result<Pulled> {
    let globs: Vec<Glob> = globs.iter().map(|it| Glob::new(it).unwrap()).collect();
    let selection =
        if globs.is_empty() { FileSelection::Usual } else { FileSelection::Matching(globs) };
    let remote = hub.resolve(&wanted.parse()?, &selection)?;
    let n_connections = NonZeroUsize::new(4).unwrap();
    hub.pull(&remote, n_connections, PIECE, &mut |_| ControlFlow::Continue(()))
}

/// Small and large files, one of them twice, and some that are not needed.
pub(crate) fn model() -> Vec<HubFile> {
    vec![
        HubFile::new(".gitattributes", HostedContents::new(b"*.safetensors filter=lfs\n")),
        HubFile::new("README.md", HostedContents::new(b"# A model\n")),
        HubFile::new(
            "additional_chat_templates/tool use.jinja",
            HostedContents::new(b"{{ tools }}"),
        ),
        HubFile::new("chat_template.jinja", HostedContents::new(b"")),
        HubFile::new("config.json", HostedContents::new(b"{\"model_type\": \"qwen3_moe\"}")),
        weights(1),
        weights(2),
        HubFile::new("model.safetensors.index.json", HostedContents::new(&index())),
        HubFile::new("tokenizer.json", HostedContents::noise(7, 30_000)),
        HubFile::new("vocab.json", HostedContents::new(b"{\"model_type\": \"qwen3_moe\"}")),
    ]
}

/// A file of weights: 12.2 pieces.
pub(crate) fn weights(number: u64) -> HubFile {
    let name = format!("model-0000{number}-of-00002.safetensors");
    HubFile::new(&name, HostedContents::noise(number, 100_000))
}

fn index() -> Vec<u8> {
    let names = [1, 2].map(|it| format!("\"t{it}\": \"model-0000{it}-of-00002.safetensors\""));
    format!("{{\"weight_map\": {{{}}}}}", names.join(", ")).into_bytes()
}

/// Returns the bytes that a download of [`model`] fetches: the selected files, equal contents once.
pub(crate) fn model_bytes() -> u64 {
    11 + 27 + 2 * 100_000 + index().len() as u64 + 30_000
}

/// Returns the files below a folder, with the targets of links and the lengths of other files.
pub(crate) fn tree(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                dirs.push(path);
                continue;
            }
            let what = match std::fs::read_link(&path) {
                Ok(target) => format!("-> {}", target.display()),
                Err(_) => metadata.len().to_string(),
            };
            found.insert(path.strip_prefix(dir).unwrap().display().to_string(), what);
        }
    }
    found
}

/// The message of a failure, which is one line.
#[track_caller]
pub(crate) fn line<T>(result: Result<T>) -> String {
    let error: Error = result.map(|_| ()).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}
