//! The plans of every family as text, compared with `tests/data/plans/`: a change of the
//! computation appears as a change of a readable file.

use std::fmt::Write;
use std::path::Path;

use moeflux::provider::model::{Headers, Model};
use moeflux::provider::weights::Shares;
use moeflux_testing::cases::golden_dir;

/// A case of each family, and both forms of latent attention.
const CASES: [&str; 9] = [
    "deepseek_v3_yarn-f32",
    "glm4_moe-bf16",
    "glm_moe_dsa-bf16-sparse",
    "kimi_k2-fp8",
    "mlx-deepseek_v3_yarn-q4-g64-bf16",
    "qwen3_5_moe-bf16",
    "qwen3_moe-f32",
    "qwen3_next-f32",
    "qwen4_exp-bf16-sparse",
];

fn text_of(name: &str) -> String {
    let (blueprint, _) = Model::open(golden_dir().join(name)).unwrap().into_parts();
    let plan = &blueprint.plan;
    let mut text = String::new();
    let mut add = |title: &str, part: &moeflux::provider::ops::Plan| {
        if !part.ops().is_empty() {
            write!(text, "{title}\n{}\n", part.listing(&plan.workspace)).unwrap();
        }
    };
    add("embed", &plan.embed);
    for (layer_idx, layer) in plan.layers.iter().enumerate() {
        add(&format!("layer {layer_idx}"), &layer.mixer);
        if let Some(moe) = &layer.moe {
            add(&format!("layer {layer_idx}: shared"), &moe.shared);
            add(&format!("layer {layer_idx}: experts"), &moe.experts);
            add(&format!("layer {layer_idx}: combine"), &moe.combine);
        }
    }
    add("head", &plan.head);
    text.trim_end().to_owned() + "\n"
}

#[test]
fn plans_are_as_written_down() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/plans");
    for name in CASES {
        let actual = text_of(name);
        let path = folder.join(format!("{name}.txt"));
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(actual == expected, "{} should be:\n{actual}", path.display());
    }
}

/// Returns the plan of a rank for the first sparse layer, and the shares of all ranks.
fn divided_text(name: &str, n_ranks: usize, rank: usize) -> String {
    let (mut blueprint, _) = Model::open(golden_dir().join(name)).unwrap().into_parts();
    blueprint.shard(&Shares::equal(n_ranks), rank).unwrap();
    let plan = &blueprint.plan;
    let mut layers = plan.layers.iter().filter_map(|layer| layer.moe.as_ref());
    let sharded = layers.find_map(|moe| moe.sharded.as_ref()).unwrap();
    let [up, down] = [&sharded.up, &sharded.down].map(|it| it.listing(&plan.workspace));
    let sharded = sharded.to_string().replace("; ", "\n");
    format!("{name}, rank {rank} of {n_ranks}\n{sharded}\n{up}{down}")
}

#[test]
fn divisions_are_as_written_down() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/plans/divided.txt");
    let mut texts = Vec::new();
    for name in ["mlx-qwen3_5_moe-q4-g64-bf16", "gpt_oss-mxfp4"] {
        for (n_ranks, rank) in [(1, 0), (2, 0), (4, 3)] {
            texts.push(divided_text(name, n_ranks, rank));
        }
    }
    let actual = texts.join("\n");
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(actual == expected, "{} should be:\n{actual}", path.display());
}
