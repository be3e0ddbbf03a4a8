//! Requests as clients sent them (`tools/check/wire.py record`; Codex, `llm` and the SDK for Node
//! by hand, with long texts cut), against the expected results.
//!
//! After an intended change, copy the output of a failing test over the file that it names.

use std::path::{Path, PathBuf};

use crate::dialects::parse;

/// Name, path of the API, and body of each request.
pub(crate) fn requests() -> Vec<(String, String, Vec<u8>)> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "json"));
    paths.sort();
    assert!(paths.len() > 20, "{} requests", paths.len());
    let request = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let api = name.split_once('-').unwrap().0.to_owned();
        (name, api, std::fs::read(path).unwrap())
    };
    paths.iter().map(request).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/requests")
}

#[test]
fn requests_are_read_as_recorded() {
    let mut wrong = Vec::new();
    for (name, api, body) in requests() {
        let found = match parse(&api, &body) {
            Ok(request) => format!("{request:#?}\n"),
            Err(failure) => format!("{failure:#?}\n"),
        };
        let name = format!("{name}.txt");
        if std::fs::read(folder().join(&name)).unwrap_or_default() != found.as_bytes() {
            let written = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
            std::fs::write(&written, found).unwrap();
            wrong.push(written.display().to_string());
        }
    }
    assert!(wrong.is_empty(), "read otherwise than recorded:\n{}", wrong.join("\n"));
}
