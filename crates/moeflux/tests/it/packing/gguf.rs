//! Packs of GGUF files: blocks and keys as they were, tokens as they were, and blocks made affine.

use std::path::Path;

use moeflux::provider::format::{Checkpoint, PACK_SUMS_NAME, TensorEntry};
use moeflux::provider::ids::ExpertIdx;
use moeflux::provider::kernels::MatrixKind;
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::pack::{Coverage, PackOptions, SourceHandling};
use moeflux::provider::text::byte_tokenizer_json;
use moeflux::provider::weights::FileExtent;
use moeflux_testing::cases::{case_names, golden_dir};
use moeflux_testing::temp_dir::TempDir;

use super::{AS_IT_IS, bytes_of, contents, flip, pack, quantised, verified};

fn gguf_case_names() -> Vec<String> {
    let mut names = case_names();
    names.retain(|name| name.starts_with("gguf-"));
    assert!(names.len() >= 8, "{names:?}");
    names
}

fn extent_of(entry: &TensorEntry) -> FileExtent {
    let &TensorEntry { file_idx, offset_bytes, len_bytes, .. } = entry;
    FileExtent { file_idx, offset_bytes, len_bytes }
}

#[test]
fn blocks_and_keys_stay_as_they_are() {
    for name in gguf_case_names() {
        let target = TempDir::new();
        let source_dir = golden_dir().join(&name);
        pack(&source_dir, target.path(), &AS_IT_IS).unwrap();
        let (source, from) = Model::open(&source_dir).unwrap().into_parts();
        let (packed, to) = Model::open(target.path()).unwrap().into_parts();
        assert_eq!((&packed.spec, &packed.plan), (&source.spec, &source.plan), "{name}");
        assert_eq!(packed.model_type, source.model_type);
        let keys = |checkpoint: &Checkpoint| checkpoint.gguf.clone().unwrap().metadata;
        assert_eq!(keys(&to), keys(&from), "{name}");
        for (canonical, entry) in &to.tensors {
            let original = &from.tensors[canonical];
            let facts = |it: &TensorEntry| (it.name.clone(), it.dtype, it.shape.clone());
            assert_eq!(facts(entry), facts(original), "{name}");
            let same = bytes_of(&to, extent_of(entry)) == bytes_of(&from, extent_of(original));
            assert!(same, "{name}: {canonical}");
        }
        let kinds = packed.manifest.kinds();
        let has_blocks = kinds.iter().any(|count| matches!(count.kind, MatrixKind::Block(_)));
        assert!(has_blocks || name == "gguf-deepseek2-kimi", "{name}");
        for (bank, original) in packed.manifest.banks.iter().zip(&source.manifest.banks) {
            assert!(bank.records.is_some());
            for expert in (0..bank.n_experts).map(ExpertIdx) {
                for (part, original) in bank.parts.iter().zip(&original.parts) {
                    let [found, expected] = [
                        bytes_of(&to, part.extent(expert)),
                        bytes_of(&from, original.extent(expert)),
                    ];
                    assert!(found == expected, "{name}: {} of {expert:?}", part.name);
                }
            }
        }
    }
}

#[test]
fn a_file_is_packed_by_its_name_and_replaced() {
    let source = TempDir::copy_of(&golden_dir().join("gguf-qwen3moe-q8"));
    std::fs::write(source.path().join("notes.txt"), "of another model").unwrap();
    let file = source.path().join("model.gguf");
    let expected = TempDir::new();
    pack(&file, expected.path(), &AS_IT_IS).unwrap();
    let target = source.path().join("packed");
    let options = PackOptions { handling: SourceHandling::Replaced, ..AS_IT_IS };
    assert!(super::pack_until(&file, &target, &options, 40).is_err());
    let error = Model::open(&target).unwrap_err().to_string();
    assert!(error.contains("an unfinished pack"), "{error}");
    assert_eq!(pack(&file, &target, &options).unwrap().n_replaced, 1);
    assert!(!file.exists());
    assert!(contents(&target) == contents(expected.path()));
    let names: Vec<String> = contents(&target).into_keys().collect();
    assert!(names.contains(&"moeflux-metadata.gguf".to_owned()), "{names:?}");
    assert!(names.iter().all(|name| !name.ends_with(".txt") && name != "config.json"), "{names:?}");
}

#[test]
fn tokens_are_those_of_the_file() {
    let source = TempDir::copy_of(&golden_dir().join("gguf-qwen3moe-q8"));
    let tokenizer = byte_tokenizer_json(128, &[]).to_string();
    std::fs::write(source.path().join("tokenizer.json"), tokenizer).unwrap();
    let target = TempDir::new();
    pack(source.path(), target.path(), &AS_IT_IS).unwrap();
    let read = |dir: &Path| {
        let text = Model::open(dir).unwrap().text().unwrap();
        (text.prompt("AB c\n").unwrap(), text.end_tokens().to_vec(), text.vocab())
    };
    assert_eq!(read(target.path()), read(source.path()));
    for name in ["tokenizer.json", PACK_SUMS_NAME] {
        std::fs::remove_file(target.path().join(name)).unwrap();
    }
    let error = Model::open(target.path()).unwrap().text().unwrap_err().to_string();
    assert!(error.contains("moeflux-metadata.gguf") && error.contains("token_type"), "{error}");
}

#[test]
fn blocks_become_affine_and_keys_record_it() {
    for name in
        ["gguf-qwen3moe-k", "gguf-deepseek2", "gguf-qwen35moe", "gguf-qwen3next", "gguf-gpt-oss"]
    {
        let target = TempDir::new();
        pack(&golden_dir().join(name), target.path(), &quantised(4, 32)).unwrap();
        let (packed, _) = Model::open(target.path()).unwrap().into_parts();
        let is_affine = |kind: MatrixKind| matches!(kind, MatrixKind::Affine(it) if it.bits == 4);
        for bank in &packed.manifest.banks {
            assert!(is_affine(bank.layout.gate.layout.kind), "{name}: {:?}", bank.layout);
            assert!(is_affine(bank.layout.down.layout.kind), "{name}: {:?}", bank.layout);
        }
        let n_affine = packed.manifest.matrices.iter().filter(|it| is_affine(it.layout.kind));
        assert!(n_affine.count() * 2 > packed.manifest.matrices.len(), "{name}");
        assert!(verified(target.path()).damages.is_empty(), "{name}");
        let again = TempDir::new();
        let error = pack(target.path(), again.path(), &AS_IT_IS).unwrap_err().to_string();
        assert!(error.contains("packed already"), "{error}");
    }
}

#[test]
fn flipped_bits_are_found() {
    let target = TempDir::new();
    pack(&golden_dir().join("gguf-qwen3moe-k"), target.path(), &AS_IT_IS).unwrap();
    let checkpoint = Checkpoint::open(target.path()).unwrap();
    for shard in &checkpoint.files {
        let [first, len] = [shard.data_at, shard.len_bytes].map(|it| usize::try_from(it).unwrap());
        for at in (first..len).step_by((len - first) / 5) {
            flip(&shard.path, at);
            let found = verified(target.path());
            flip(&shard.path, at);
            assert_eq!(found.coverage, Coverage::Checksums);
            assert!(!found.damages.is_empty(), "byte {at} of {}", shard.path.display());
        }
    }
    std::fs::remove_file(target.path().join(PACK_SUMS_NAME)).unwrap();
    let metadata = target.path().join("moeflux-metadata.gguf");
    let bytes = std::fs::read(&metadata).unwrap();
    for cut in [0, 4, 30, bytes.len() / 2] {
        std::fs::write(&metadata, &bytes[..cut]).unwrap();
        let error = Model::open(target.path()).unwrap_err().to_string();
        assert!(error.contains("moeflux-metadata.gguf") && !error.contains('\n'), "{error}");
    }
    std::fs::copy(golden_dir().join("gguf-qwen3moe-k/model.gguf"), &metadata).unwrap();
    let error = Model::open(target.path()).unwrap_err().to_string();
    assert!(error.contains("where only metadata is expected"), "{error}");
}
