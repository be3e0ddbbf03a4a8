//! Small files of packs: `verify` and every way of loading find a flipped bit, or a file of another
//! pack; deliberate edits are accepted on request.

use std::ops::ControlFlow;
use std::path::Path;

use moeflux::ModelText;
use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::BackendKind;
use moeflux::provider::engine::Engine;
use moeflux::provider::error::{Error, Remedy};
use moeflux::provider::format::{Checkpoint, PACK_METADATA, PACK_SUMS_NAME};
use moeflux::provider::model::Model;
use moeflux::provider::pack::{
    DamagedPart, Documents, Verified, lacks_sums, verify_with, write_sums,
};
use moeflux::provider::text::{byte_tokenizer_config_json, byte_tokenizer_json};
use moeflux_testing::cases::golden_dir;
use moeflux_testing::temp_dir::TempDir;

use super::{AS_IT_IS, contents, edit_config, flip, pack, quantised, verified};
use crate::support::config;

const VOCAB: usize = 256;

/// A source with every small file that a model is run from, and one that it is not.
fn source() -> TempDir {
    let source = TempDir::copy_of(&golden_dir().join("qwen3_moe-bf16"));
    let write = |name: &str, text: &str| std::fs::write(source.path().join(name), text).unwrap();
    write("tokenizer.json", &byte_tokenizer_json(VOCAB, &[]).to_string());
    write("tokenizer_config.json", &byte_tokenizer_config_json(None).to_string());
    write("generation_config.json", r#"{"temperature": 0.5}"#);
    write("chat_template.jinja", "{{ messages[0]['content'] }}");
    write("special_tokens_map.json", "{}");
    for name in ["added_tokens.json", "vocab.json", "chat_template.json"] {
        write(name, "{}");
    }
    for name in ["merges.txt", "tokenizer.model", "tiktoken.model", "LICENSE"] {
        write(name, "text\n");
    }
    source
}

fn packed_source() -> TempDir {
    let target = TempDir::new();
    pack(source().path(), target.path(), &AS_IT_IS).unwrap();
    target
}

/// Returns the errors of each way of loading.
fn refusals(dir: &Path) -> [Option<String>; 3] {
    let engine = || {
        let config = config(BackendKind::Cpu, Arithmetic::Int8, (64, 2));
        Engine::load(Model::open(dir)?, &config, &mut |_| ControlFlow::Continue(()))
    };
    [Model::open(dir).err(), engine().err(), ModelText::open(dir, VOCAB).err()].map(|error| {
        error.map(|error| {
            assert_eq!(error.remedy(), Some(Remedy::AcceptedEdits), "{error}");
            error.to_string()
        })
    })
}

#[test]
fn a_flipped_bit_of_any_small_file_is_found_and_named() {
    let (gguf, of_gguf) =
        (TempDir::copy_of(&golden_dir().join("gguf-qwen3moe-q8")), TempDir::new());
    let tokenizer = byte_tokenizer_json(128, &[]).to_string();
    std::fs::write(gguf.path().join("tokenizer.json"), tokenizer).unwrap();
    pack(gguf.path(), of_gguf.path(), &AS_IT_IS).unwrap();
    let quantised_too = TempDir::new();
    pack(source().path(), quantised_too.path(), &quantised(4, 32)).unwrap();
    let mut n_files = 0;
    for target in [packed_source(), of_gguf, quantised_too] {
        let dir = target.path();
        assert_eq!(refusals(dir)[..2], [None, None]);
        let names = contents(dir).into_iter().filter(|(name, _)| {
            let is_other = ["LICENSE", "case.json", "tokens.json", "logits.npy", PACK_SUMS_NAME];
            !name.ends_with(".safetensors") && !is_other.contains(&name.as_str())
        });
        let names: Vec<_> = names.collect();
        let n_documents = verified(dir).n_documents;
        assert_eq!(n_documents, names.len());
        for (name, bytes) in names {
            n_files += 1;
            let path = dir.join(&name);
            for at in [0, bytes.len() / 2, bytes.len() - 1] {
                flip(&path, at);
                let damages = verified(dir).damages;
                let refusals = refusals(dir);
                flip(&path, at);
                let [damage] = damages.as_slice() else { panic!("{name} at {at}: {damages:?}") };
                assert_eq!((&damage.part, &damage.file), (&DamagedPart::Document, &path));
                for refusal in refusals {
                    let line = refusal.expect("a flipped bit is found");
                    assert!(line.contains(&name) && line.contains("checksum"), "{line}");
                    assert!(!line.contains('\n'), "{line}");
                }
            }
        }
        assert!(verified(dir).damages.is_empty());
    }
    assert!(n_files == 13 + 3 + 13, "{n_files}");
}

#[test]
fn a_small_file_that_came_or_went_is_refused() {
    let target = packed_source();
    let dir = target.path();
    let path = dir.join("chat_template.jinja");
    let template = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for refusal in refusals(dir) {
        assert!(refusal.unwrap().contains("chat_template.jinja: is missing"));
    }
    std::fs::write(&path, template).unwrap();
    // Files that a run does not use may change.
    std::fs::write(dir.join("LICENSE"), "another").unwrap();
    assert_eq!(refusals(dir)[0], None);
    assert!(verified(dir).damages.is_empty());
    let without = TempDir::new();
    pack(&golden_dir().join("qwen3_moe-bf16"), without.path(), &AS_IT_IS).unwrap();
    std::fs::copy(&path, without.path().join("chat_template.jinja")).unwrap();
    let line = Model::open(without.path()).unwrap_err().to_string();
    assert!(line.contains("did not exist when the model was packed"), "{line}");
}

#[test]
fn damaged_checksums_accuse_no_other_file() {
    let target = packed_source();
    let path = target.path().join(PACK_SUMS_NAME);
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(7) {
        // Blank space in JSON has no meaning.
        if whole[at].is_ascii_whitespace() {
            continue;
        }
        flip(&path, at);
        let damages = verified(target.path()).damages;
        let error = Model::open(target.path()).unwrap_err().to_string();
        flip(&path, at);
        assert!(error.contains(PACK_SUMS_NAME) && !error.contains('\n'), "{at}: {error}");
        assert!(damages.iter().all(|it| it.part == DamagedPart::PackSums), "{at}: {damages:?}");
        assert_eq!(damages.len(), 1);
    }
}

fn verified_as(dir: &Path, documents: Documents) -> Verified {
    verify_with(dir, documents, 2, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn edits_on_purpose_are_accepted_and_damage_is_not() {
    let target = packed_source();
    let dir = target.path();
    edit_config(dir, |config| config["rope_theta"] = 5000.0.into());
    std::fs::remove_file(dir.join("generation_config.json")).unwrap();
    assert_eq!(verified(dir).damages.len(), 2);
    let accepted = verified_as(dir, Documents::Accepted);
    assert!(accepted.damages.is_empty() && accepted.needs_pack_sums);
    assert!(write_sums(dir).unwrap().contains(&"config.json".to_owned()));
    assert!(!verified_as(dir, Documents::Accepted).needs_pack_sums);
    assert!(verified(dir).damages.is_empty());
    assert_eq!(refusals(dir)[0], None);
    flip(&dir.join("experts-00001.safetensors"), 20_000);
    assert_eq!(verified_as(dir, Documents::Accepted).damages.len(), 1);
    let plain = golden_dir().join("qwen3_moe-bf16");
    let found = verify_with(&plain, Documents::Accepted, 2, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(found, Err(Error::Input(_))));
    assert!(matches!(write_sums(&plain), Err(Error::Input(_))));
}

/// As packs were before they had checksums of their small files.
#[test]
fn a_pack_without_these_checksums_is_read_and_gets_them() {
    let target = packed_source();
    let dir = target.path();
    let path = dir.join(PACK_SUMS_NAME);
    let written = std::fs::read(&path).unwrap();
    assert!(!lacks_sums(dir) && !verified(dir).needs_pack_sums);
    std::fs::remove_file(&path).unwrap();
    assert!(lacks_sums(dir));
    assert_eq!(refusals(dir)[0], None);
    let found = verified(dir);
    assert!(found.needs_pack_sums && found.damages.is_empty());
    assert_eq!(found.n_documents, 0);
    write_sums(dir).unwrap();
    assert!(std::fs::read(&path).unwrap() == written);
    assert!(!lacks_sums(&golden_dir().join("qwen3_moe-bf16")));
    assert!(!lacks_sums(&golden_dir().join("gguf-qwen3moe-q8")));
}

/// Two models of the same geometry: no file of one is taken for a file of the other.
#[test]
fn a_file_of_the_pack_of_another_model_is_refused_by_name() {
    let (one, two) = (source(), source());
    let checkpoint = Checkpoint::open(two.path()).unwrap();
    for name in ["model.norm.weight", "model.layers.1.mlp.experts.3.up_proj.weight"] {
        let entry = &checkpoint.tensors[name];
        let at = usize::try_from(entry.offset_bytes).unwrap();
        flip(&checkpoint.files[entry.file_idx].path, at);
    }
    let (first, second) = (TempDir::new(), TempDir::new());
    pack(one.path(), first.path(), &AS_IT_IS).unwrap();
    pack(two.path(), second.path(), &AS_IT_IS).unwrap();
    for name in ["resident-00001.safetensors", "experts-00001.safetensors", PACK_SUMS_NAME] {
        let mixed = TempDir::copy_of(first.path());
        std::fs::copy(second.path().join(name), mixed.path().join(name)).unwrap();
        let line = Model::open(mixed.path()).unwrap_err().to_string();
        assert!(line.contains(name) && !line.contains('\n'), "{name}: {line}");
        let found =
            moeflux::provider::pack::verify(mixed.path(), 2, &mut |_| ControlFlow::Continue(()));
        let is_found = found.map_or_else(
            |error| error.to_string().contains(name),
            |found| found.damages.iter().any(|it| it.part == DamagedPart::ForeignFile),
        );
        assert!(is_found, "{name}");
    }
    std::fs::remove_file(first.path().join("experts-00001.safetensors")).unwrap();
    let line = Model::open(first.path()).unwrap_err().to_string();
    assert!(line.contains("experts-00001"), "{line}");
}

#[test]
fn checksums_of_a_pack_beside_other_weights_are_refused() {
    let target = packed_source();
    let plain = TempDir::copy_of(&golden_dir().join("qwen3_moe-bf16"));
    for name in [PACK_SUMS_NAME, "config.json"] {
        std::fs::copy(target.path().join(name), plain.path().join(name)).unwrap();
    }
    assert!(Model::open(plain.path()).is_err());
    let of_gguf = TempDir::new();
    pack(&golden_dir().join("gguf-qwen3moe-q8"), of_gguf.path(), &AS_IT_IS).unwrap();
    std::fs::remove_file(of_gguf.path().join(PACK_METADATA)).unwrap();
    let line = Model::open(of_gguf.path()).unwrap_err().to_string();
    assert!(line.contains(PACK_METADATA) && line.contains("is missing"), "{line}");
}
