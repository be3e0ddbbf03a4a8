//! Runs the binary, and makes damaged copies of golden cases.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use moeflux::provider::text::byte_tokenizer_json;
use moeflux_testing::temp_dir::TempDir;
use serde_json::Value;

/// A folder of a test's own with the files of a model, or with none.
pub(crate) struct ModelDir(TempDir);

impl ModelDir {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        Self(TempDir::new())
    }

    /// A copy of a golden case.
    pub(crate) fn of_case(name: &str) -> Self {
        Self(TempDir::copy_of(&golden(name)))
    }

    /// A copy of a golden case with 256 tokens, each of them a byte.
    pub(crate) fn of_bytes_case() -> Self {
        let dir = Self::of_case("qwen3_moe-f32");
        let tokenizer = byte_tokenizer_json(256, &[]).to_string();
        std::fs::write(dir.file("tokenizer.json"), tokenizer).unwrap();
        dir
    }

    /// A folder that `synth` made of a config of test size.
    pub(crate) fn synthetic() -> Self {
        Self::synthetic_as(&[])
    }

    /// The same as a GGUF file, in a folder of its own.
    pub(crate) fn synthetic_gguf() -> Self {
        Self::synthetic_as(&["--gguf", "Q8_0"])
    }

    fn synthetic_as(more: &[&str]) -> Self {
        let dir = Self::new();
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        std::fs::copy(example.join("qwen3_moe-small.json"), dir.file("small.json")).unwrap();
        dir.edit_json("small.json", |config| {
            for (key, value) in [
                ("hidden_size", 64),
                ("num_hidden_layers", 2),
                ("num_attention_heads", 2),
                ("num_key_value_heads", 1),
                ("head_dim", 32),
                ("moe_intermediate_size", 64),
                ("num_experts", 4),
                ("num_experts_per_tok", 2),
                ("max_position_embeddings", 200_000),
            ] {
                config[key] = value.into();
            }
        });
        let (config, out) = (dir.file("small.json"), dir.file("model"));
        let [config, out] = [&config, &out].map(|path| path.to_str().unwrap());
        let command = ["synth", "--config", config, "--out", out];
        let printed = stdout_of(&[&command[..], more].concat());
        assert!(printed.contains("next: moeflux generate"), "{printed}");
        dir
    }

    /// Returns the path of the folder.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// Rewrites a JSON file in it.
    pub(crate) fn edit_json(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let path = self.file(name);
        let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        edit(&mut value);
        std::fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
    }

    /// Rewrites a text file in it.
    pub(crate) fn edit_text(&self, name: &str, edit: impl FnOnce(&mut String)) {
        let mut text = std::fs::read_to_string(self.file(name)).unwrap();
        edit(&mut text);
        std::fs::write(self.file(name), text).unwrap();
    }

    /// Rewrites the header of a safetensors file in it; the data stays.
    pub(crate) fn edit_header(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let (mut header, data) = self.split_safetensors(name);
        edit(&mut header);
        let header = serde_json::to_vec(&header).unwrap();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        std::fs::write(self.file(name), bytes).unwrap();
    }

    /// Header and data of a safetensors file in it.
    pub(crate) fn split_safetensors(&self, name: &str) -> (Value, Vec<u8>) {
        let bytes = std::fs::read(self.file(name)).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let (header, data) = bytes[8..].split_at(usize::try_from(len).unwrap());
        (serde_json::from_slice(header).unwrap(), data.to_vec())
    }
}

/// A golden case's folder.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(name)
}

/// Runs the binary.
pub(crate) fn moeflux(args: &[&str]) -> Output {
    command().args(args).output().unwrap()
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
    // A layer of Mesa's drivers for Vulkan complains on stderr where there is no desktop.
    command.env("NODEVICE_SELECT", "1");
    // Not the user's own cache: `doctor` stores the measurements there that `plan` uses.
    set_cache(&mut command, Path::new(env!("CARGO_TARGET_TMPDIR")));
    command
}

/// Makes this folder the user's cache.
pub(crate) fn set_cache(command: &mut Command, dir: &Path) {
    for name in ["XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"] {
        command.env(name, dir);
    }
}

/// Runs the binary with this folder as the user's cache.
pub(crate) fn moeflux_in(cache: &ModelDir, args: &[&str]) -> Output {
    let mut command = command();
    set_cache(&mut command, cache.path());
    command.args(args).output().unwrap()
}

/// Rows of a float32 matrix as NumPy writes it (format 1.0, C order).
pub(crate) fn read_npy(path: &Path, n_cols: usize) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let header_len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let (values, rest) = bytes[10 + header_len..].as_chunks::<4>();
    assert!(rest.is_empty() && values.len().is_multiple_of(n_cols), "{}", path.display());
    let values: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    values.chunks(n_cols).map(<[f32]>::to_vec).collect()
}

/// Returns the stdout of a command, which must succeed.
pub(crate) fn stdout_of(args: &[&str]) -> String {
    success(moeflux(args), args)
}

/// As [`stdout_of`], with this folder as the user's cache.
pub(crate) fn stdout_in(cache: &ModelDir, args: &[&str]) -> String {
    success(moeflux_in(cache, args), args)
}

fn success(output: Output, args: &[&str]) -> String {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that a command fails with status 1, nothing on stdout, and one line on stderr that has
/// all `words`.
#[track_caller]
pub(crate) fn check_fails(args: &[&str], words: &[&str]) {
    let output = moeflux(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}: something on stdout");
    assert_eq!(stderr.lines().count(), 1, "one line: {stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
}
