//! Published geometries against sums written out by hand, and speeds against arithmetic on paper.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::forecast::{Bound, Gives, forecast};
use super::*;
use crate::test_dir::TestDir;

/// Bytes of so many weights in 4 bits and groups of 64: half a byte each, and a scale and a bias of
/// two bytes for 64.
const fn q4(n: u64) -> u64 {
    n / 2 + n / 64 * 4
}

/// The same in 8 bits: routers of the qwen families.
const fn q8(n: u64) -> u64 {
    n + n / 64 * 4
}

/// What must come out of a config, from its shapes.
struct ByHand {
    name: &'static str,
    resident_bytes: u64,
    /// One row of the embeddings is read, of so many, each of so many bytes.
    embedding: (u64, u64),
    expert_bytes: u64,
    n_experts: u64,
    n_experts_per_token: u64,
    kv_bytes_per_position: u64,
    state_bytes: u64,
    /// Weights that a token is multiplied by, in all.
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
        // Routed and shared experts have the same width in these.
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
        // Of 6 layers each: queries and output 2048 x 4096, keys and values 2048 x 512, router
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
        // Of 61 layers each: q_a, q_b, kv_a, the two halves of kv_b, o. Of 3: the dense inner. Of
        // 58: the shared expert, the router in bf16. Then the embeddings twice.
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

fn published(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux/tests/data/configs").join(name)
}

fn args(path: &Path) -> PlanArgs {
    PlanArgs {
        path: path.to_owned(),
        bits: Some(4),
        group: Some(64),
        ram: Some(64 << 30),
        gpu_memory: None,
        disk_gbps: Some(3.0),
        mem_gbps: Some(60.0),
        context: None,
        json: true,
    }
}

fn json_of(args: &PlanArgs) -> Value {
    serde_json::from_str(&run(args).unwrap()).unwrap()
}

#[test]
fn published_geometries_need_what_their_shapes_say() {
    for it in &BY_HAND {
        let plan = json_of(&args(&published(it.name)));
        let check =
            |key: &str, expected: u64| assert_eq!(plan[key], expected, "{}: {key}", it.name);
        let (n_rows, row_bytes) = it.embedding;
        let routed_bytes = it.n_experts_per_token * it.expert_bytes;
        let read_bytes = it.resident_bytes - (n_rows - 1) * row_bytes;
        let session_bytes = 4096 * it.kv_bytes_per_position + it.state_bytes;
        check("resident_bytes", it.resident_bytes);
        check("resident_read_bytes_per_token", read_bytes);
        check("routed_bytes_per_token", routed_bytes);
        check("read_bytes_per_token", read_bytes + routed_bytes);
        check("n_experts", it.n_experts);
        check("n_experts_per_token", it.n_experts_per_token);
        check("experts_bytes", it.n_experts * it.expert_bytes);
        // All of these are whole multiples of 16 KiB.
        check("slot_bytes", it.expert_bytes);
        check("session_bytes", session_bytes);
        check("kv_bytes", 4096 * it.kv_bytes_per_position);
        check("operations_per_token", 2 * it.weights_per_token);
        let fixed_bytes =
            it.resident_bytes + session_bytes + plan["workspace_bytes"].as_u64().unwrap();
        let top_k = if it.name == "qwen3.5-397b-a17b.json" { 10 } else { 8 };
        check("least_bytes", fixed_bytes + top_k * it.expert_bytes);
        check("all_bytes", fixed_bytes + it.n_experts * it.expert_bytes);
        let n_slots = ((64 << 30) - fixed_bytes) / it.expert_bytes;
        assert_eq!(plan["forecast"]["n_slots"], n_slots.min(it.n_experts), "{}", it.name);
    }
    // So that the sums above are not only equal to each other.
    assert_eq!(BY_HAND[0].resident_bytes, 5_584_514_944);
    assert_eq!(BY_HAND[5].resident_bytes, 9_785_190_016);
    assert_eq!(BY_HAND[0].n_experts_per_token * BY_HAND[0].expert_bytes, 4_246_732_800);
    // A17B: 16.3 billion weights, without the embeddings and the head's other half.
    assert_eq!(BY_HAND[0].weights_per_token, 16_329_195_520);
}

#[track_caller]
fn check_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.001, "{found}, not {expected}");
}

#[test]
fn speeds_of_the_397b_in_64_gib_as_on_paper() {
    let config = BareConfig::open(&published("qwen3.5-397b-a17b.json")).unwrap();
    let params = config.params(Some(4), Some(64)).unwrap();
    let needs = Needs::new(&config.blueprint(params).unwrap());
    let gives = Gives {
        budget_bytes: 64 << 30,
        drive_bytes_per_s: 3e9,
        memory_bytes_per_s: 60e9,
        operations_per_s: 1e12,
    };
    let found = forecast(&needs, &gives, 4096).unwrap();
    // 68,719,476,736 - 5,584,514,944 - 321,208,320 - step 308,280,320 leave 62,505,473,152
    // bytes: 8,831 slots of 7,077,888, which are 28.747 % of 30,720. The step: a workspace of
    // 183,150,592 bytes, half as much scratch, and 32 MiB.
    assert_eq!(needs.workspace_bytes(512), 308_280_320);
    assert_eq!(found.n_slots, 8831);
    // Missed: 0.71253 of 4.24673 GB are 3.02594 GB, at 0.85 x 3 GB/s 1.18664 s. Read from memory:
    // 5.01239 + 4.24673 + 0.32121 = 9.58033 GB, at 0.75 x 60 GB/s 0.21290 s, in turn.
    check_near(found.low.hit_rate, 0.28747);
    check_near(found.low.drive_bytes_per_token, 3.02594e9);
    check_near(found.low.tokens_per_s, 1.0 / (1.18664 + 0.21290));
    // Missed: 0.71253^3 = 0.36175 of 4.24673 GB are 1.53628 GB, at 3 GB/s 0.51209 s.
    check_near(found.high.hit_rate, 0.63825);
    check_near(found.high.tokens_per_s, 1.0 / 0.51209);
    assert_eq!((found.low.bound, found.high.bound), (Bound::Drive, Bound::Drive));
    // A prompt of 512 leaves out 1 of 24,000 experts: (1 - 10/512)^512 = 0.0000412. The rest,
    // 217.4238 GB, but for the 28.747 % that stay: 154.922 GB, at 3 GB/s 51.641 s.
    let [short, long] = found.prompts[..] else { panic!("{:?}", found.prompts) };
    assert_eq!((short.n_tokens, short.n_passes, short.bound), (512, 1, Bound::Drive));
    check_near(short.drive_bytes, 154.922e9);
    check_near(short.seconds, 51.641);
    // 2 x 16.3292 billion operations for each of 2,048 at 10^12 a second are 66.884 s. A workspace
    // for 2,048 takes room from slots, and one pass is enough.
    assert_eq!((long.n_tokens, long.n_passes, long.bound), (2048, 1, Bound::Compute));
    check_near(long.seconds, 66.884);
    // 5.58451 GB and 28.747 % of 217.43272 GB.
    check_near(found.load_seconds, (5.58451 + 62.5048) / 3.0);

    // With all in memory and a slow memory: 9.25912 GB and a recurrent state of 0.19538 GB at
    // 10 GB/s; at the low end with the whole session, 9.58033 GB at 7.5 GB/s.
    let all = Gives { budget_bytes: 1 << 40, memory_bytes_per_s: 10e9, ..gives };
    let found = forecast(&needs, &all, 4096).unwrap();
    check_near(found.high.tokens_per_s, 10.0 / 9.45450);
    check_near(found.low.tokens_per_s, 7.5 / 9.58033);
    assert_eq!((found.low.bound, found.high.bound), (Bound::Memory, Bound::Memory));

    // In the least memory a prompt of 2,048 has no room for one step: 4 passes.
    let least = Gives { budget_bytes: needs.least_bytes(4096), ..gives };
    let found = forecast(&needs, &least, 4096).unwrap();
    assert_eq!((found.n_slots, found.prompts[1].n_passes), (10, 4));
    check_near(found.prompts[1].drive_bytes, 4.0 * 217.4238e9 * (1.0 - 10.0 / 30_720.0));
    let less = Gives { budget_bytes: least.budget_bytes - 1, ..gives };
    assert_eq!(forecast(&needs, &less, 4096), None);
}

#[test]
fn a_budget_too_small_says_how_much_is_missing() {
    let path = published("deepseek-v3-671b.json");
    let small = json_of(&PlanArgs { ram: Some(4 << 30), ..args(&path) });
    assert_eq!(small["forecast"], Value::Null);
    let advice = small["advice"].to_string();
    // 11,076,961,920 - 4,294,967,296.
    assert!(advice.contains("needs 6.78 GB more"), "{advice}");
    assert!(advice.contains("the minimum budget is 11.08 GB"), "{advice}");
    assert!(advice.contains(": resident weights 9.79 GB"), "{advice}");
    let least = small["least_bytes"].as_u64().unwrap();
    let check = |ram: u64, expected: Option<u64>| {
        let plan = json_of(&PlanArgs { ram: Some(ram), ..args(&path) });
        assert_eq!(plan["forecast"]["n_slots"].as_u64(), expected);
    };
    check(least, Some(8));
    check(least - 1, None);
    let all = small["all_bytes"].as_u64().unwrap();
    check(all - 1, Some(14_847));
    check(all, Some(14_848));
    let everything = json_of(&PlanArgs { ram: Some(all), ..args(&path) });
    assert_eq!(everything["forecast"]["decode_low"]["drive_bytes_per_token"], 0.0);
    assert!(everything["advice"].to_string().contains("everything fits"));
}

#[test]
fn experts_beside_a_gpu_are_each_in_one_place() {
    let asked = args(&published("qwen3.6-35b-a3b.json"));
    assert_eq!(json_of(&asked)["tiers"], Value::Null);
    let plan = |ram: u64, gpu: u64| {
        let plan = json_of(&PlanArgs { ram: Some(ram), gpu_memory: Some(gpu), ..asked.clone() });
        let count = |key: &str| plan["tiers"][key].as_u64().unwrap();
        (count("experts_on_gpu"), count("experts_in_memory"), count("experts_on_drive"))
    };
    let sizes = json_of(&asked);
    let bytes = |key: &str| sizes[key].as_u64().unwrap();
    let (all, slot) = (bytes("all_bytes"), bytes("slot_bytes"));
    assert_eq!(plan(1 << 30, all), (10_240, 0, 0));
    let quarter = all - 7_680 * slot;
    assert_eq!(plan(7_680 * slot, quarter), (2_560, 7_680, 0));
    // Too little for all of the rest: slots in memory, copies on the GPU.
    assert_eq!(plan(quarter, quarter), (0, 2_560, 7_680));
    let page =
        run(&PlanArgs { ram: Some(7_680 * slot), gpu_memory: Some(quarter), json: false, ..asked });
    let line = "  experts   2,560 on it, 7,680 in memory, 0 on the drive";
    assert!(page.unwrap().contains(line));
}

#[test]
fn context_and_bits_change_what_they_should() {
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
    assert!(matches!(&error, Failure::Usage(line) if line.contains("262144")), "{error}");
}

#[test]
fn a_page_says_what_was_assumed_and_fits_a_terminal() {
    for it in &BY_HAND {
        for ram in [1 << 30, 16 << 30, 64 << 30, 1 << 40] {
            let asked = args(&published(it.name));
            let page = run(&PlanArgs { ram: Some(ram), json: false, ..asked }).unwrap();
            assert!(page.lines().all(|line| line.len() <= 110), "{page}");
            assert!(page.lines().all(|line| line.trim_end() == line), "{page}");
            assert!(page.contains("drive     3.00 GB/s, from --disk-gbps"), "{page}");
            assert!(page.contains("TOP/s, assumed"), "{page}");
            let is_forecast = page.contains("tokens per second");
            assert_eq!(is_forecast, page.contains("low: uniform routing"), "{page}");
            assert_eq!(is_forecast, !page.contains("too small"), "{page}");
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
    // Nine extents at any byte, each in whole blocks of its own.
    let slot_bytes = plan["slot_bytes"].as_u64().unwrap();
    assert!((9 * 4096..=9 * 8192).contains(&slot_bytes), "{slot_bytes}");
    let told = run(&args(&case)).unwrap_err();
    assert!(matches!(&told, Failure::Usage(line) if line.contains("leave them out")), "{told}");

    // A config alone in a folder is a config.
    let temp = TestDir::new("plan-config");
    fs::copy(published("q3moe-2g.json"), temp.path().join("config.json")).unwrap();
    assert_eq!(json_of(&args(temp.path()))["exists"], false);
    let error = run(&args(&temp.path().join("x.safetensors"))).unwrap_err();
    assert!(error.to_string().contains("name its folder"), "{error}");
    let error = run(&args(&temp.path().join("none.json"))).unwrap_err();
    assert!(error.to_string().contains("none.json"), "{error}");
}
