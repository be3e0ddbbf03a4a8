//! Mirrors: a folder that is not a copy of the model's is refused before anything is read from it,
//! and checksums find later changes.

use std::path::Path;

use moeflux::provider::config::StreamingConfig;
use moeflux::provider::format::Checkpoint;
use moeflux::provider::ids::ExpertIdx;
use moeflux::provider::model::{Headers, Model};
use moeflux_testing::cases::{GoldenCase, golden_dir};
use moeflux_testing::temp_dir::TempDir;

use super::{open, run};
use crate::packing::{AS_IT_IS, flip, pack};

const CASE: &str = "qwen3_5_moe-bf16";

fn with_mirror(dir: &Path) -> StreamingConfig {
    StreamingConfig { mirror: Some(dir.to_owned()), ..StreamingConfig::default() }
}

/// Returns the error for a mirror that must not be used.
#[track_caller]
fn refusal(dir: &Path, mirror: &Path) -> String {
    match open(dir, Some(1), with_mirror(mirror)) {
        Err(error) => error.to_string(),
        Ok(engine) => unreachable!("{mirror:?} was taken: {:?}", engine.stream_stats()),
    }
}

#[test]
fn a_mirror_that_differs_anywhere_is_refused_by_file_and_place() {
    let case = golden_dir().join(CASE);
    let packed = TempDir::new();
    pack(&case, packed.path(), &AS_IT_IS).unwrap();
    let gguf = golden_dir().join("gguf-qwen35moe");
    for folder in [case.as_path(), packed.path(), &gguf] {
        let dir =
            if folder == gguf { gguf.join("model-00001-of-00002.gguf") } else { folder.to_owned() };
        let mirror = TempDir::copy_of(folder);
        open(&dir, Some(1), with_mirror(mirror.path())).unwrap();
        let (blueprint, _) = Model::open(&dir).unwrap().into_parts();
        let manifest = &blueprint.manifest;
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let resident = manifest.matrices.iter().map(|matrix| matrix.codes);
        let experts = manifest.banks.iter().flat_map(|bank| {
            let last = ExpertIdx(bank.n_experts - 1);
            bank.parts.iter().map(move |part| part.extent(last))
        });
        let mut n_places = 0;
        for extent in resident.chain(experts).step_by(3) {
            let name = checkpoint.files[extent.file_idx].path.file_name().unwrap();
            for at in [0, extent.len_bytes / 2, extent.len_bytes - 1] {
                let at = extent.offset_bytes + at;
                let path = mirror.path().join(name);
                flip(&path, usize::try_from(at).unwrap());
                let line = refusal(&dir, mirror.path());
                flip(&path, usize::try_from(at).unwrap());
                let place =
                    format!("byte {at}, of {}, differs", checkpoint.name_at(extent.file_idx, at));
                for word in [name.to_str().unwrap(), "mirror", &place] {
                    assert!(line.contains(word) && !line.contains('\n'), "`{word}`: {line}");
                }
                n_places += 1;
            }
        }
        assert!(n_places > 20, "{n_places}");
        open(&dir, Some(1), with_mirror(mirror.path())).unwrap();
    }
}

#[test]
fn small_files_of_a_mirror_are_those_of_the_model_or_missing() {
    let case = golden_dir().join(CASE);
    let dir = TempDir::copy_of(&case);
    let mirror = TempDir::copy_of(&case);
    let tokenizer = |folder: &TempDir, text: &str| {
        std::fs::write(folder.path().join("tokenizer.json"), text).unwrap();
    };
    // The model has none, then another one, then the same.
    tokenizer(&mirror, "one");
    assert!(refusal(dir.path(), mirror.path()).contains("tokenizer.json: of the mirror"));
    tokenizer(&dir, "two");
    assert!(refusal(dir.path(), mirror.path()).contains("tokenizer.json: of the mirror"));
    tokenizer(&mirror, "two");
    open(dir.path(), Some(1), with_mirror(mirror.path())).unwrap();
    for name in ["tokenizer.json", "config.json"] {
        std::fs::remove_file(mirror.path().join(name)).unwrap();
    }
    open(dir.path(), Some(1), with_mirror(mirror.path())).unwrap();
}

/// All bits of the mirror's experts change while the engine is open: each read of it has another
/// checksum, and is repeated on the first drive.
#[test]
fn every_read_of_a_mirror_is_compared_with_its_checksum() {
    let case = GoldenCase::load(CASE);
    let packed = TempDir::new();
    pack(&case.dir, packed.path(), &AS_IT_IS).unwrap();
    let expected = run(&open(packed.path(), None, StreamingConfig::default()).unwrap(), &case);
    let mirror = TempDir::copy_of(packed.path());
    let engine = open(packed.path(), Some(1), with_mirror(mirror.path())).unwrap();
    let (blueprint, checkpoint) = Model::open(packed.path()).unwrap().into_parts();
    for bank in &blueprint.manifest.banks {
        for expert in (0..bank.n_experts).map(ExpertIdx) {
            let extent = bank.records.unwrap().extent(expert);
            let name = checkpoint.files[extent.file_idx].path.file_name().unwrap();
            let path = mirror.path().join(name);
            // Bits that flip by themselves do not change the time of modification.
            let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
            flip(&path, usize::try_from(extent.offset_bytes).unwrap());
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(modified).unwrap();
        }
    }
    assert!(run(&engine, &case) == expected);
    let stats = engine.stream_stats().unwrap();
    assert!(stats.rereads > 0, "{stats:?}");
}
