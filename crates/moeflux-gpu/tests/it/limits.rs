//! What has no room on a device: fewer rows together, or one line that says so.

use moeflux::backend::Backend as _;
use moeflux::error::Error;
use moeflux::ops::{LayerState, StateSpec, Workspace};
use moeflux::weights::Weights;
use moeflux_gpu::backend::{GpuBackend, GpuConfig};

use crate::cases::{Case, Distance, feed_all};
use crate::support::{ExpertsAt, gpu, open};

#[test]
fn more_rows_than_a_binding_holds_become_fewer() {
    let case = Case::load("qwen3_moe-f32");
    let tokens = &case.tokens[..20];
    let engine = open(&case.dir, 1 << 16, ExpertsAt::Device);
    assert!(engine.n_rows_max() < 1 << 16, "{} rows", engine.n_rows_max());
    let rows = feed_all(&mut engine.session(64).unwrap(), tokens);
    let distance = Distance::between(&rows, &case.logits[..20]);
    assert_eq!(distance.beyond_f32_limits(), None);
}

#[test]
fn too_long_a_context_is_refused_in_one_line() {
    let (weights, workspace) = (Weights::default(), Workspace::default());
    let config = GpuConfig::default();
    let mut backend = GpuBackend::new(gpu(), &weights, &workspace, 1, config).unwrap();
    let layer = LayerState::KeyValue { n_heads: 8, k_cols: 1024, v_cols: 1024 };
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
