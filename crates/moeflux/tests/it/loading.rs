//! Files that change while a model is loaded from them, or before: damage is found wherever the
//! bytes go, and two models are never mixed.

use std::fs::File;
use std::io::ErrorKind::PermissionDenied;
use std::ops::ControlFlow;
use std::path::Path;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::error::Result;
use moeflux::provider::experts::for_each_expert;
use moeflux::provider::format::{
    Checkpoint, CheckpointSums, DType, PACK_JOURNAL, SUMS_FILE_NAME, SumsDocument, TensorUnit,
    tensor_units,
};
use moeflux::provider::ids::{ExpertIdx, TokenId};
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::pack::{PackOptions, Packing, SourceHandling, verify};
use moeflux::provider::weights::{Progress, block_kind};
use moeflux_testing::cases::{GoldenCase, golden_dir, try_feed_all};
use moeflux_testing::temp_dir::TempDir;
use twox_hash::XxHash3_64;

use crate::packing::{AS_IT_IS, flip, pack, quantised};
use crate::support::config;

/// A layer of gated DeltaNet, rows of two matrices side by side, shared experts, two files.
const CASE: &str = "mlx-qwen3_5_moe-q4-g64-bf16";
const GGUF_CASE: &str = "gguf-qwen3moe-q8";

fn resident() -> EngineConfig {
    config(BackendKind::Cpu, Arithmetic::Int8, (64, 2))
}

fn unchecked() -> EngineConfig {
    let streaming = StreamingConfig { checks_sums: false, ..StreamingConfig::default() };
    EngineConfig { streaming, ..resident() }
}

/// An engine with all that has room in memory.
fn open(dir: &Path, config: &EngineConfig) -> Result<Engine> {
    open_watched(dir, config, &mut |_| ControlFlow::Continue(()))
}

fn open_watched(
    dir: &Path,
    config: &EngineConfig,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Engine> {
    let engine = Engine::load(Model::open(dir)?, config, watch)?;
    engine.read_rest(watch)?;
    Ok(engine)
}

/// Returns the error of a model that must not be opened. Not `unwrap_err`, which would print an
/// engine.
#[track_caller]
fn refused(opened: Result<Engine>, what: &str) -> String {
    match opened {
        Ok(_) => panic!("{what} was opened"),
        Err(error) => error.to_string(),
    }
}

/// Writes the sums of a folder as `moeflux doctor --deep` does.
fn write_sums(dir: &Path) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let files: Vec<Vec<u8>> =
        checkpoint.files.iter().map(|shard| std::fs::read(&shard.path).unwrap()).collect();
    let units = tensor_units(&checkpoint);
    let sum = |unit: &TensorUnit| {
        let first = usize::try_from(unit.first_bytes).unwrap();
        XxHash3_64::oneshot(
            &files[unit.file_idx][first..][..usize::try_from(unit.len_bytes).unwrap()],
        )
    };
    let sums: Vec<u64> = units.iter().map(sum).collect();
    let document = SumsDocument::new(&checkpoint, &units, &sums);
    std::fs::write(checkpoint.sums_path(), document.to_json().to_string()).unwrap();
}

/// Reads all experts as for a device that keeps them.
fn keep_all(dir: &Path) -> Result<()> {
    let (blueprint, checkpoint) = Model::open(dir)?.into_parts();
    let sums = CheckpointSums::of(&checkpoint)?;
    let source = (&checkpoint, sums.as_ref());
    let watch = &mut |_| ControlFlow::Continue(());
    for_each_expert(&blueprint.manifest, source, watch, &mut |_, _, _| Ok(()))
}

/// One flipped bit at many places of all files: refused when loaded for the CPU, and when experts
/// are loaded for a device if it is one of theirs.
fn check_flips(dir: &Path) {
    open(dir, &resident()).unwrap();
    keep_all(dir).unwrap();
    let (blueprint, checkpoint) = Model::open(dir).unwrap().into_parts();
    let parts = blueprint.manifest.banks.iter().flat_map(|bank| {
        let experts = (0..bank.n_experts).map(ExpertIdx);
        experts.flat_map(|expert| bank.parts.iter().map(move |part| part.extent(expert)))
    });
    let parts: Vec<_> = parts.collect();
    let (mut n_experts, mut n_unseen) = (0, 0);
    for (file_idx, shard) in checkpoint.files.iter().enumerate() {
        let data_at = usize::try_from(shard.data_at).unwrap();
        let len = usize::try_from(shard.len_bytes).unwrap();
        for at in (data_at..len).step_by(4999).chain([data_at, len - 1]) {
            let name = checkpoint.name_at(file_idx, at as u64);
            if name.contains("vision") || name.contains("mtp") || name == "header" {
                // Nothing reads it: the bytes between the tensors of a GGUF file.
                continue;
            }
            flip(&shard.path, at);
            let error = refused(open(dir, &resident()), &name);
            let is_experts = parts.iter().any(|part| {
                let range = part.offset_bytes..part.offset_bytes + part.len_bytes;
                part.file_idx == file_idx && range.contains(&(at as u64))
            });
            if is_experts {
                let kept = keep_all(dir).expect_err("a flipped bit of an expert").to_string();
                assert!(kept.contains("checksum"), "{at}: {kept}");
                n_experts += 1;
            }
            n_unseen += usize::from(open(dir, &unchecked()).is_ok());
            flip(&shard.path, at);
            let name = shard.path.file_name().unwrap().to_str().unwrap();
            assert!(error.contains(name) && !error.contains('\n'), "{at}: {error}");
            assert!(error.contains("checksum") && error.contains("damaged"), "{at}: {error}");
        }
    }
    assert!(n_experts > 5 && n_unseen > 20, "{n_experts} of experts, {n_unseen} unseen");
}

#[test]
fn a_flipped_bit_of_a_pack_is_refused_wherever_it_goes() {
    let packed = TempDir::new();
    pack(&golden_dir().join(CASE), packed.path(), &AS_IT_IS).unwrap();
    check_flips(packed.path());
}

#[test]
fn a_flipped_bit_is_refused_where_the_doctor_has_written_sums() {
    for case in [CASE, GGUF_CASE] {
        let dir = TempDir::copy_of(&golden_dir().join(case));
        write_sums(dir.path());
        check_flips(dir.path());
    }
}

#[test]
fn sums_of_another_model_are_refused_with_a_way_out() {
    let dir = TempDir::copy_of(&golden_dir().join(CASE));
    write_sums(dir.path());
    let other = TempDir::copy_of(&golden_dir().join("mlx-qwen3_moe-q4-g32-bf16"));
    std::fs::copy(dir.path().join(SUMS_FILE_NAME), other.path().join(SUMS_FILE_NAME)).unwrap();
    let error = refused(open(other.path(), &resident()), "sums of another model");
    assert!(error.contains(SUMS_FILE_NAME) && error.contains("delete it"), "{error}");
    open(other.path(), &unchecked()).unwrap();
}

/// Makes the factor of a block infinite. Returns the offset of the block.
fn spoil_block(dir: &Path, tensor: &str, block_idx: u64) -> u64 {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let entry = checkpoint.tensors.values().find(|entry| entry.name == tensor).expect(tensor);
    let DType::Block(block) = entry.dtype else { panic!("{tensor} is {}", entry.dtype) };
    let at = entry.offset_bytes + block_idx * block.n_bytes();
    let factor_at = block_kind(block).unwrap().factors_at()[0];
    let path = &checkpoint.files[entry.file_idx].path;
    let mut bytes = std::fs::read(path).unwrap();
    let factor = &mut bytes[usize::try_from(at).unwrap() + factor_at..][..2];
    factor.copy_from_slice(&0x7c00_u16.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
    at
}

/// As of scales that stand in tensors of their own.
#[test]
fn blocks_that_are_not_finite_are_refused_wherever_they_go() {
    let case = GoldenCase::load("gguf-qwen3moe-k");
    let is_damaged = |dir: &Path, at: u64| {
        let found = verify(dir, 2, &mut |_| ControlFlow::Continue(())).unwrap();
        let [damage] = found.damages.as_slice() else { panic!("{:?}", found.damages) };
        let message = damage.to_string();
        assert!(message.contains(&format!("at byte {at} is NaN or infinite")), "{message}");
    };
    let dir = TempDir::copy_of(&case.dir);
    let at = spoil_block(dir.path(), "blk.0.attn_q.weight", 3);
    is_damaged(dir.path(), at);
    let error = refused(open(dir.path(), &resident()), "a resident block");
    let expected = "tensor `blk.0.attn_q.weight`: value 768 is NaN or infinite";
    assert!(error.starts_with(expected), "{error}");

    let dir = TempDir::copy_of(&case.dir);
    // Down of three experts, 256 rows of a block each.
    let at = spoil_block(dir.path(), "blk.1.ffn_down_exps.weight", 256 + 5);
    is_damaged(dir.path(), at);
    let error = refused(open(dir.path(), &resident()), "a block of an expert");
    let value = format!("value {} is NaN or infinite", (256 + 5) * 256);
    assert!(error.contains(&value) && error.contains("down_proj"), "{error}");
    let streaming = StreamingConfig { n_slots_max: Some(2), ..StreamingConfig::default() };
    let engine = open(dir.path(), &EngineConfig { streaming, ..resident() }).unwrap();
    let mut session = engine.session(case.tokens.len()).unwrap();
    let error = try_feed_all(&mut session, &case.tokens).unwrap_err().to_string();
    assert!(error.contains("expert 1 of layer 1") && error.contains(&value), "{error}");
}

/// The exponent that stands for no number, among the scales of an expert.
#[test]
fn exponents_that_are_not_finite_are_refused_wherever_they_go() {
    let case = GoldenCase::load("qwen3_moe-mxfp4");
    let dir = TempDir::copy_of(&case.dir);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let tensor = "model.layers.1.mlp.experts.1.up_proj.weight_scale";
    let entry = checkpoint.tensors.values().find(|entry| entry.name == tensor).expect(tensor);
    let path = &checkpoint.files[entry.file_idx].path;
    let mut bytes = std::fs::read(path).unwrap();
    let at = entry.offset_bytes + 5;
    bytes[usize::try_from(at).unwrap()] = 0xff;
    std::fs::write(path, bytes).unwrap();
    let found = verify(dir.path(), 2, &mut |_| ControlFlow::Continue(())).unwrap();
    let [damage] = found.damages.as_slice() else { panic!("{:?}", found.damages) };
    assert!(damage.to_string().contains(&format!("at byte {at} is NaN or infinite")), "{damage}");
    let error = refused(open(dir.path(), &resident()), "an exponent of an expert");
    assert!(error.contains(&format!("`{tensor}`: value 5 is NaN or infinite")), "{error}");
    let streaming = StreamingConfig { n_slots_max: Some(2), ..StreamingConfig::default() };
    let engine = open(dir.path(), &EngineConfig { streaming, ..resident() }).unwrap();
    let mut session = engine.session(case.tokens.len()).unwrap();
    let error = try_feed_all(&mut session, &case.tokens).unwrap_err().to_string();
    assert!(error.contains("expert 1 of layer 1") && error.contains("value 5 is NaN"), "{error}");
}

/// A change of a model's file while it is loaded.
#[derive(Clone, Copy, Debug)]
enum Meddling {
    /// Another file of the same length replaces it.
    Replace,
    /// A byte is written.
    Write,
    Cut,
}

impl Meddling {
    /// Whether the system lets it happen: some refuse to replace a file that is open.
    fn apply(self, path: &Path) -> bool {
        let bytes = std::fs::read(path).unwrap();
        match self {
            Self::Replace => {
                let other = path.with_extension("other");
                std::fs::write(&other, bytes).unwrap();
                let modified = std::fs::metadata(path).unwrap().modified().unwrap();
                File::options().write(true).open(&other).unwrap().set_modified(modified).unwrap();
                match std::fs::rename(&other, path) {
                    Err(error) if cfg!(windows) && error.kind() == PermissionDenied => {
                        return false;
                    }
                    renamed => renamed.unwrap(),
                }
            }
            Self::Write => {
                let modified = || std::fs::metadata(path).unwrap().modified().unwrap();
                let before = modified();
                flip(path, bytes.len() - 1);
                // A file system's clock may stand still for some milliseconds.
                while modified() == before {
                    flip(path, bytes.len() - 1);
                    flip(path, bytes.len() - 1);
                }
            }
            Self::Cut => {
                let file = File::options().write(true).open(path).unwrap();
                file.set_len(bytes.len() as u64 - 1).unwrap();
            }
        }
        true
    }
}

/// The file changes at some call of the watcher, from the one before anything is read.
#[test]
fn a_file_that_changes_while_a_model_loads_is_refused() {
    let packed = TempDir::new();
    pack(&golden_dir().join(CASE), packed.path(), &AS_IT_IS).unwrap();
    for source in [&golden_dir().join(CASE), packed.path(), &golden_dir().join(GGUF_CASE)] {
        for meddling in [Meddling::Replace, Meddling::Write, Meddling::Cut] {
            for n_calls in [0, 1, 7] {
                check_meddling(source, meddling, n_calls);
            }
        }
    }
}

fn check_meddling(source: &Path, meddling: Meddling, n_calls: usize) {
    let dir = TempDir::copy_of(source);
    let path = Checkpoint::open(dir.path()).unwrap().files[0].path.clone();
    let (mut n_done, mut has_changed) = (0, false);
    let opened = open_watched(dir.path(), &unchecked(), &mut |_| {
        if n_done == n_calls {
            has_changed = meddling.apply(&path);
        }
        n_done += 1;
        ControlFlow::Continue(())
    });
    assert!(n_done > n_calls, "{n_done} calls");
    if !has_changed {
        opened.unwrap();
        return;
    }
    let error = refused(opened, "two models");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(error.contains(name), "{meddling:?} at {n_calls}: {error}");
}

/// The source changes at some step of a pack: no pack comes out, and nothing is deleted.
#[test]
fn a_source_that_changes_while_it_is_packed_is_refused_and_kept() {
    for handling in [SourceHandling::Kept, SourceHandling::Replaced] {
        for meddling in [Meddling::Write, Meddling::Cut] {
            for n_calls in [0, 3, 12] {
                let options = PackOptions { handling, ..quantised(4, 32) };
                check_changing_source(&options, meddling, n_calls);
            }
        }
    }
}

fn check_changing_source(options: &PackOptions, meddling: Meddling, n_calls: usize) {
    let source = TempDir::copy_of(&golden_dir().join("qwen3_moe-bf16"));
    let target = TempDir::new();
    let path = Checkpoint::open(source.path()).unwrap().files[0].path.clone();
    let packing = Packing::prepare(source.path(), target.path(), options).unwrap();
    let mut n_done = 0;
    let packed = packing.run(&mut |_| {
        if n_done == n_calls {
            assert!(meddling.apply(&path));
        }
        n_done += 1;
        ControlFlow::Continue(())
    });
    let error = packed.unwrap_err().to_string();
    let expected = match meddling {
        Meddling::Cut => "now after its header",
        Meddling::Write | Meddling::Replace => "was written to",
    };
    assert!(n_done > n_calls && error.contains(expected), "{meddling:?} at {n_calls}: {error}");
    assert!(path.exists() && !target.path().join("config.json").exists());
    // A run that goes on does not take it either.
    if target.path().join(PACK_JOURNAL).exists() {
        let again = pack(source.path(), target.path(), options).unwrap_err().to_string();
        let is_named = matches!(meddling, Meddling::Cut) || again.contains("touch -d @");
        assert!(is_named && path.exists(), "{again}");
    }
}

/// Every file of another pack has the same length and shapes.
#[test]
fn a_mirror_of_another_pack_is_refused_as_such() {
    let (packed, other) = (TempDir::new(), TempDir::new());
    let source = TempDir::copy_of(&golden_dir().join("qwen3_moe-bf16"));
    pack(source.path(), packed.path(), &AS_IT_IS).unwrap();
    let path = source.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text} ")).unwrap();
    pack(source.path(), other.path(), &AS_IT_IS).unwrap();
    let streaming = StreamingConfig {
        mirror: Some(other.path().to_owned()),
        n_slots_max: Some(4),
        ..StreamingConfig::default()
    };
    let config = EngineConfig { streaming, ..resident() };
    let error = refused(open(packed.path(), &config), "a mirror");
    assert!(error.contains("mirror") && error.contains("its header differs"), "{error}");
    let streaming = StreamingConfig { mirror: Some(packed.path().to_owned()), ..config.streaming };
    open(packed.path(), &EngineConfig { streaming, ..config }).unwrap();
}

/// Streamed experts of a folder that is not packed are compared with the doctor's sums as well.
#[test]
fn a_flipped_bit_of_a_streamed_expert_is_refused() {
    let dir = TempDir::copy_of(&golden_dir().join(CASE));
    write_sums(dir.path());
    let (blueprint, checkpoint) = Model::open(dir.path()).unwrap().into_parts();
    let tokens: Vec<_> = (0..60).map(TokenId).collect();
    let run = |checks_sums| {
        let streaming =
            StreamingConfig { checks_sums, n_slots_max: Some(4), ..StreamingConfig::default() };
        let engine = open(dir.path(), &EngineConfig { streaming, ..resident() })?;
        let mut session = engine.session(tokens.len())?;
        try_feed_all(&mut session, &tokens)
    };
    let expected = run(true).unwrap();
    let mut n_found = 0;
    for bank in &blueprint.manifest.banks {
        for part in &bank.parts {
            for expert in (0..bank.n_experts).step_by(5).map(ExpertIdx) {
                let extent = part.extent(expert);
                let path = &checkpoint.files[extent.file_idx].path;
                let at = usize::try_from(extent.offset_bytes + extent.len_bytes - 1).unwrap();
                flip(path, at);
                match run(true) {
                    Err(error) => {
                        n_found += 1;
                        assert!(error.to_string().contains("checksum"), "{error}");
                    }
                    // It was not chosen.
                    Ok(found) => assert!(found == expected),
                }
                flip(path, at);
            }
        }
    }
    assert!(n_found > 10, "{n_found}");
}
