//! A sound device passes the check of a model's layers.

use moeflux::provider::model::{Headers, Model};
use moeflux_testing::needs_gpu;
use std::path::Path;

use moeflux_gpu::check::differences;

use crate::support::gpu;

/// One of each way to attend, to route and to store weights.
const MODELS: [&str; 6] = [
    "deepseek_v3-fp8",
    "gguf-gpt-oss",
    "gguf-qwen3moe-gpu",
    "glm4_moe-f16",
    "gpt_oss-mxfp4",
    "mlx-qwen3_next-q5-g64-bf16",
];

#[test]
fn a_sound_device_differs_nowhere() {
    needs_gpu!();
    for name in MODELS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(name);
        let (blueprint, _) = Model::open(&dir).unwrap().into_parts();
        assert_eq!(differences(&gpu(), &blueprint).unwrap(), [], "{name}");
    }
}
