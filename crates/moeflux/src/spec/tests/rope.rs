//! Ropes of configs compared with those of transformers.

use serde_json::{Value, json};

use super::dense::LLAMA;
use super::families::GPT_OSS;
use super::{DEEPSEEK, GLM4, QWEN3, QWEN35, parse, rope_of};
use crate::spec::MixerSpec;

/// A rope as computed by transformers 5.24.
struct ExpectedRope {
    config: Value,
    n_rotated: usize,
    /// Frequencies of pairs 0, 1, the middle and the last.
    frequencies: [f32; 4],
    amplitude: f32,
}

#[track_caller]
fn check_rope(expected: &ExpectedRope) {
    let spec = parse(&expected.config).unwrap();
    let rope = rope_of(&spec);
    assert_eq!(rope.n_rotated, expected.n_rotated);
    let all = rope.frequencies();
    let some = [all[0], all[1], all[all.len() / 2], all[all.len() - 1]];
    for (ours, theirs) in some.iter().zip(expected.frequencies) {
        assert!((ours / theirs - 1.0).abs() < 1e-6, "{some:?} {:?}", expected.frequencies);
    }
    assert!((rope.amplitude() / expected.amplitude - 1.0).abs() < 1e-6, "{}", rope.amplitude());
}

fn with_rope(text: &str, keys: &[(&str, Value)]) -> Value {
    let mut config: Value = serde_json::from_str(text).unwrap();
    for (key, value) in keys {
        config[key] = value.clone();
    }
    config
}

#[test]
fn ropes_are_those_of_transformers() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 32768});
    check_rope(&ExpectedRope {
        config: with_rope(QWEN3, &[("rope_theta", json!(1e6)), ("rope_scaling", yarn)]),
        n_rotated: 128,
        frequencies: [1.0, 0.805_842_2, 0.000_602_941_15, 3.102_344_4e-7],
        amplitude: 1.138_629_4,
    });
    // The middle lies in the blend.
    check_rope(&ExpectedRope {
        config: with_rope(LLAMA, &[]),
        n_rotated: 128,
        frequencies: [1.0, 0.814_617_2, 0.000_524_846, 3.068_926e-7],
        amplitude: 1.0,
    });
    let linear = json!({"type": "linear", "factor": 2.5});
    check_rope(&ExpectedRope {
        config: with_rope(QWEN3, &[("rope_theta", json!(1e6)), ("rope_scaling", linear)]),
        n_rotated: 128,
        frequencies: [0.4, 0.322_336_88, 0.000_400_000_02, 4.963_751e-7],
        amplitude: 1.0,
    });
    check_rope(&ExpectedRope {
        config: with_rope(QWEN3, &[("rope_theta", json!(null)), ("head_dim", json!(32))]),
        n_rotated: 32,
        frequencies: [1.0, 0.562_341_33, 0.01, 0.000_177_827_94],
        amplitude: 1.0,
    });
    let yarn = json!({"type": "yarn", "factor": 8, "original_max_position_embeddings": 64,
        "truncate": false, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.25});
    let keys = [("rope_theta", json!(5e5)), ("rope_scaling", yarn), ("head_dim", json!(64))];
    check_rope(&ExpectedRope {
        config: with_rope(QWEN3, &keys),
        n_rotated: 64,
        frequencies: [1.0, 0.517_329_45, 0.000_176_776_68, 3.767_322_6e-7],
        amplitude: 1.25,
    });
    let parameters = json!({"rope_type": "yarn", "rope_theta": 7e4, "factor": null,
        "original_max_position_embeddings": 64});
    let keys = [
        ("rope_theta", json!(5e5)),
        ("rope_parameters", parameters),
        ("head_dim", json!(64)),
        ("max_position_embeddings", json!(512)),
    ];
    check_rope(&ExpectedRope {
        config: with_rope(QWEN3, &keys),
        n_rotated: 64,
        frequencies: [1.0, 0.617_445_7, 0.000_472_455_58, 2.530_587_2e-6],
        amplitude: 1.207_944_2,
    });
    // If the limits of the blend were rounded, the middle value would be 5.809e-4.
    check_rope(&ExpectedRope {
        config: with_rope(GPT_OSS, &[]),
        n_rotated: 64,
        frequencies: [1.0, 0.689_044_3, 0.000_456_483_92, 3.023_511_4e-7],
        amplitude: 1.346_573_6,
    });
    check_rope(&ExpectedRope {
        config: with_rope(GLM4, &[]),
        n_rotated: 64,
        frequencies: [1.0, 0.649_381_64, 0.001, 1.539_926_5e-6],
        amplitude: 1.0,
    });
    check_rope(&ExpectedRope {
        config: with_rope(QWEN35, &[]),
        n_rotated: 64,
        frequencies: [1.0, 0.604_296_4, 0.000_316_227_8, 1.654_817_1e-7],
        amplitude: 1.0,
    });
}

#[test]
fn latent_attention_scales_its_scores_as_transformers() {
    let check = |config: Value, amplitude: f32, scale: f32, last: f32| {
        let spec = parse(&config).unwrap();
        let MixerSpec::Mla(mla) = &spec.layers[0].mixer else { panic!("no MLA") };
        assert!((mla.scale / scale - 1.0).abs() < 1e-6, "{} {scale}", mla.scale);
        assert!((mla.rope.amplitude() / amplitude - 1.0).abs() < 1e-6);
        assert!((mla.rope.frequencies()[31] / last - 1.0).abs() < 1e-6);
    };
    check(with_rope(DEEPSEEK, &[]), 1.0, 0.135_233_78, 3.333_803_5e-6);
    check(with_rope(DEEPSEEK, &[("rope_scaling", json!({}))]), 1.0, 0.072_168_78, 0.000_133_352_15);
    let kimi = json!({"beta_fast": 1, "beta_slow": 1, "factor": 32, "mscale": 1.0,
        "mscale_all_dim": 0.7, "original_max_position_embeddings": 4096, "type": "yarn"});
    let keys = [("rope_theta", json!(50000)), ("rope_scaling", kimi)];
    check(with_rope(DEEPSEEK, &keys), 1.083_672_9, 0.111_432_83, 8.764_413e-7);
}
