//! Damaged packs: every flipped bit is found by `verify`, every wrong header refused in one line.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use moeflux::provider::format::{Checkpoint, PACK_SUMS_NAME};
use moeflux::provider::ids::ExpertIdx;
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::pack::{Coverage, DamagedPart};
use moeflux_testing::cases::golden_dir;
use moeflux_testing::temp_dir::TempDir;

use super::{AS_IT_IS, edit_config, pack, quantised, verified};

/// Flips one bit of a file.
pub(crate) fn flip(path: &Path, at: usize) {
    let mut file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at as u64)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at as u64)).unwrap();
    file.write_all(&[byte[0] ^ 0x10]).unwrap();
}

#[test]
fn every_flipped_bit_is_found_and_named() {
    let target = TempDir::new();
    pack(&golden_dir().join("mlx-qwen3_5_moe-q4-g64-bf16"), target.path(), &AS_IT_IS).unwrap();
    let (blueprint, checkpoint) = Model::open(target.path()).unwrap().into_parts();
    let mut n_found = 0;
    for (file_idx, shard) in checkpoint.files.iter().enumerate() {
        let len = usize::try_from(shard.len_bytes).unwrap();
        let data_at = usize::try_from(shard.data_at).unwrap();
        let bank =
            blueprint.manifest.banks.iter().find(|bank| bank.records.unwrap().file_idx == file_idx);
        for at in (data_at..len).step_by(9973).chain([data_at, len - 9, len - 1]) {
            flip(&shard.path, at);
            let damages = verified(target.path()).damages;
            flip(&shard.path, at);
            let [damage] = damages.as_slice() else {
                // A changed sum damages the table and the record that it belongs to.
                assert!(at >= len - 8 * 200 && damages.len() == 2, "{at}: {damages:?}");
                continue;
            };
            n_found += 1;
            assert_eq!(damage.file, shard.path);
            if damage.part == DamagedPart::Checksums {
                assert!(at >= len - 8, "{at} of {len}");
                continue;
            }
            let range = damage.first_bytes..damage.first_bytes + damage.len_bytes;
            assert!(range.contains(&(at as u64)), "{damage}");
            if let Some(bank) = bank {
                let expert = (at - data_at) / bank.records.unwrap().record_bytes;
                assert_eq!(damage.part, DamagedPart::Expert(bank.layer, ExpertIdx(expert)));
                assert!(damage.to_string().starts_with("layer "), "{damage}");
            }
        }
    }
    assert!(n_found > 40, "{n_found}");
    assert!(verified(target.path()).damages.is_empty());
}

#[test]
fn a_checkpoint_without_checksums_is_searched_for_impossible_values() {
    let source = TempDir::copy_of(&golden_dir().join("mlx-qwen3_moe-q4-g32-bf16"));
    let found = verified(source.path());
    assert_eq!((found.coverage, found.n_records), (Coverage::FiniteOnly, 0));
    assert!(found.damages.is_empty());
    let checkpoint = Checkpoint::open(source.path()).unwrap();
    for name in [
        "model.norm.weight",
        "model.layers.1.mlp.switch_mlp.up_proj.scales",
        "model.layers.0.self_attn.q_proj.biases",
    ] {
        let entry = &checkpoint.tensors[name];
        let path = &checkpoint.files[entry.file_idx].path;
        let before = std::fs::read(path).unwrap();
        let mut bytes = before.clone();
        let at = usize::try_from(entry.offset_bytes).unwrap() + 6;
        bytes[at..at + 2].copy_from_slice(&0xff80_u16.to_le_bytes());
        std::fs::write(path, bytes).unwrap();
        let damages = verified(source.path()).damages;
        std::fs::write(path, before).unwrap();
        let [damage] = damages.as_slice() else { panic!("{name}: {damages:?}") };
        assert_eq!(damage.part, DamagedPart::Tensor(name.to_owned()));
        assert!(damage.problem.contains(&format!("byte {at} ")), "{damage}");
    }
}

/// Replaces text in the header of a packed file by other text of the same length.
fn edit_header(path: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(from.len()).position(|it| it == from.as_bytes());
    let at = at.unwrap_or_else(|| unreachable!("no {from} in {}", path.display()));
    bytes[at..][..to.len()].copy_from_slice(to.as_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_folder_that_is_no_longer_a_pack_is_refused_in_one_line() {
    let packed = TempDir::new();
    pack(&golden_dir().join("qwen3_moe-bf16"), packed.path(), &quantised(4, 32)).unwrap();
    let other = TempDir::new();
    pack(&golden_dir().join("qwen3_moe-bf16"), other.path(), &AS_IT_IS).unwrap();
    let experts = "experts-00001.safetensors";
    let refused = |damage: &dyn Fn(&Path), word: &str| {
        let copy = TempDir::copy_of(packed.path());
        damage(copy.path());
        let line = Model::open(copy.path()).unwrap_err().to_string();
        assert!(line.contains(word) && !line.contains('\n'), "`{line}` does not say `{word}`");
    };
    let edit = |from: &'static str, to: &'static str| {
        move |dir: &Path| edit_header(&dir.join(experts), from, to)
    };
    let version = (r#""format_version":"1""#, r#""format_version":"2""#);
    refused(&edit(version.0, version.1), "version \"2\"");
    refused(&edit("xxh3-64", "sha-256"), "`sums`");
    refused(&edit(r#""role":"experts""#, r#""role":"exports""#), "`role`");
    refused(&edit(r#"kind\":\"float"#, r#"kind\":\"nvfp4"#), "\"nvfp4\"");
    refused(&edit(r#"codes_at\":0"#, r#"codes_at\":8"#), "wrong offset");
    refused(&edit(r#"shape\":[16"#, r#"shape\":[17"#), "config.json requires [16, 48]");
    refused(&edit("model.layers.1.mlp\"", "model.layers.7.mlp\""), "experts");
    refused(&|dir| std::fs::remove_file(dir.join(experts)).unwrap(), "fetch them again");
    let mixed = |dir: &Path| {
        std::fs::copy(other.path().join(experts), dir.join(experts)).map(drop).unwrap();
    };
    refused(&mixed, "a different pack");
    let stranger = |dir: &Path| {
        let from = golden_dir().join("qwen3_moe-f32/model.safetensors");
        std::fs::copy(from, dir.join("model.safetensors")).map(drop).unwrap();
        std::fs::remove_file(dir.join("model.safetensors.index.json")).unwrap();
        std::fs::remove_file(dir.join(PACK_SUMS_NAME)).unwrap();
    };
    refused(&stranger, "is not packed");
    let as_before = |dir: &Path| std::fs::remove_file(dir.join(PACK_SUMS_NAME)).unwrap();
    let bits = |dir: &Path| {
        as_before(dir);
        // Without an entry of its own, the shapes of a tensor decide.
        let entry = serde_json::json!({"group_size": 32, "bits": 8});
        let output = "model.layers.0.self_attn.o_proj";
        edit_config(dir, |config| config["quantization"][output] = entry.clone());
    };
    refused(&bits, "config.json says 8 bits");
    let experts = |dir: &Path| {
        as_before(dir);
        edit_config(dir, |config| config["num_experts"] = 15.into());
    };
    refused(&experts, "15");
}
