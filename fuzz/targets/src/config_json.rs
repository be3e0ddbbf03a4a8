//! Model configs: the shapes of an accepted config have products that fit, and its ropes are
//! finite.

use std::path::Path;

use moeflux::provider::format::RawConfig;
use moeflux::provider::spec::{FfnSpec, MixerSpec, ModelSpec, RopeSpec};

pub(crate) fn check(input: &[u8]) {
    let Ok(raw) = RawConfig::parse(Path::new("config.json"), input) else { return };
    let spec = match ModelSpec::from_config(&raw) {
        Ok(spec) => spec,
        Err(error) => {
            // One line of bounded length, whatever the config contains.
            let message = error.to_string();
            assert!(!message.contains('\n') && message.len() < 2000, "{message}");
            return;
        }
    };
    assert!(spec.vocab.checked_mul(spec.hidden * 8).is_some());
    // The layers of a kind are alike.
    for layer in spec.layers.iter().take(8) {
        match &layer.mixer {
            MixerSpec::Attention(attention) => check_rope(&attention.rope),
            MixerSpec::Mla(mla) => check_rope(&mla.rope),
            MixerSpec::GatedDelta(delta) => assert!(delta.conv_cols() > 0),
        }
        if let FfnSpec::Moe(moe) = &layer.ffn {
            assert!(moe.top_k <= moe.n_experts);
            assert!(moe.n_experts.checked_mul(spec.hidden * moe.inner * 8).is_some());
        }
    }
}

fn check_rope(rope: &RopeSpec) {
    assert!(rope.amplitude().is_finite());
    assert!(rope.frequencies().iter().all(|frequency| frequency.is_finite()), "{rope:?}");
}
