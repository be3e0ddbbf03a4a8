//! Weights that are finite and too large: an error that names the place, wherever experts are.

use moeflux::provider::error::Error;
use moeflux_testing::cases::{GoldenCase, fill_tensor, try_feed_all};
use moeflux_testing::needs_gpu;
use moeflux_testing::temp_dir::TempDir;

use crate::support::{ExpertsAt, open};

const PLACES: [ExpertsAt; 3] = [ExpertsAt::Device, ExpertsAt::Both(45), ExpertsAt::Files(4)];

#[test]
fn overflow_is_an_error_that_names_the_place() {
    needs_gpu!();
    for (tensor, place) in [
        ("model.layers.1.mlp.switch_mlp.up_proj.scales", "layer 1, "),
        ("model.layers.0.input_layernorm.weight", "layer 0, "),
        ("model.layers.2.mlp.gate.scales", "layer 2, "),
        ("model.norm.weight", "the logits"),
    ] {
        let case = GoldenCase::load("mlx-qwen3_5_moe-q4-g64-bf16");
        let dir = TempDir::copy_of(&case.dir);
        fill_tensor(dir.path(), tensor, 3e38);
        for experts in PLACES {
            let engine = open(dir.path(), 64, experts);
            let mut session = engine.session(case.tokens.len()).unwrap();
            // Many rows at once, then one alone in a new session.
            for n_tokens in [20, 1] {
                session.clear();
                let fed = try_feed_all(&mut session, &case.tokens[..n_tokens]);
                let error = fed.expect_err(tensor);
                assert!(matches!(error, Error::NonFinite { .. }), "{tensor}: {error}");
                assert!(error.to_string().contains(place), "{tensor} {experts:?}: {error}");
            }
        }
    }
}
