//! Serves folders as repositories of a hub, for `tools/check/hub.sh` and for measurements:
//!
//!     hub OWNER/NAME=FOLDER.. [OWNER/NAME=BYTES..]
//!
//! It prints its address, and ends when its input ends. A number of bytes stands for one file of
//! random data.

#![expect(clippy::print_stdout, reason = "it prints only its address")]

use std::io::Read as _;
use std::path::Path;

use moeflux_testing::hub::{Access, HostedContents, HubFile, HubServer};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn main() {
    let hub = HubServer::new();
    for arg in std::env::args().skip(1) {
        let (id, what) = arg.split_once('=').expect("OWNER/NAME=FOLDER or OWNER/NAME=BYTES");
        let files = match what.parse::<u64>() {
            Ok(n_bytes) => noise(n_bytes),
            Err(_) => folder(Path::new(what), ""),
        };
        hub.put(id, Access::Open, COMMIT, &files);
    }
    println!("{}", hub.url());
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
}

fn noise(n_bytes: u64) -> Vec<HubFile> {
    let config = HubFile::new("config.json", HostedContents::new(b"{}"));
    vec![config, HubFile::new("model.safetensors", HostedContents::noise(1, n_bytes))]
}

/// Returns the files below a folder.
fn folder(dir: &Path, prefix: &str) -> Vec<HubFile> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            files.extend(folder(&path, &format!("{prefix}{name}/")));
        } else {
            let bytes = std::fs::read(&path).expect("a file");
            files.push(HubFile::new(&format!("{prefix}{name}"), HostedContents::new(&bytes)));
        }
    }
    files
}
