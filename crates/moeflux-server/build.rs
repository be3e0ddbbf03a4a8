//! Writes the table of the page's files, `page.rs`, from the folder `page`.
//!
//! **Invariant:** a file whose type or name is not known here fails the build. Hidden files are
//! left out.

use std::env::var;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::Path;

/// Media types by the ending of a file's name.
const MEDIA_TYPES: [(&str, &str); 8] = [
    ("html", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("txt", "text/plain; charset=utf-8"),
    ("md", "text/plain; charset=utf-8"),
];

#[expect(clippy::disallowed_methods, reason = "cargo names the folder for output so")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=page");
    let mut paths = Vec::new();
    list(Path::new("page"), "", &mut paths);
    paths.sort();
    let mut table = String::from("&[\n");
    for path in &paths {
        table += &entry(path);
    }
    table += "]\n";
    let out = var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("page.rs"), table).expect("cargo's folder is writable");
}

/// Appends the paths of all files in a folder, relative to the page, with `/`.
fn list(folder: &Path, prefix: &str, paths: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the folder of the page is readable") {
        let entry = entry.expect("the folder of the page is readable");
        let name = entry.file_name().into_string().expect("names of the page's files are ASCII");
        // Editors and systems leave hidden files.
        if name.starts_with('.') {
            continue;
        }
        // A request names a file as it is, without escapes.
        let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"-_.".contains(&it);
        assert!(name.bytes().all(is_plain), "page/{prefix}{name}: use letters, digits, - _ .");
        if entry.path().is_dir() {
            list(&entry.path(), &format!("{prefix}{name}/"), paths);
        } else {
            let is_known = media_type(&name).is_some();
            assert!(is_known, "page/{prefix}{name}: add the type of such files to build.rs");
            paths.push(format!("{prefix}{name}"));
        }
    }
}

/// Returns the type of a file, by the ending of its name.
fn media_type(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    MEDIA_TYPES.iter().find(|(it, _)| *it == ending).map(|(_, media_type)| *media_type)
}

/// Returns the entry of a file. Its tag is a hash, which depends on nothing but the file's bytes
/// and the compiler's version.
fn entry(path: &str) -> String {
    let media_type = media_type(path).expect("only such files are listed");
    let bytes = fs::read(Path::new("page").join(path)).expect("files of the page are readable");
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    let etag = format!("\"{:016x}\"", hasher.finish());
    let bytes = format!("include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/page/{path}\"))");
    format!(
        "    PageFile {{ path: {path:?}, media_type: {media_type:?}, etag: {etag:?}, \
         bytes: {bytes} }},\n"
    )
}
