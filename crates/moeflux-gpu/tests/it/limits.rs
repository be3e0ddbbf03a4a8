//! Models too large for a device: steps have fewer rows, or fail with an error of one line. Also
//! the data that a device keeps for the next run.

use moeflux::provider::backend::SessionStates;
use moeflux::provider::error::Error;
use moeflux::provider::ops::{LayerState, StateSpec, Workspace};
use moeflux::provider::weights::Weights;
use moeflux_gpu::backend::GpuBackend;
use moeflux_gpu::config::GpuConfig;
use moeflux_testing::cases::{Distance, GoldenCase, feed_all};
use moeflux_testing::needs_gpu;
use moeflux_testing::temp_dir::TempDir;

use crate::support::{ExpertsAt, gpu, open, open_kept};

#[test]
fn more_rows_than_a_binding_holds_become_fewer() {
    needs_gpu!();
    let case = GoldenCase::load("qwen3_moe-f32");
    let tokens = &case.tokens[..20];
    let engine = open(&case.dir, 1 << 16, ExpertsAt::Device);
    assert!(engine.n_rows_max() < 1 << 16, "{} rows", engine.n_rows_max());
    let rows = feed_all(&mut engine.session(64).unwrap(), tokens);
    let distance = Distance::between(&rows, &case.logits[..20]);
    assert_eq!(distance.beyond_f32_limits(), None);
}

#[test]
fn too_long_a_context_is_refused_in_one_line() {
    needs_gpu!();
    let (weights, workspace) = (Weights::default(), Workspace::default());
    let config = GpuConfig::default();
    let mut backend = GpuBackend::new(gpu(), &weights, &workspace, 1, config).unwrap();
    let layer = LayerState::KeyValue { n_heads: 8, k_cols: 1024, v_cols: 1024, index_cols: 0 };
    let spec = StateSpec { layers: vec![layer] };
    let context = 1 << 24;
    let error = backend.create_state(&spec, context).expect_err("no adapter sees 64 GiB at once");
    let Error::NoRoom { needed_bytes, .. } = &error else { panic!("{error}") };
    assert_eq!(*needed_bytes, 8192 * context as u64);
    let text = error.to_string();
    for part in [&gpu().facts().name, "16777216 positions", "a shorter context"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    assert!(!text.contains('\n'));
    // A shorter one is served.
    let state = backend.create_state(&spec, 16).unwrap();
    backend.drop_state(state);
    gpu().check().unwrap();
}

#[test]
fn kernels_that_were_kept_are_the_same() {
    needs_gpu!();
    let dir = TempDir::new();
    let folder = dir.file("kernels");
    let case = GoldenCase::load("qwen3_moe-f32");
    let run = || feed_all(&mut open_kept(&case.dir, &folder).session(64).unwrap(), &case.tokens);
    let first = run();
    let n_kept = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
    // Drivers of Vulkan can keep kernels; on others there is nothing to write.
    assert_eq!(n_kept(), usize::from(gpu().facts().api == "vulkan"));
    assert!(run() == first, "compiled before");
    for file in std::fs::read_dir(&folder).into_iter().flatten() {
        std::fs::write(file.unwrap().path(), b"not kernels").unwrap();
    }
    assert!(run() == first, "a broken file");
}
