//! Every command of README.md and of `docs/` runs as written, with `moeflux` on the path, a hub on
//! this machine, and a server on a free port in the place of 8080.
//!
//! A comment above a block states why it cannot run (`<!-- not run: .. -->`), or the status with
//! which it should fail (`<!-- fails: 1 -->`). A text below `<!-- printed: -->` is the exact output
//! of the block before it.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use moeflux_testing::hub::{Access, HostedContents, HubFile, HubServer};

use crate::support::ModelDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The model that the pages download; the demo model is served in its place.
const MODEL: &str = "mlx-community/Qwen3.6-35B-A3B-4bit";

/// The model whose GGUF file the pages download; a random one is served in its place.
const GGUF: (&str, &str) = ("unsloth/Qwen3.6-35B-A3B-GGUF", "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf");

/// The server's address on the pages.
const ADDRESS: &str = "127.0.0.1:8080";

/// The parts of a page, in order.
#[derive(Debug, PartialEq, Eq)]
enum PageBlock {
    /// Commands, and the status with which they end.
    Run { line: usize, commands: String, status: i32 },
    /// The output of the last commands.
    Printed { line: usize, text: String },
}

/// The parts of a page that are to be tried.
fn parts(page: &str) -> Vec<PageBlock> {
    let mut parts = Vec::new();
    let mut lines = page.lines().zip(1..);
    let mut comment = String::new();
    while let Some((text, line)) = lines.next() {
        assert!(!is_indented_command(text), "line {line}: commands stand in blocks of `sh`");
        if let Some(kind) = text.strip_prefix("```") {
            let mut block = String::new();
            for (text, _) in lines.by_ref().take_while(|(text, _)| *text != "```") {
                writeln!(block, "{text}").unwrap();
            }
            let mark = comment.trim_start_matches("<!-- ").trim_end_matches(" -->").to_owned();
            match (kind, mark.split_once(": ")) {
                ("sh", Some(("not run", _))) => {}
                ("sh", Some(("fails", status))) => {
                    let status = status.parse().unwrap();
                    parts.push(PageBlock::Run { line, commands: block, status });
                }
                ("sh", None) => parts.push(PageBlock::Run { line, commands: block, status: 0 }),
                ("text", None) if mark == "printed:" => {
                    parts.push(PageBlock::Printed { line, text: block });
                }
                (_, None) if mark.is_empty() => {}
                _ => panic!("line {line}: `{mark}` means nothing for a block of `{kind}`"),
            }
            comment.clear();
        } else if text.starts_with("<!--") {
            text.clone_into(&mut comment);
        } else if !text.is_empty() {
            comment.clear();
        }
    }
    parts
}

/// Code without a fence would not be run.
fn is_indented_command(text: &str) -> bool {
    let commands = ["moeflux ", "cargo ", "curl ", "./"];
    text.strip_prefix("    ").is_some_and(|code| commands.iter().any(|it| code.starts_with(it)))
}

/// A shell in which a page's commands run, with a hub and perhaps a server.
struct PageShell {
    dir: ModelDir,
    hub: HubServer,
    server: Option<PageServer>,
}

/// A server that a page started, ended with it.
struct PageServer {
    child: Child,
    address: String,
    /// Open, so that it can go on to speak; a page asks for less than a pipe holds.
    _stderr: BufReader<ChildStderr>,
}

impl Drop for PageServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl PageShell {
    fn new() -> Self {
        let dir = ModelDir::new();
        let hub = HubServer::new();
        let model = moeflux_demo::unpack(dir.path()).unwrap();
        let mut files = vec![HubFile::new("README.md", HostedContents::new(b"# A model"))];
        for entry in fs::read_dir(&model).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            files.push(HubFile::new(&name, HostedContents::new(&fs::read(&path).unwrap())));
        }
        hub.put(MODEL, Access::Open, COMMIT, &files);
        let made = ModelDir::synthetic_gguf();
        let gguf = HostedContents::new(&fs::read(made.file("model/model.gguf")).unwrap());
        hub.put(GGUF.0, Access::Open, COMMIT, &[HubFile::new(GGUF.1, gguf)]);

        let work = dir.file("work");
        fs::create_dir_all(&work).unwrap();
        for name in ["examples", "tools", "golden"] {
            symlink(root().join(name).canonicalize().unwrap(), work.join(name)).unwrap();
        }
        // The program under test in the place of the one that cargo would build.
        let programs = dir.file("bin");
        fs::create_dir_all(&programs).unwrap();
        symlink(env!("CARGO_BIN_EXE_moeflux"), programs.join("moeflux")).unwrap();
        let cargo = "#!/bin/sh\n[ \"$1 $2 $3\" = 'run --release --' ] || exit 99\nshift 3\n\
                     exec moeflux \"$@\"\n";
        fs::write(programs.join("cargo"), cargo).unwrap();
        fs::set_permissions(programs.join("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir, hub, server: None }
    }

    fn shell(&self, commands: &str) -> Command {
        let commands = format!("PATH=\"$PROGRAMS:$PATH\"\n{commands}");
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &commands]).current_dir(self.dir.file("work"));
        for name in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"] {
            shell.env_remove(name);
        }
        shell.env("PROGRAMS", self.dir.file("bin")).env("HOME", self.dir.file("home"));
        shell.env("HF_HOME", self.dir.file("hf")).env("HF_ENDPOINT", self.hub.url());
        shell.env("MOEFLUX_PORT", "0").env("NODEVICE_SELECT", "1").stdin(Stdio::null());
        shell
    }

    /// Starts a server, in the place of the one before.
    fn serve(&mut self, commands: &str) {
        self.server = None;
        let commands = format!("exec {commands}");
        let mut child = self.shell(&commands).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut printed = String::new();
        let address = loop {
            assert!(
                stderr.read_line(&mut printed).unwrap() > 0,
                "{commands}: it ended with {printed}"
            );
            if let Some((_, rest)) = printed.split_once(" at http://") {
                break rest.split_whitespace().next().unwrap().to_owned();
            }
        };
        self.server = Some(PageServer { child, address, _stderr: stderr });
    }

    /// Runs commands, which must end with this status. Returns their output.
    fn run(&self, commands: &str, status: i32) -> String {
        let commands = match &self.server {
            Some(server) => commands.replace(ADDRESS, &server.address),
            None => commands.to_owned(),
        };
        let output = self.shell(&commands).output().unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        assert_eq!(output.status.code(), Some(status), "{commands}\n{stdout}\n{stderr}");
        assert!(!stdout.contains("\"error\":"), "{commands}\n{stdout}");
        stdout
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn try_page(name: &str) {
    let mut page_shell = PageShell::new();
    let page = fs::read_to_string(root().join(name)).unwrap();
    let mut printed = String::new();
    for part in parts(&page) {
        match part {
            PageBlock::Run { commands, .. } if commands.starts_with("moeflux serve") => {
                page_shell.serve(&commands);
            }
            PageBlock::Run { line, commands, status } => {
                println!("{name}, line {line}");
                printed = page_shell.run(&commands, status);
            }
            PageBlock::Printed { line, text } => assert_eq!(printed, text, "{name}, line {line}"),
        }
    }
}

#[test]
fn the_readme_runs_as_written() {
    try_page("README.md");
}

#[test]
fn running_runs_as_written() {
    try_page("docs/running.md");
}

#[test]
fn serving_runs_as_written() {
    try_page("docs/serving.md");
}

#[test]
fn the_other_pages_run_as_written() {
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && !["running.md", "serving.md"].contains(&&*name) {
            try_page(&format!("docs/{name}"));
        }
    }
}

#[test]
fn the_parts_of_a_page() {
    let page = "# A page\n\n<!-- fails: 2 -->\n\n```sh\nmoeflux nothing\n```\n\n\
                <!-- printed: -->\n\n```text\nNothing.\n```\n\n```text\nAn example.\n```\n\n\
                <!-- not run: it needs a network -->\n\n```sh\ncargo install\n```\n";
    let expected = [
        PageBlock::Run { line: 5, commands: "moeflux nothing\n".into(), status: 2 },
        PageBlock::Printed { line: 11, text: "Nothing.\n".into() },
    ];
    assert_eq!(parts(page), expected);
}
