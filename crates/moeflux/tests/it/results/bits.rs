//! The bits of the CPU's results, recorded beside the version that saved states carry.

use std::fmt::Write as _;
use std::hash::Hasher as _;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::ids::TokenId;
use moeflux_testing::cases::{GoldenCase, feed_all};
use twox_hash::XxHash3_64;

use crate::support::open_as;

/// Models with the operations that others are made of: experts of all kinds of routers, gated
/// DeltaNet, latents, windows and sinks, blocks with scales of their own, chosen positions, and
/// residual streams with rows of n-grams.
const CASES: [&str; 10] = [
    "qwen3_next-bf16",
    "qwen3_moe-bf16",
    "deepseek_v3-bf16",
    "glm4_moe-bf16",
    "gguf-gpt-oss",
    "gguf-qwen3moe-k",
    "mlx-qwen3_5_moe-q4-g64-bf16",
    "llama-bf16",
    "glm_moe_dsa-bf16-sparse",
    "qwen4_exp-bf16-sparse",
];

/// Arithmetics with the version of their results and a hash of them. If a hash changes, a state
/// that an earlier version saved no longer continues with the bits of a session that was never
/// saved: increment `bits_version` in `backend/cpu/mod.rs`, then record both here.
const RECORDED: [(Arithmetic, u32, u64); 3] = [
    (Arithmetic::F32, 1, 0xe8c0_ffbc_394c_d9b4),
    (Arithmetic::Int8, 1, 0xece0_1af5_db66_1c45),
    (Arithmetic::Int8Kv8, 2, 0x1466_2769_442f_d175),
];

#[test]
fn results_have_the_bits_of_their_version() {
    let mut wrong = String::new();
    for (arithmetic, version, recorded) in RECORDED {
        let mut hash = XxHash3_64::new();
        let mut versions = Vec::new();
        for name in CASES {
            let case = GoldenCase::load(name);
            let engine = open_as(&case.dir, arithmetic, 32);
            versions.push(engine.device_names().bits_version);
            let tokens: &[TokenId] = &case.tokens[..case.tokens.len().min(40)];
            let rows = feed_all(&mut engine.session(64).unwrap(), tokens);
            for value in rows.into_iter().flatten() {
                hash.write(&value.to_bits().to_le_bytes());
            }
        }
        let hash = hash.finish();
        if hash != recorded || versions.iter().any(|it| *it != version) {
            let name = arithmetic.name();
            writeln!(
                wrong,
                "the bits of {name} are {hash:#018x} with versions {versions:?}, but \
                 {recorded:#018x} with version {version} is recorded: see `RECORDED`"
            )
            .unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
