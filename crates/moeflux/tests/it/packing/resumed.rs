//! Interrupted packs that continue with another source: files of equal length, header and time of
//! change are distinguished by their contents, and nothing is mixed.

use std::path::Path;
use std::time::SystemTime;

use moeflux::provider::error::Result;
use moeflux::provider::format::Checkpoint;
use moeflux::provider::model::Model;
use moeflux::provider::pack::{PackOptions, PackReport, Packing, SourceHandling};
use moeflux_testing::cases::golden_dir;
use moeflux_testing::temp_dir::TempDir;

use super::{AS_IT_IS, contents, flip, pack, pack_until, quantised};

/// A copy whose files all have the same time, as those of archives and image layers do.
fn archived(case: &str) -> TempDir {
    let copy = TempDir::copy_of(&golden_dir().join(case));
    set_times(copy.path());
    copy
}

fn set_times(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let file = std::fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
}

/// Changes a tensor, as another model of the same geometry has it.
fn change(dir: &Path, tensor: &str) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let entry = &checkpoint.tensors[tensor];
    flip(
        &checkpoint.files[entry.file_idx].path,
        usize::try_from(entry.offset_bytes + entry.len_bytes / 2).unwrap(),
    );
    set_times(dir);
}

fn packed(source: &Path, options: &PackOptions) -> TempDir {
    let target = TempDir::new();
    pack(source, target.path(), options).unwrap();
    target
}

/// Interrupts the pack of one source and goes on with another.
fn gone_on(one: &Path, two: &Path, target: &Path, n_steps: usize) -> Option<Result<PackReport>> {
    pack_until(one, target, &AS_IT_IS, n_steps).is_err().then(|| pack(two, target, &AS_IT_IS))
}

#[test]
fn two_models_of_the_same_lengths_and_times_are_never_mixed() {
    for tensor in ["model.norm.weight", "model.layers.1.mlp.experts.3.up_proj.weight"] {
        let (one, two) = (archived("qwen3_moe-bf16"), archived("qwen3_moe-bf16"));
        change(two.path(), tensor);
        let expected = contents(packed(two.path(), &AS_IT_IS).path());
        let (mut n_refused, mut n_taken) = (0, 0);
        for n_steps in (0..400).step_by(23) {
            let target = TempDir::new();
            match gone_on(one.path(), two.path(), target.path(), n_steps) {
                None => break,
                Some(Ok(_)) => {
                    n_taken += 1;
                    assert!(contents(target.path()) == expected, "{tensor} after {n_steps} steps");
                }
                Some(Err(error)) => {
                    n_refused += 1;
                    let line = error.to_string();
                    assert!(line.contains("is not the file that the interrupted pack"), "{line}");
                    assert!(!target.path().join("config.json").exists());
                }
            }
        }
        // Before the journal was written, there is nothing to go on from.
        assert!(n_refused > 5 && n_taken > 0, "{tensor}: {n_refused} refused, {n_taken} taken");
    }
}

/// The change is in a tensor that is copied but not run, of which no sample is compared.
#[test]
fn output_of_a_possibly_changed_file_is_made_again() {
    let case = "qwen3_5_moe-bf16";
    let (one, two) = (archived(case), archived(case));
    let checkpoint = Checkpoint::open(two.path()).unwrap();
    let is_extra = |name: &&String| name.starts_with("mtp.") || name.contains("visual");
    let extra = checkpoint.tensors.keys().find(is_extra).expect("a tensor that is not run");
    change(two.path(), extra);
    let expected = packed(two.path(), &AS_IT_IS);
    let of_one = packed(one.path(), &AS_IT_IS);
    let mut n_taken = 0;
    for n_steps in (0..400).step_by(17) {
        let target = TempDir::new();
        let Some(gone_on) = gone_on(one.path(), two.path(), target.path(), n_steps) else { break };
        gone_on.unwrap();
        assert!(contents(target.path()) == contents(expected.path()), "after {n_steps} steps");
        n_taken += 1;
    }
    assert!(n_taken > 10, "{n_taken}");
    // Output of the second source is not made again.
    let target = TempDir::new();
    assert!(pack_until(one.path(), target.path(), &AS_IT_IS, 200).is_err());
    let remaining = || {
        let packing = Packing::prepare(two.path(), target.path(), &AS_IT_IS).unwrap();
        (packing.remaining_bytes(), packing.total_bytes())
    };
    assert_eq!(remaining().0, remaining().1);
    let mut n_steps = 20;
    while remaining().0 == remaining().1 {
        assert!(pack_until(two.path(), target.path(), &AS_IT_IS, n_steps).is_err());
        n_steps += 10;
    }
    pack(two.path(), target.path(), &AS_IT_IS).unwrap();
    assert!(contents(target.path()) == contents(expected.path()));
    // The keys are the same; that the file is of another pack is found all the same.
    let name = "extras-00001.safetensors";
    std::fs::copy(expected.path().join(name), of_one.path().join(name)).unwrap();
    let line = Model::open(of_one.path()).unwrap_err();
    let line = line.to_string();
    assert!(line.contains(name) && line.contains("another model"), "{line}");
}

/// The rest of a source that is being replaced was moved to another drive: its files are others by
/// device and inode, and all that is left of them.
#[test]
fn the_rest_of_a_replaced_source_may_move() {
    for (case, options) in [("qwen3_moe-bf16", AS_IT_IS), ("kimi_k2-fp8", quantised(4, 32))] {
        let options = PackOptions { handling: SourceHandling::Replaced, ..options };
        let expected = contents(packed(archived(case).path(), &options).path());
        let (mut n_moved, mut n_refused) = (0, 0);
        for n_steps in (0..600).step_by(19) {
            let (source, target) = (archived(case), TempDir::new());
            if pack_until(source.path(), target.path(), &options, n_steps).is_ok() {
                break;
            }
            let moved = TempDir::copy_of(source.path());
            set_times(moved.path());
            let other = TempDir::copy_of(target.path());
            pack(moved.path(), target.path(), &options).unwrap();
            assert!(contents(target.path()) == expected, "{case} after {n_steps} steps");
            n_moved += 1;
            // The remaining source differs from the one of which the pack's files were made.
            let twin = TempDir::copy_of(source.path());
            let left = Checkpoint::open(&golden_dir().join(case)).unwrap();
            for entry in left.tensors.values().step_by(5) {
                let shard = left.files[entry.file_idx].path.file_name().unwrap();
                if twin.path().join(shard).exists() {
                    let at = usize::try_from(entry.offset_bytes).unwrap();
                    flip(&twin.path().join(shard), at);
                }
            }
            set_times(twin.path());
            let gone_on = pack(twin.path(), other.path(), &options);
            n_refused += usize::from(gone_on.is_err());
        }
        assert!(n_moved > 10 && n_refused > 5, "{case}: {n_moved} moved, {n_refused} refused");
    }
}

#[test]
fn small_files_of_another_source_are_refused() {
    let (one, two) = (archived("qwen3_moe-bf16"), archived("qwen3_moe-bf16"));
    let write = |dir: &TempDir, name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        set_times(dir.path());
    };
    write(&one, "tokenizer.json", "one");
    write(&two, "tokenizer.json", "two");
    let target = TempDir::new();
    let refused = gone_on(one.path(), two.path(), target.path(), 100).unwrap();
    let line = refused.unwrap_err().to_string();
    assert!(line.contains("tokenizer.json: is not the file"), "{line}");
    // A log that is written beside the model does not matter.
    write(&one, "nohup.out", "packing");
    pack(one.path(), target.path(), &AS_IT_IS).unwrap();
}
