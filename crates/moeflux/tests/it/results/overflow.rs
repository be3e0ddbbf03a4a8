//! Weights that are finite but too large: they cause an error that names the place, on every
//! backend and in every arithmetic, never zeros or plausible numbers.

use std::ops::ControlFlow;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::error::Error;
use moeflux::provider::model::Model;
use moeflux::provider::session::Wanted;
use moeflux_testing::cases::{GoldenCase, fill_tensor, try_feed_all};
use moeflux_testing::temp_dir::TempDir;

use crate::support::config;

/// All ways of computing on the host.
fn ways() -> Vec<(String, EngineConfig)> {
    let mut ways =
        vec![("reference".to_owned(), config(BackendKind::Reference, Arithmetic::F32, (64, 2)))];
    for arithmetic in [Arithmetic::F32, Arithmetic::Int8, Arithmetic::Int8Kv8] {
        let resident = config(BackendKind::Cpu, arithmetic, (64, 2));
        let streaming = StreamingConfig { n_slots_max: Some(4), ..StreamingConfig::default() };
        ways.push((
            format!("streamed {arithmetic:?}"),
            EngineConfig { streaming, ..resident.clone() },
        ));
        ways.push((format!("{arithmetic:?}"), resident));
    }
    ways
}

/// Every configuration with a place in `place_of` gives an error that names the place.
#[track_caller]
fn check(tensor: &str, value: f32, place_of: &dyn Fn(&str) -> Option<&'static str>) {
    let case = GoldenCase::load("mlx-qwen3_5_moe-q4-g64-bf16");
    let dir = TempDir::copy_of(&case.dir);
    fill_tensor(dir.path(), tensor, value);
    for (way, config) in ways() {
        let Some(place) = place_of(&way) else { continue };
        let engine = Engine::load(Model::open(dir.path()).unwrap(), &config, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        let mut session = engine.session(case.tokens.len()).unwrap();
        let error = match try_feed_all(&mut session, &case.tokens[..20]) {
            Err(error) => error,
            Ok(rows) => panic!("{tensor} {way}: {:?}", &rows[19][..4]),
        };
        assert!(matches!(error, Error::NonFinite { .. }), "{tensor} {way}: {error}");
        assert!(error.to_string().contains(place), "{tensor} {way}: {error}");
        // States were walked twice to find the place, so they cannot be continued.
        let again = try_feed_all(&mut session, &case.tokens[..1]).map(|_| ());
        assert!(again.is_err(), "{tensor} {way}");
    }
}

#[test]
fn scales_of_experts() {
    for part in ["gate_proj", "up_proj", "down_proj"] {
        let name = format!("model.layers.1.mlp.switch_mlp.{part}.scales");
        check(&name, 3e38, &|_| Some("layer 1, routed experts"));
    }
}

#[test]
fn norms_embedding_and_output() {
    check("model.embed_tokens.scales", 3e38, &|_| Some("the embedding"));
    check("model.layers.0.input_layernorm.weight", 3e38, &|_| Some("layer 0, "));
    check("model.layers.2.post_attention_layernorm.weight", 3e38, &|_| Some("layer 2, "));
    check("model.layers.1.mlp.gate.scales", 3e38, &|_| Some("layer 1, "));
    check("model.norm.weight", 3e38, &|_| Some("the logits"));
    check("lm_head.scales", 3e38, &|_| Some("the logits"));
}

/// Values that a cache in half precision, or in codes, cannot hold; f32 holds them, and its next
/// norm cannot square them, while the reference computes with f64 and is right.
#[test]
fn values_that_a_cache_cannot_hold() {
    check("model.layers.3.self_attn.v_proj.scales", 1e34, &|way| match way {
        "reference" => None,
        "F32" | "streamed F32" => Some("layer 3, rms_norm"),
        _ => Some("layer 3, attention"),
    });
}

/// A prompt whose logits are not requested is refused at the same step.
#[test]
fn a_prompt_without_logits() {
    let case = GoldenCase::load("mlx-qwen3_5_moe-q4-g64-bf16");
    let dir = TempDir::copy_of(&case.dir);
    fill_tensor(dir.path(), "model.layers.1.mlp.switch_mlp.up_proj.scales", 3e38);
    for (way, config) in ways() {
        let engine = Engine::load(Model::open(dir.path()).unwrap(), &config, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        let mut session = engine.session(case.tokens.len()).unwrap();
        let watch = &mut |_| ControlFlow::Continue(());
        let fed = session.feed(&case.tokens[..20], Wanted::None, watch, &mut |_, _| Ok(()));
        assert!(matches!(fed, Err(Error::NonFinite { .. })), "{way}: {fed:?}");
    }
}
