//! Packs of the golden cases: the same logits, the bits of mlx-lm, and whole whatever interrupts.

mod damaged;
mod gguf;
mod input_first;
mod resumed;
mod small_files;

pub(crate) use damaged::flip;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use moeflux::provider::config::BackendKind;
use moeflux::provider::error::{Error, Result};
use moeflux::provider::format::{Checkpoint, RawConfig};
use moeflux::provider::ids::ExpertIdx;
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::pack::{
    Coverage, PackOptions, PackReport, Packing, SourceHandling, Verified, verify,
};
use moeflux::provider::spec::{ModelSpec, QuantParams};
use moeflux::provider::weights::FileExtent;
use moeflux_testing::cases::{GoldenCase, case_names, feed_all, golden_dir};
use moeflux_testing::temp_dir::TempDir;
use serde_json::Value;

use crate::support::open;

pub(crate) const AS_IT_IS: PackOptions = PackOptions {
    params: None,
    handling: SourceHandling::Kept,
    n_threads: NonZeroUsize::new(2).unwrap(),
};

pub(crate) fn quantised(bits: u8, group: u8) -> PackOptions {
    PackOptions { params: Some(QuantParams { bits, group }), ..AS_IT_IS }
}

pub(crate) fn pack(source: &Path, target: &Path, options: &PackOptions) -> Result<PackReport> {
    Packing::prepare(source, target, options)?.run(&mut |_| ControlFlow::Continue(()))
}

/// Runs a pack whose `n_steps`-th step is its last.
fn pack_until(
    source: &Path,
    target: &Path,
    options: &PackOptions,
    n_steps: usize,
) -> Result<PackReport> {
    let mut n_done = 0;
    Packing::prepare(source, target, options)?.run(&mut |_| {
        n_done += 1;
        if n_done > n_steps { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

pub(crate) fn verified(dir: &Path) -> Verified {
    verify(dir, 2, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// All files of a folder.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let read = |entry: std::fs::DirEntry| {
        let bytes = std::fs::read(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), bytes)
    };
    entries.map(read).collect()
}

pub(crate) fn logits(dir: &Path, case: &GoldenCase, backend: BackendKind) -> Vec<Vec<f32>> {
    let tokens = &case.tokens[..case.tokens.len().min(40)];
    let engine = open(dir, backend, 64);
    feed_all(&mut engine.session(tokens.len()).unwrap(), tokens)
}

/// Whether a case is a folder of safetensors.
fn is_folder(name: &str) -> bool {
    golden_dir().join(name).join("config.json").exists()
}

#[test]
fn a_pack_computes_the_bits_of_its_source() {
    for name in case_names() {
        let case = GoldenCase::load(&name);
        let target = TempDir::new();
        let packed = pack(&case.dir, target.path(), &AS_IT_IS).unwrap();
        let (blueprint, _) = Model::open(&case.dir).unwrap().into_parts();
        // A dense model has no files of experts.
        let has_experts = !blueprint.manifest.banks.is_empty();
        assert!(packed.n_files > usize::from(has_experts), "{name}");
        let found = verified(target.path());
        assert_eq!((found.coverage, found.damages.as_slice()), (Coverage::Checksums, &[][..]));
        for backend in [BackendKind::Reference, BackendKind::Cpu] {
            let (of_pack, of_source) =
                (logits(target.path(), &case, backend), logits(&case.dir, &case, backend));
            assert!(of_pack == of_source, "{name} on {backend:?}");
        }
        if is_folder(&name) {
            let read = |dir: &Path| std::fs::read(dir.join("config.json")).unwrap();
            assert!(read(target.path()) == read(&case.dir), "{name}: its config was not changed");
        }
    }
}

#[test]
fn records_are_aligned_and_whole() {
    let target = TempDir::new();
    let source = golden_dir().join("mlx-glm4_moe-mixed_2_6-g32-bf16");
    pack(&source, target.path(), &AS_IT_IS).unwrap();
    let (blueprint, checkpoint) = Model::open(target.path()).unwrap().into_parts();
    let (original, _) = Model::open(&source).unwrap().into_parts();
    assert_eq!(blueprint.manifest.banks.len(), original.manifest.banks.len());
    for (bank, original) in blueprint.manifest.banks.iter().zip(&original.manifest.banks) {
        let records = bank.records.unwrap();
        assert_eq!(bank.layout, original.layout);
        for expert in (0..bank.n_experts).map(ExpertIdx) {
            let record = records.extent(expert);
            assert!(record.offset_bytes.is_multiple_of(16 << 10));
            assert!(record.len_bytes.is_multiple_of(16 << 10));
            for part in &bank.parts {
                let extent = part.extent(expert);
                assert_eq!(extent.offset_bytes, record.offset_bytes + part.record_at as u64);
                assert!(extent.offset_bytes.is_multiple_of(64));
            }
        }
    }
    assert_eq!(checkpoint.packed.unwrap().sums.len(), checkpoint.files.len());
}

/// Hash of the tests' oracle.
fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn bytes_of(checkpoint: &Checkpoint, extent: FileExtent) -> Vec<u8> {
    let file = std::fs::read(&checkpoint.files[extent.file_idx].path).unwrap();
    let first = usize::try_from(extent.offset_bytes).unwrap();
    file[first..][..usize::try_from(extent.len_bytes).unwrap()].to_vec()
}

/// Hashes of all quantised modules of a pack, experts stacked as mlx-lm does, by canonical name.
fn quantised_modules(dir: &Path) -> BTreeMap<String, String> {
    let (blueprint, checkpoint) = Model::open(dir).unwrap().into_parts();
    let mut found = BTreeMap::new();
    for name in checkpoint.tensors.keys() {
        let Some(base) = name.strip_suffix(".scales") else { continue };
        let part = |part: &str| {
            let entry = &checkpoint.tensors[&format!("{base}.{part}")];
            let &moeflux::provider::format::TensorEntry {
                file_idx, offset_bytes, len_bytes, ..
            } = entry;
            bytes_of(&checkpoint, FileExtent { file_idx, offset_bytes, len_bytes })
        };
        let bytes = ["weight", "scales", "biases"].into_iter().flat_map(part);
        found.insert(base.to_owned(), format!("{:016x}", fnv(bytes)));
    }
    for bank in &blueprint.manifest.banks {
        for projection in ["gate_proj", "up_proj", "down_proj"] {
            let parts = bank.parts.iter().filter(|part| part.name.starts_with(projection));
            let parts: Vec<_> = parts.collect();
            if parts.len() < 3 {
                continue;
            }
            let experts = |part| {
                let experts = (0..bank.n_experts).map(ExpertIdx);
                let extent =
                    move |expert| moeflux::provider::weights::BankPart::extent(part, expert);
                experts.flat_map(move |expert| bytes_of(&checkpoint_of(dir), extent(expert)))
            };
            let hash = fnv(parts.into_iter().flat_map(experts));
            found.insert(format!("{}.switch_mlp.{projection}", bank.name), format!("{hash:016x}"));
        }
    }
    found
}

fn checkpoint_of(dir: &Path) -> Checkpoint {
    Checkpoint::open(dir).unwrap()
}

#[test]
fn quantised_packs_have_the_bits_of_mlx_lm() {
    let text = std::fs::read(golden_dir().join("quantised.json")).unwrap();
    let golden: Value = serde_json::from_slice(&text).unwrap();
    let packs = golden["packs"].as_array().unwrap();
    assert!(packs.len() >= 27);
    for wanted in packs {
        let name = wanted["case"].as_str().unwrap();
        let byte = |key: &str| u8::try_from(wanted[key].as_u64().unwrap()).unwrap();
        let source = TempDir::copy_of(&golden_dir().join(name));
        if let Some(torch_dtype) = wanted["torch_dtype"].as_str() {
            edit_config(source.path(), |config| config["torch_dtype"] = torch_dtype.into());
        }
        let target = TempDir::new();
        pack(source.path(), target.path(), &quantised(byte("bits"), byte("group"))).unwrap();
        let expected: BTreeMap<String, String> = wanted["modules"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, hash)| (canonical(name), hash.as_str().unwrap().to_owned()))
            .collect();
        let what = format!("{name} with {} bits, group {}", byte("bits"), byte("group"));
        assert_eq!(quantised_modules(target.path()), expected, "{what}");
        let mut config = read_config(&source);
        config["quantization"] = wanted["quantization"].clone();
        config.as_object_mut().unwrap().remove("quantization_config");
        let bytes = config.to_string();
        let raw = RawConfig::parse(Path::new("mlx"), bytes.as_bytes()).unwrap();
        let expected = ModelSpec::from_config(&raw).unwrap().quantisation;
        let (blueprint, _) = Model::open(target.path()).unwrap().into_parts();
        assert_eq!(blueprint.spec.quantisation, expected, "{what}");
        assert!(verified(target.path()).damages.is_empty(), "{what}");
    }
}

fn canonical(name: &str) -> String {
    name.strip_prefix("language_model.").unwrap_or(name).to_owned()
}

fn read_config(dir: &TempDir) -> Value {
    serde_json::from_slice(&std::fs::read(dir.path().join("config.json")).unwrap()).unwrap()
}

fn edit_config(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join("config.json");
    let mut config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(path, serde_json::to_vec(&config).unwrap()).unwrap();
}

#[test]
fn quantised_packs_stay_close_to_their_source() {
    let of_gguf = ["gguf-qwen3moe-k", "gguf-deepseek2", "gguf-qwen35moe", "gguf-qwen3next"];
    for name in ["qwen3_next-bf16-wide", "deepseek_v3-fp8-wide"].into_iter().chain(of_gguf) {
        let case = GoldenCase::load(name);
        let target = TempDir::new();
        pack(&case.dir, target.path(), &quantised(8, 32)).unwrap();
        let [exact, found] =
            [&case.dir, target.path()].map(|dir| logits(dir, &case, BackendKind::Cpu));
        let square = |it: f32| f64::from(it) * f64::from(it);
        let pairs = || exact.iter().flatten().zip(found.iter().flatten());
        let error: f64 = pairs().map(|(a, b)| square(a - b)).sum();
        let norm: f64 = pairs().map(|(a, _)| square(*a)).sum();
        let nmse = error / norm;
        println!("{name}: {nmse:e}");
        assert!(nmse > 0.0 && nmse < 2e-3, "{name}: {nmse:e}");
    }
}

#[test]
fn a_pack_interrupted_at_any_step_ends_the_same() {
    // Two shards, quantised, and few files: each waits for the drive.
    for name in ["kimi_k2-fp8", "gguf-qwen35moe"] {
        let original = TempDir::copy_of(&golden_dir().join(name));
        let case = original.path();
        // One document is as good a test as three, with fewer waits for the drive.
        for name in ["logits.npy", "case.json"] {
            std::fs::remove_file(case.join(name)).unwrap();
        }
        ends_the_same_wherever_it_is_interrupted(case);
    }
}

fn ends_the_same_wherever_it_is_interrupted(case: &Path) {
    let expected = TempDir::new();
    pack(case, expected.path(), &quantised(4, 32)).unwrap();
    let expected = contents(expected.path());
    for handling in [SourceHandling::Kept, SourceHandling::Replaced] {
        let options = PackOptions { handling, ..quantised(4, 32) };
        for n_steps in steps_to_try(case, &options) {
            let (source, target) = (TempDir::copy_of(case), TempDir::new());
            let first = pack_until(source.path(), target.path(), &options, n_steps);
            assert!(matches!(first, Err(Error::Cancelled)), "{n_steps}");
            let is_model = Model::open(target.path()).is_ok();
            assert!(!is_model || contents(target.path()).len() > expected.len(), "{n_steps}");
            pack(source.path(), target.path(), &options)
                .unwrap_or_else(|error| unreachable!("after {n_steps} steps: {error}"));
            assert!(contents(target.path()) == expected, "after {n_steps} steps, {handling:?}");
            let left = contents(source.path()).into_keys();
            let is_weights =
                |name: &String| name.ends_with(".safetensors") || name.ends_with(".gguf");
            let n_left = left.filter(is_weights).count();
            assert_eq!(n_left, if handling == SourceHandling::Kept { 2 } else { 0 });
        }
    }
}

/// Numbers of steps after which to interrupt: before each file that begins, is synced, gets its
/// name or is deleted, and before some of the writes between, which are all alike.
fn steps_to_try(case: &Path, options: &PackOptions) -> Vec<usize> {
    let (source, target) = (TempDir::copy_of(case), TempDir::new());
    let mut done_bytes = Vec::new();
    let packed =
        Packing::prepare(source.path(), target.path(), options).unwrap().run(&mut |progress| {
            done_bytes.push(progress.done_bytes);
            ControlFlow::Continue(())
        });
    let n_replaced = if options.handling == SourceHandling::Kept { 0 } else { 2 };
    assert_eq!(packed.unwrap().n_replaced, n_replaced);
    let is_change = |step: &usize| done_bytes.get(step + 1) == Some(&done_bytes[*step]);
    let tried: Vec<usize> =
        (0..done_bytes.len()).filter(|step| step % 11 == 0 || is_change(step)).collect();
    println!("{} of {} steps", tried.len(), done_bytes.len());
    assert!(tried.len() > 20);
    tried
}

#[test]
fn a_pack_interrupted_again_and_again_ends_the_same() {
    let case = golden_dir().join("qwen3_moe-bf16");
    let expected = TempDir::new();
    pack(&case, expected.path(), &AS_IT_IS).unwrap();
    let source = TempDir::copy_of(&case);
    let target = TempDir::new();
    let options = PackOptions { handling: SourceHandling::Replaced, ..AS_IT_IS };
    let mut n_runs = 0;
    // Each run gets further than the last: files with their final names stay.
    while pack_until(source.path(), target.path(), &options, 110 + n_runs).is_err() {
        n_runs += 1;
        assert!(n_runs < 300);
    }
    assert!(n_runs > 1, "{n_runs} runs");
    assert!(contents(target.path()) == contents(expected.path()));
}

#[test]
fn damaged_output_is_replaced_on_resuming() {
    let case = golden_dir().join("qwen3_moe-bf16");
    let source = TempDir::copy_of(&case);
    let target = TempDir::new();
    assert!(pack_until(source.path(), target.path(), &AS_IT_IS, 150).is_err());
    let resident = target.path().join("resident-00001.safetensors");
    let mut bytes = std::fs::read(&resident).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&resident, bytes).unwrap();
    let options = PackOptions { handling: SourceHandling::Replaced, ..AS_IT_IS };
    let error = pack(source.path(), target.path(), &options).unwrap_err().to_string();
    assert!(
        error.contains("resident-00001") && error.contains("differ from those that were written"),
        "{error}"
    );
    let shards = contents(source.path());
    assert_eq!(shards.keys().filter(|name| name.ends_with(".safetensors")).count(), 3);
}

#[test]
fn replacing_needs_room_for_one_layer_more_than_is_freed() {
    let source = TempDir::copy_of(&golden_dir().join("qwen3_moe-bf16"));
    let target = TempDir::new();
    let room = |handling| {
        let options = PackOptions { handling, ..AS_IT_IS };
        let packing = Packing::prepare(source.path(), target.path(), &options).unwrap();
        (packing.room_bytes(), packing.total_bytes())
    };
    let (kept, total) = room(SourceHandling::Kept);
    assert_eq!(kept, total);
    let (replaced, _) = room(SourceHandling::Replaced);
    if cfg!(unix) {
        assert!(replaced < total, "{replaced} of {total}");
        // Deleting a file with another link, or with holes, frees no space.
        let name = "model-00001-of-00003.safetensors";
        std::fs::hard_link(source.path().join(name), target.path().join("kept")).unwrap();
        let elsewhere = TempDir::new();
        let options = PackOptions { handling: SourceHandling::Replaced, ..AS_IT_IS };
        let packing = Packing::prepare(source.path(), elsewhere.path(), &options).unwrap();
        assert!(packing.room_bytes() > replaced);
    }
}

#[cfg(unix)]
#[test]
fn holes_make_no_room() {
    let source = TempDir::copy_of(&golden_dir().join("qwen3_moe-bf16"));
    let target = TempDir::new();
    let options = PackOptions { handling: SourceHandling::Replaced, ..AS_IT_IS };
    let room = || Packing::prepare(source.path(), target.path(), &options).unwrap().room_bytes();
    let before = room();
    for shard in Checkpoint::open(source.path()).unwrap().files {
        let file = std::fs::File::options().write(true).open(&shard.path).unwrap();
        file.set_len(shard.data_at).unwrap();
        file.set_len(shard.len_bytes).unwrap();
    }
    assert!(room() > before, "{} after, {before} before", room());
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_only_those_of_a_cache_are_replaced() {
    let case = golden_dir().join("qwen3_moe-bf16");
    let cache = TempDir::new();
    let [blobs, one, two] = ["blobs", "snapshots/one", "snapshots/two"].map(|name| {
        let dir = cache.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    });
    for name in contents(&case).keys() {
        std::fs::copy(case.join(name), blobs.join(name)).unwrap();
        std::os::unix::fs::symlink(blobs.join(name), one.join(name)).unwrap();
    }
    let shared = "model-00001-of-00003.safetensors";
    std::os::unix::fs::symlink(blobs.join(shared), two.join(shared)).unwrap();
    let target = TempDir::new();
    let options = PackOptions { handling: SourceHandling::Replaced, ..AS_IT_IS };
    let error = pack(&one, target.path(), &options).unwrap_err().to_string();
    assert!(error.contains("another snapshot"), "{error}");
    std::fs::remove_file(two.join(shared)).unwrap();
    pack(&one, target.path(), &options).unwrap();
    assert!(!blobs.join(shared).exists() && !one.join(shared).is_symlink());
    assert!(blobs.join("config.json").exists());
    assert!(verified(target.path()).damages.is_empty());

    let (elsewhere, linked) = (TempDir::copy_of(&case), TempDir::new());
    for name in contents(&case).keys() {
        std::os::unix::fs::symlink(elsewhere.path().join(name), linked.path().join(name)).unwrap();
    }
    let target = TempDir::new();
    let error = pack(linked.path(), target.path(), &options).unwrap_err().to_string();
    assert!(error.contains("replacing the source would delete that file"), "{error}");
    pack(linked.path(), target.path(), &AS_IT_IS).unwrap();
    assert_eq!(contents(elsewhere.path()).len(), contents(&case).len());
}

#[test]
fn models_that_cannot_be_packed_are_refused_in_one_line() {
    let case = golden_dir().join("qwen3_moe-bf16");
    let refused = |source: &Path, target: &Path, options: &PackOptions, word: &str| {
        let line = Packing::prepare(source, target, options).unwrap_err().to_string();
        assert!(line.contains(word) && !line.contains('\n'), "`{line}` does not say `{word}`");
    };
    let quantised_case = golden_dir().join("mlx-qwen3_moe-q4-g32-bf16");
    let target = TempDir::new();
    refused(&quantised_case, target.path(), &quantised(4, 64), "quantised already");
    refused(&case, &case, &AS_IT_IS, "a pack needs its own folder");
    let source = TempDir::copy_of(&case);
    let replaced = PackOptions { handling: SourceHandling::Replaced, ..AS_IT_IS };
    refused(source.path(), &source.path().join("packed"), &replaced, "another folder");
    refused(source.path(), source.path().parent().unwrap(), &AS_IT_IS, "mixed with other files");
    refused(&case.join("none"), target.path(), &AS_IT_IS, "none");

    std::fs::write(target.path().join("mine"), "x").unwrap();
    refused(&case, target.path(), &AS_IT_IS, "do not belong to an interrupted pack");
    std::fs::remove_file(target.path().join("mine")).unwrap();

    assert!(pack_until(source.path(), target.path(), &AS_IT_IS, 60).is_err());
    refused(source.path(), target.path(), &quantised(4, 32), "4 bits in groups of 32");
    let error = Model::open(target.path()).unwrap_err().to_string();
    assert!(error.contains("unfinished pack"), "{error}");
    edit_config(source.path(), |config| config["rope_theta"] = 5.into());
    refused(source.path(), target.path(), &AS_IT_IS, "is not the file that the interrupted pack");
    std::fs::copy(case.join("config.json"), source.path().join("config.json")).unwrap();
    let last = source.path().join("model-00003-of-00003.safetensors");
    let modified = std::fs::metadata(&last).unwrap().modified().unwrap();
    std::fs::remove_file(&last).unwrap();
    refused(source.path(), target.path(), &AS_IT_IS, "put it back");
    std::fs::copy(case.join("model-00003-of-00003.safetensors"), &last).unwrap();
    let set_modified = |time| {
        let file = std::fs::File::options().write(true).open(&last).unwrap();
        file.set_modified(time).unwrap();
    };
    // Some systems copy the time, too.
    set_modified(modified + Duration::from_secs(5));
    refused(source.path(), target.path(), &AS_IT_IS, "`touch -d @");
    set_modified(modified);
    let journal = target.path().join("moeflux-pack.journal");
    let text = std::fs::read_to_string(&journal).unwrap();
    for damaged in [text.replacen("BF16", "F16 ", 1), text[..text.len() / 2].to_owned()] {
        std::fs::write(&journal, damaged).unwrap();
        refused(source.path(), target.path(), &AS_IT_IS, "not a journal");
    }
    std::fs::write(&journal, text).unwrap();
    pack(source.path(), target.path(), &AS_IT_IS).unwrap();
    refused(&case, target.path(), &AS_IT_IS, "a finished pack");
    refused(target.path(), TempDir::new().path(), &AS_IT_IS, "is packed already");
}

#[test]
fn values_that_are_not_finite_are_not_quantised() {
    let source = TempDir::copy_of(&golden_dir().join("qwen3_next-bf16-wide"));
    let checkpoint = Checkpoint::open(source.path()).unwrap();
    let name = "model.layers.1.mlp.experts.2.up_proj.weight";
    let entry = &checkpoint.tensors[name];
    let path = &checkpoint.files[entry.file_idx].path;
    let mut bytes = std::fs::read(path).unwrap();
    let at = usize::try_from(entry.offset_bytes).unwrap() + 2 * 130;
    bytes[at..at + 2].copy_from_slice(&0x7f80_u16.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
    let target = TempDir::new();
    let error = pack(source.path(), target.path(), &quantised(4, 64)).unwrap_err();
    assert!(matches!(error, Error::Tensor { .. }));
    assert!(error.to_string().contains("value 130 is NaN or infinite"), "{error}");
    assert!(error.to_string().contains(name), "{error}");
}
