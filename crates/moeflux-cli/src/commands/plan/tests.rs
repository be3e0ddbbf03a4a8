//! Published geometries against sums worked out by hand, and speeds against manual arithmetic.

use std::fs;
use std::path::Path;

use moeflux::Budget;
use moeflux::provider::budget::{Host, Placement};
use moeflux::provider::text::tokenizer_bytes;
use moeflux_testing::temp_dir::TempDir;
use serde_json::Value;

use super::forecast::{Bottleneck, ForecastInput, together};
use super::resources::{MEASURED, RangeEnd, Resources, Uncertain};
use super::*;
use crate::model::known::KNOWN;
use crate::model::needs::{Needs, ProductCosts, float};
use crate::system::compute_profile::ComputeProfile;

/// Returns the bytes of `n` weights in 4 bits and groups of 64: half a byte each, and a scale and a
/// bias of two bytes for each 64.
const fn q4(n: u64) -> u64 {
    n / 2 + n / 64 * 4
}

/// Returns the same in 8 bits, as for routers of the qwen families.
const fn q8(n: u64) -> u64 {
    n + n / 64 * 4
}

/// The expected figures of a config, from its shapes.
struct ByHand {
    name: &'static str,
    resident_bytes: u64,
    /// Number and bytes of the rows of the embeddings, of which one is read.
    embedding: (u64, u64),
    expert_bytes: u64,
    n_experts: u64,
    n_experts_per_token: u64,
    kv_bytes_per_position: u64,
    state_bytes: u64,
    /// Weights that a token is multiplied by, in total.
    weights_per_token: u64,
}

/// Attention of qwen3.5: queries with gates, keys, values, output; norms of heads; half of the 64
/// rotated channels have a frequency.
const fn gated_attention(hidden: u64, n_heads: u64) -> (u64, u64) {
    let queries = hidden * (2 * n_heads * 256);
    let (keys_and_values, output) = (2 * hidden * (2 * 256), n_heads * 256 * hidden);
    (queries + keys_and_values + output, 256 + 256 + 32)
}

/// Gated DeltaNet: q, k (16 heads of 128) and v; gate z; a and b; output; convolution of 4 taps,
/// `A_log`, `dt_bias`, norm.
const fn delta_net(hidden: u64, n_v_heads: u64) -> (u64, u64) {
    let (keys, values) = (16 * 128, n_v_heads * 128);
    let mixed = 2 * keys + values;
    let matrices = hidden * (mixed + values + 2 * n_v_heads) + values * hidden;
    (matrices, 4 * mixed + 2 * n_v_heads + 128)
}

/// The sizes of a qwen3.5 geometry: three DeltaNet layers for each of attention.
struct Qwen35 {
    name: &'static str,
    hidden: u64,
    inner: u64,
    vocab: u64,
    n_heads: u64,
    n_v_heads: u64,
    n_full: u64,
    n_experts: u64,
    top_k: u64,
}

impl Qwen35 {
    const fn by_hand(&self) -> ByHand {
        let Self { hidden, inner, vocab, n_full, n_experts, top_k, .. } = *self;
        let (n_delta, n_layers) = (3 * n_full, 4 * n_full);
        let attention = gated_attention(hidden, self.n_heads);
        let delta = delta_net(hidden, self.n_v_heads);
        let expert = 3 * hidden * inner;
        // In these models, routed and shared experts have the same width.
        let in_4_bits = n_full * attention.0 + n_delta * delta.0 + n_layers * expert;
        // Router, and the gate of the shared expert.
        let in_8_bits = n_layers * (n_experts + 1) * hidden;
        let norms = (2 * n_layers + 1) * hidden;
        let vectors = norms + n_full * attention.1 + n_delta * delta.1;
        ByHand {
            name: self.name,
            resident_bytes: q4(in_4_bits + 2 * vocab * hidden) + q8(in_8_bits) + 4 * vectors,
            embedding: (vocab, q4(hidden)),
            expert_bytes: q4(expert),
            n_experts: n_layers * n_experts,
            n_experts_per_token: n_layers * top_k,
            // Two heads of 256 channels, keys and values, two bytes each.
            kv_bytes_per_position: n_full * 2 * 256 * 2 * 2,
            // Per head 128 x 128 values, and three inputs of the convolution, four bytes each.
            state_bytes: n_delta
                * (self.n_v_heads * 128 * 128 + 3 * (2 * 16 * 128 + self.n_v_heads * 128))
                * 4,
            weights_per_token: in_4_bits + in_8_bits + vocab * hidden + n_layers * top_k * expert,
        }
    }
}

const BY_HAND: [ByHand; 6] = [
    Qwen35 {
        name: "qwen3.5-397b-a17b.json",
        hidden: 4096,
        inner: 1024,
        vocab: 248_320,
        n_heads: 32,
        n_v_heads: 64,
        n_full: 15,
        n_experts: 512,
        top_k: 10,
    }
    .by_hand(),
    Qwen35 {
        name: "qwen3.6-35b-a3b.json",
        hidden: 2048,
        inner: 512,
        vocab: 248_320,
        n_heads: 16,
        n_v_heads: 32,
        n_full: 10,
        n_experts: 256,
        top_k: 8,
    }
    .by_hand(),
    Qwen35 {
        name: "q35moe-8g.json",
        hidden: 2048,
        inner: 512,
        vocab: 4096,
        n_heads: 16,
        n_v_heads: 32,
        n_full: 4,
        n_experts: 256,
        top_k: 8,
    }
    .by_hand(),
    Qwen35 {
        name: "q35moe-2g.json",
        hidden: 2048,
        inner: 512,
        vocab: 4096,
        n_heads: 16,
        n_v_heads: 32,
        n_full: 2,
        n_experts: 128,
        top_k: 8,
    }
    .by_hand(),
    ByHand {
        name: "q3moe-2g.json",
        // In each of 6 layers: queries and output 2048 x 4096, keys and values 2048 x 512, router
        // 128 x 2048; two norms of 2048, two of 128, 64 frequencies. Then the embeddings, 4096 x
        // 2048 twice, and the last norm.
        resident_bytes: q4(6 * (2 * 2048 * 4096 + 2 * 2048 * 512) + 2 * 4096 * 2048)
            + q8(6 * 128 * 2048)
            + 4 * (6 * (2 * 2048 + 2 * 128 + 64) + 2048),
        embedding: (4096, q4(2048)),
        // 3 x 2048 x 768.
        expert_bytes: 2_654_208,
        n_experts: 6 * 128,
        n_experts_per_token: 6 * 8,
        // 4 heads of 128 channels, keys and values, two bytes each.
        kv_bytes_per_position: 6 * 4 * 128 * 2 * 2,
        state_bytes: 0,
        weights_per_token: 6 * (2 * 2048 * 4096 + 2 * 2048 * 512 + 128 * 2048)
            + 4096 * 2048
            + 48 * 3 * 2048 * 768,
    },
    ByHand {
        name: "deepseek-v3-671b.json",
        // In each of 61 layers: q_a, q_b, kv_a, the two halves of kv_b, o. In 3: the dense inner.
        // In 58: the shared expert, the router in bf16. Then the embeddings twice.
        resident_bytes: q4(61 * DEEPSEEK_ATTENTION
            + 3 * 3 * 7168 * 18_432
            + 58 * 3 * 7168 * 2048
            + 2 * 129_280 * 7168)
            + 58 * 256 * 7168 * 2
            // Two norms of 7168, those of the ranks, 32 frequencies; the bias of the router; the
            // last norm.
            + 4 * (61 * (2 * 7168 + 1536 + 512 + 32) + 58 * 256 + 7168),
        embedding: (129_280, q4(7168)),
        // 3 x 7168 x 2048.
        expert_bytes: 24_772_608,
        n_experts: 58 * 256,
        n_experts_per_token: 58 * 8,
        // A latent of 512 and a rotated key of 64, two bytes each.
        kv_bytes_per_position: 61 * (512 + 64) * 2,
        state_bytes: 0,
        weights_per_token: 61 * DEEPSEEK_ATTENTION
            + 3 * 3 * 7168 * 18_432
            + 58 * (256 * 7168 + 9 * 3 * 7168 * 2048)
            + 129_280 * 7168,
    },
];

/// Ranks of 1536 and 512, 128 heads of 128 and 64 channels with position, values of 128.
const DEEPSEEK_ATTENTION: u64 = 7168 * 1536
    + 1536 * 128 * (128 + 64)
    + 7168 * (512 + 64)
    + 128 * 128 * 512
    + 128 * 128 * 512
    + 128 * 128 * 7168;

pub(super) fn published(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux/tests/data/configs").join(name)
}

pub(super) fn args(path: &Path) -> PlanArgs {
    PlanArgs {
        path: Some(path.to_owned()),
        bits: Some(4),
        group: Some(64),
        ram: None,
        memory: Some(64 << 30),
        gpu_memory: Some(0),
        gpu_gbps: None,
        gpu: None,
        cores: None,
        gops: Some(300.0),
        disk_gbps: Some(3.0),
        mem_gbps: Some(60.0),
        trace: None,
        ranks: None,
        network: None,
        context: None,
        json: true,
    }
}

pub(super) fn json_of(args: &PlanArgs) -> Value {
    serde_json::from_str(&run(args).unwrap()).unwrap()
}

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().expect("a count")
}

/// Returns the one line of a refusal.
pub(super) fn refusal(args: &PlanArgs) -> String {
    let failure = run(args).unwrap_err();
    assert!(matches!(failure, CommandFailure::Failed(_)), "{failure}");
    let line = failure.to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn needs_of_published_geometries_follow_from_their_shapes() {
    for it in &BY_HAND {
        let plan = json_of(&PlanArgs { memory: Some(1 << 40), ..args(&published(it.name)) });
        let check =
            |key: &str, expected: u64| assert_eq!(plan[key], expected, "{}: {key}", it.name);
        let (n_rows, row_bytes) = it.embedding;
        let routed_bytes = it.n_experts_per_token * it.expert_bytes;
        let read_bytes = it.resident_bytes - (n_rows - 1) * row_bytes;
        check("resident_bytes", it.resident_bytes);
        check("resident_read_bytes_per_token", read_bytes);
        check("routed_bytes_per_token", routed_bytes);
        check("read_bytes_per_token", read_bytes + routed_bytes);
        check("n_experts", it.n_experts);
        check("n_experts_per_token", it.n_experts_per_token);
        check("experts_bytes", it.n_experts * it.expert_bytes);
        // All of these are multiples of 16 KiB.
        check("slot_bytes", it.expert_bytes);
        // A second state allows a failed step to be undone.
        check("session_bytes", 4096 * it.kv_bytes_per_position + 2 * it.state_bytes);
        check("kv_bytes", 4096 * it.kv_bytes_per_position);
        check("operations_per_token", 2 * it.weights_per_token);
        let all = number(&plan["fixed_bytes"]) + it.n_experts * it.expert_bytes;
        // Margin for the size of the process, which differs between runs.
        check("all_bytes", (all + (4 << 20)).next_multiple_of(1 << 20));
    }
    // Absolute values, in case both sums above are wrong in the same way.
    assert_eq!(BY_HAND[0].resident_bytes, 5_584_514_944);
    assert_eq!(BY_HAND[5].resident_bytes, 9_785_190_016);
    assert_eq!(BY_HAND[0].n_experts_per_token * BY_HAND[0].expert_bytes, 4_246_732_800);
    // A17B: 16.3 billion weights, without the embeddings and the head's other half.
    assert_eq!(BY_HAND[0].weights_per_token, 16_329_195_520);
}

#[track_caller]
pub(super) fn check_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.001, "{found}, not {expected}");
}

const PROFILE: ComputeProfile = ComputeProfile {
    answer_bytes_per_s: 60e9,
    answer_float_bytes_per_s: 60e9,
    answer_plain_bytes_per_s: 60e9,
    step_s: 0.0,
    layer_s: 0.0,
    streamed_layer_s: 0.0,
    prompt_bytes_per_s: 60e9,
    prompt_operations_per_s: 1e12,
    prompt_float_operations_per_s: 1e12,
    far_bytes_per_s: 20e9,
    far_prompt_bytes_per_s: 20e9,
};

fn resources(budget: u64) -> Resources {
    Resources {
        host: Host { program_bytes: 0, available_bytes: None },
        budget: Budget::Bytes(budget),
        card: None,
        profile: Uncertain { value: PROFILE, certainty: MEASURED },
        drive: Uncertain::of_drive(3e9),
        memory_bytes_per_s: 60e9,
        cluster: None,
    }
}

#[test]
fn speeds_of_the_397b_in_64_gib_as_on_paper() {
    let config = BareConfig::open(&published("qwen3.5-397b-a17b.json")).unwrap();
    let blueprint = config.blueprint(advice::PACKED).unwrap();
    let needs = Needs::new(&blueprint);
    let routes = RoutingSource::Unknown;
    let forecast = |resources: &Resources| {
        let input = ForecastInput {
            blueprint: &blueprint,
            needs: &needs,
            resources,
            context: 4096,
            routes: &routes,
        };
        input.forecast()
    };
    // The tokenizer's memory is added.
    let text_bytes = tokenizer_bytes(blueprint.spec.vocab);
    assert_eq!(text_bytes, 2 * (248_320 * 32 + (33 << 19)) + (17 << 20));
    let found = forecast(&resources((64 << 30) + text_bytes)).unwrap();
    // 68,719,476,736 - 5,584,514,944 - two states of 195,379,200 - 125,829,120 of keys and values -
    // a step of 308,280,320 leave 62,310,093,952 bytes: 8,803 slots of 7,077,888, which are 28.656
    // % of 30,720. The step: a workspace of 183,150,592 bytes, half as much scratch, and 32 MiB.
    assert_eq!(found.layout.placement, Placement::Streaming { n_slots: 8803 });
    assert_eq!((found.placement.in_memory, found.placement.on_drive), (8803, 21_917));
    let (low, high) = (found.answer.low, found.answer.high);
    // Missed: 0.71344 of 4.24673 GB are 3.02977 GB, at 0.68 x 3 GB/s 1.48518 s. Computing: 9.25912
    // GB and two states, 9.64988 GB, at 0.78 x 60 GB/s 0.20619 s, of which 0.6 do not overlap.
    check_near(low.hit_rate, 0.28656);
    check_near(low.drive_bytes_per_token, 3.02977e9);
    check_near(low.tokens_per_s, 1.0 / (1.48518 + 0.6 * 0.20619));
    // Missed: 0.71344^3 = 0.36314 of 4.24673 GB are 1.54215 GB, at 3 GB/s 0.51405 s. Computing at
    // 1.15 x 60 GB/s 0.13985 s, of which 0.2 do not overlap.
    check_near(high.hit_rate, 0.63686);
    check_near(high.tokens_per_s, 1.0 / (0.51405 + 0.2 * 0.13985));
    assert_eq!((low.bound, high.bound), (Bottleneck::Drive, Bottleneck::Drive));
    // A prompt of 512 leaves 1 of 24,000 experts unused: (1 - 10/512)^512 = 0.0000412. The rest,
    // 217.4238 GB, minus the 28.656 % that stay: 155.119 GB.
    let [short, long] = found.prompts[..] else { panic!("{:?}", found.prompts) };
    assert_eq!((short.n_tokens, short.n_passes, short.bound), (512, 1, Bottleneck::Drive));
    check_near(short.drive_bytes, 155.119e9);
    // At 3 GB/s 51.706 s. Computing at 1.15 times: 5.01239 + 217.4238 GB at 60 GB/s 3.7073 s; 2 x
    // 15.3121 billion operations for each token, without the head, at 10^12 a second 15.680 s; 45
    // states of 64 heads, 6 operations for each of 128 x 128 values, for each token, 0.145 s; 15
    // layers of attention, 32 heads of 256 channels, 4 operations for each pair of tokens, 0.064 s:
    // 17.040 s.
    check_near(short.high, 512.0 / (51.706 + 0.2 * 17.040));
    assert_eq!((long.n_tokens, long.n_passes), (2048, 1));

    // With everything in memory, nothing is read: 9.64988 GB at 46.8 and 69 GB/s.
    let found = forecast(&resources(1 << 40)).unwrap();
    check_near(found.answer.low.tokens_per_s, 46.8 / 9.64988);
    check_near(found.answer.high.tokens_per_s, 69.0 / 9.64988);
    assert_eq!(
        (found.answer.low.bound, found.answer.high.bound),
        (Bottleneck::Cpu, Bottleneck::Cpu)
    );
    // A full context: 0.12583 GB more.
    check_near(found.answer_after.low.tokens_per_s, 46.8 / 9.77571);
    // The smallest budget is exactly 4 MiB more than the engine's own minimum.
    let routes = &routes;
    let all_resources = resources(1 << 40);
    let input = ForecastInput {
        blueprint: &blueprint,
        needs: &needs,
        resources: &all_resources,
        context: 4096,
        routes,
    };
    let least = input.least_bytes().unwrap() - (4 << 20);
    assert_eq!(forecast(&resources(least)).unwrap().placement.in_memory, 10);
    assert!(forecast(&resources(least - 1)).is_err());
}

/// Covers all ratios of reading and computing, with the same knowledge of routes at both ends.
#[test]
fn measured_rates_and_a_trace_are_narrower_than_a_factor_of_two() {
    for n in 1..400 {
        let seconds = |end: RangeEnd| {
            let computing = 6e10 * f64::from(n) / 100.0 / end.profile.answer_bytes_per_s;
            together(&end, 3e9 / end.drive_bytes_per_s, computing)
        };
        let resources = resources(1 << 30);
        let ratio = seconds(resources.low()) / seconds(resources.high());
        assert!((1.0..2.0).contains(&ratio), "{n}: {ratio}");
    }
}

#[test]
fn only_the_last_token_of_a_prompt_is_followed_by_logits() {
    let config = BareConfig::open(&published("qwen3.5-397b-a17b.json")).unwrap();
    let blueprint = config.blueprint(advice::PACKED).unwrap();
    let seconds = |needs: &Needs| {
        let (resources, routes) = (resources(1 << 40), RoutingSource::Unknown);
        let (blueprint, resources, routes) = (&blueprint, &resources, &routes);
        let found = ForecastInput { blueprint, needs, resources, context: 4096, routes }
            .forecast()
            .unwrap();
        2048.0 / found.prompts[1].high
    };
    let needs = Needs::new(&blueprint);
    let (n_operations, of_all) =
        (2 * 248_320 * 4096, Needs { head: ProductCosts::default(), ..needs.clone() });
    assert_eq!(needs.head.n_operations(), n_operations);
    let for_all =
        float(n_operations) * 2048.0 / resources(0).high().profile.prompt_operations_per_s;
    check_near(seconds(&of_all) - seconds(&needs), for_all);
}

#[test]
fn a_memory_too_small_is_refused_with_the_least_that_works() {
    let path = published("deepseek-v3-671b.json");
    let with = |memory: u64| PlanArgs { memory: Some(memory), ..args(&path) };
    let line = refusal(&with(4 << 30));
    for words in
        ["needs at least ", "9.79 GB for weights that every token uses", "--memory allows 4.29 GB"]
    {
        assert!(line.contains(words), "`{words}` is not in {line}");
    }
    let plan = json_of(&with(64 << 30));
    let (least, slot) = (number(&plan["least_bytes"]), number(&plan["slot_bytes"]));
    // Other tests enlarge this process meanwhile.
    let spare = 32 << 20;
    assert_eq!(json_of(&with(least + slot / 2))["forecast"]["experts_in_memory"], 8);
    refusal(&with(least - slot));
    let all = number(&plan["all_bytes"]) + spare;
    assert_eq!(json_of(&with(all))["forecast"]["experts_on_drive"], 0);
    let nearly = json_of(&with(all - 3 * spare));
    assert!(number(&nearly["forecast"]["experts_on_drive"]) > 0);
    let answer = &json_of(&with(all))["forecast"]["answer"];
    assert_eq!(answer["low"]["drive_bytes_per_token"], 0.0);
    // For another machine, part of its memory is left to other programs.
    let line = refusal(&PlanArgs { memory: None, ram: Some(4 << 30), ..args(&path) });
    assert!(line.contains("of the memory from --ram"), "{line}");
}

#[test]
fn native_formats_are_planned_as_they_are() {
    let known = |name: &str| {
        json_of(&PlanArgs {
            bits: None,
            group: None,
            memory: Some(1 << 41),
            ..args(Path::new(name))
        })
    };
    let fp8 = known("DeepSeek-V3");
    assert_eq!(fp8["stored"], "FP8");
    // Three matrices of 7168 x 2048 bytes, and 56 x 16 scales of four bytes for each.
    let expert = 3 * (7168 * 2048 + 56 * 16 * 4);
    assert_eq!(fp8["experts_bytes"], 58 * 256 * expert);
    assert_eq!(fp8["routed_bytes_per_token"], 58 * 8 * expert);
    // Attention, dense and shared experts in FP8; embeddings, head and routers in bf16.
    let scales = |n_rows: u64, n_cols: u64| n_rows.div_ceil(128) * n_cols.div_ceil(128) * 4;
    let blocks = |n_rows: u64, n_cols: u64| n_rows * n_cols + scales(n_rows, n_cols);
    let attention = blocks(1536, 7168)
        + blocks(128 * 192, 1536)
        + blocks(576, 7168)
        + blocks(128 * 256, 512)
        + blocks(7168, 128 * 128);
    let resident = 61 * attention
        + 3 * 3 * blocks(18_432, 7168)
        + 58 * expert
        + 2 * (2 * 129_280 * 7168 + 58 * 256 * 7168)
        + 4 * (61 * (2 * 7168 + 1536 + 512 + 32) + 58 * 256 + 7168);
    assert_eq!(fp8["resident_bytes"], resident);
    let answer = |plan: &Value| plan["forecast"]["answer"]["high"]["tokens_per_s"].as_f64();
    let packed = json_of(&PlanArgs { memory: Some(1 << 41), ..args(Path::new("deepseek-v3")) });
    assert_eq!(packed["stored"], "4 bits");
    assert!(answer(&packed) > answer(&fp8));

    // A config without quantisation describes bf16.
    let float = json_of(&PlanArgs { bits: None, group: None, ..args(&published("q3moe-2g.json")) });
    assert_eq!((float["stored"].as_str(), &float["bits"]), (Some("bf16"), &Value::Null));
    assert_eq!(float["routed_bytes_per_token"], 6 * 8 * 3 * 2048 * 768 * 2);
    assert!(float["advice"].to_string().contains("--bits 4"));
}

#[test]
fn all_known_models_have_a_line() {
    let all = |ram: u64| PlanArgs {
        path: None,
        memory: None,
        ram: Some(ram << 30),
        bits: None,
        group: None,
        json: false,
        ..args(Path::new(""))
    };
    let page = run(&all(64)).unwrap();
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    for known in &KNOWN {
        let line = page.lines().find(|line| line.starts_with(known.name)).unwrap();
        let mut words = line.split_whitespace().skip(1).take(2);
        assert!(words.any(|it| ["4", "FP8", "MXFP4", "INT4"].contains(&it)), "{line}");
    }
    assert!(!page.contains("needs "), "{page}");
    let page = run(&all(8)).unwrap();
    let kimi = page.lines().find(|line| line.starts_with("Kimi-K2")).unwrap();
    assert!(kimi.ends_with(" of memory") && kimi.contains("needs at least "), "{kimi}");
    let json: Value =
        serde_json::from_str(&run(&PlanArgs { json: true, ..all(8) }).unwrap()).unwrap();
    let models = json["models"].as_array().unwrap();
    // Four of them were published in FP8, and are also listed as packed.
    assert_eq!(models.len(), KNOWN.len() + 4);
    assert!(models.iter().any(|it| it["least_bytes"].is_null()));
}

#[test]
fn context_and_bits_change_only_the_figures_that_depend_on_them() {
    let path = published("qwen3.6-35b-a3b.json");
    let bytes = |args: &PlanArgs, key: &str| json_of(args)[key].as_u64().unwrap();
    let usual = args(&path);
    let longer = PlanArgs { context: NonZeroUsize::new(100_000), ..usual.clone() };
    assert_eq!(bytes(&longer, "kv_bytes"), 20_480 * 100_000);
    assert_eq!(bytes(&longer, "resident_bytes"), bytes(&usual, "resident_bytes"));
    let eight = PlanArgs { bits: Some(8), ..usual.clone() };
    // 3 x 2048 x 512 weights.
    assert_eq!(bytes(&eight, "slot_bytes"), q8(3_145_728).next_multiple_of(16 << 10));
    assert_eq!(bytes(&eight, "routed_bytes_per_token"), 320 * q8(3_145_728));
    let beyond = PlanArgs { context: NonZeroUsize::new(262_145), ..usual };
    let error = run(&beyond).unwrap_err();
    assert!(matches!(&error, CommandFailure::Usage(line) if line.contains("262144")), "{error}");
}

#[test]
fn a_page_states_its_assumptions_and_fits_a_terminal() {
    for it in &BY_HAND {
        for (memory, gpu) in [(16 << 30, 0), (64 << 30, 24 << 30), (1 << 40, 0)] {
            let asked = args(&published(it.name));
            let asked = PlanArgs { memory: Some(memory), gpu_memory: Some(gpu), ..asked };
            let page = run(&PlanArgs { json: false, ..asked }).unwrap();
            assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
            assert!(page.lines().all(|line| line.trim_end() == line), "{page}");
            for words in ["3.00 GB/s, from --disk-gbps", "--gops", "Low: ", "minimum: --memory "] {
                assert!(page.contains(words), "`{words}` is not in\n{page}");
            }
            assert_eq!(page.contains("  GPU "), gpu > 0, "{page}");
        }
    }
}

#[test]
fn folders_are_planned_as_they_are_stored() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden");
    let case = golden.join("mlx-qwen3_moe-q4-g32-bf16");
    let as_stored = PlanArgs { bits: None, group: None, ..args(&case) };
    let plan = json_of(&as_stored);
    assert_eq!(plan["exists"], true);
    // Nine extents at arbitrary offsets, each in its own whole blocks.
    let slot_bytes = plan["slot_bytes"].as_u64().unwrap();
    assert!((9 * 4096..=9 * 8192).contains(&slot_bytes), "{slot_bytes}");
    let told = run(&args(&case)).unwrap_err();
    assert!(
        matches!(&told, CommandFailure::Usage(line) if line.contains("leave them out")),
        "{told}"
    );

    // A folder with only a config counts as a config.
    let temp = TempDir::new();
    fs::copy(published("q3moe-2g.json"), temp.path().join("config.json")).unwrap();
    assert_eq!(json_of(&args(temp.path()))["exists"], false);
    let error = run(&args(&temp.path().join("x.safetensors"))).unwrap_err();
    assert!(error.to_string().contains("name its folder"), "{error}");
    let error = run(&args(&temp.path().join("none.json"))).unwrap_err();
    assert!(error.to_string().contains("none.json"), "{error}");
    let error = run(&args(Path::new("Qwen9"))).unwrap_err();
    assert!(error.to_string().contains("known models: Qwen3.5-4B, "), "{error}");
}
