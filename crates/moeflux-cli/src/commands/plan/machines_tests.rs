//! Plans with a GPU and for several machines, against manual arithmetic.

use std::num::NonZeroUsize;

use serde_json::Value;

use super::tests::{args, check_near, json_of, number, published, refusal};
use super::{PlanArgs, run};
use crate::system::network::Network;

#[test]
fn several_machines_hold_and_read_a_part_each_and_exchange_values() {
    let ranks = |n: u32, network: &str| PlanArgs {
        ranks: NonZeroUsize::new(n as usize),
        network: Some(Network::parse(network).unwrap()),
        ..args(&published("qwen3.5-397b-a17b.json"))
    };
    let alone = json_of(&args(&published("qwen3.5-397b-a17b.json")));
    let of_answer = |plan: &Value, what: &str| {
        plan["forecast"]["answer"]["high"][what].as_f64().expect("a number")
    };
    let rate = |plan: &Value| of_answer(plan, "tokens_per_s");
    for n in [2, 4] {
        let plan = json_of(&ranks(n, "50,1.1"));
        let each = |key: &str| number(&plan[key]) * u64::from(n);
        assert_eq!(each("experts_bytes"), number(&alone["experts_bytes"]), "{n}");
        assert_eq!(each("routed_bytes_per_token"), number(&alone["routed_bytes_per_token"]));
        assert_eq!(plan["resident_bytes"], alone["resident_bytes"], "all have all of it");
        let found_alone = plan["answer_alone"]["high"]["tokens_per_s"].as_f64();
        check_near(found_alone.expect("a number"), rate(&alone));
        // 60 layers: 10 experts of 1,024 inner values, and 4,096 columns, 4 bytes each; and message
        // headers.
        let others = f64::from(n - 1);
        let of_bytes = |n_bytes: f64| others * (n_bytes / f64::from(n) + 48.0) / 1.1e9;
        let exchange = 50e-6 + others * 5e-6;
        let expected = 60.0 * (2.0 * exchange + of_bytes(40_960.0) + of_bytes(16_384.0));
        check_near(of_answer(&plan, "exchange_s_per_token"), expected);
        // Drive rates add up and the hit rate rises; work that every machine does remains.
        let factor = if n == 2 { 2.0 } else { 2.5 };
        assert!(rate(&plan) > factor * rate(&alone), "{n}: {}", rate(&plan));
    }
    let one = json_of(&ranks(1, "10g"));
    assert_eq!((&one["ranks"], &one["answer_alone"]), (&Value::Null, &Value::Null));
    assert!(of_answer(&one, "exchange_s_per_token") == 0.0, "one machine is no job");
    let [fast, slow] = ["5,2.8", "5000,0.1"].map(|network| json_of(&ranks(2, network)));
    assert!(rate(&fast) > rate(&slow));
    assert_eq!(slow["forecast"]["answer"]["low"]["bound"], "network");
    let page = run(&PlanArgs { json: false, ..ranks(4, "10g") }).unwrap();
    for words in ["over 4 machines", "memory of each", "each of 4 machines", "one machine alone"] {
        assert!(page.contains(words), "{words} is not in\n{page}");
    }
    // 2,048 rows, 128 of which share scales.
    let v3 =
        PlanArgs { path: Some("DeepSeek-V3".into()), bits: None, group: None, ..ranks(17, "1g") };
    assert!(refusal(&v3).contains("cannot be divided among 17 machines"), "{}", refusal(&v3));
}

#[test]
fn a_gpu_changes_every_number() {
    let path = published("qwen3.6-35b-a3b.json");
    let plan = |memory: u64, gpu: u64| {
        json_of(&PlanArgs {
            memory: Some(memory << 30),
            gpu_memory: Some(gpu << 30),
            ..args(&path)
        })
    };
    let places = |plan: &Value| {
        let of = |place: &str| number(&plan["forecast"][format!("experts_{place}")]);
        [of("on_gpu"), of("in_memory"), of("on_drive")]
    };
    let cpu = plan(64, 0);
    assert_eq!((cpu["computes"].as_str(), places(&cpu)), (Some("cpu"), [0, 10_240, 0]));
    let whole = plan(2, 40);
    assert_eq!((whole["computes"].as_str(), places(&whole)), (Some("gpu"), [10_240, 0, 0]));
    let [near, far, drive] = places(&plan(64, 10));
    assert_eq!((near + far, drive), (10_240, 0));
    assert!(near > 3000 && far > 3000, "{near} {far}");
    let [near, far, drive] = places(&plan(8, 10));
    assert!(near > 3000 && far > 1000 && drive > 1000, "{near} {far} {drive}");
    assert_eq!(near + far + drive, 10_240);
    let high = |plan: &Value| plan["forecast"]["answer"]["high"]["tokens_per_s"].as_f64().unwrap();
    let speeds = [plan(8, 10), plan(64, 10), whole.clone()].map(|it| high(&it));
    assert!(speeds.is_sorted() && speeds[0] < speeds[1], "{speeds:?}");
    // On a card, keys and values are in f32.
    assert!(number(&whole["kv_bytes"]) == 2 * number(&cpu["kv_bytes"]));
    let faster =
        json_of(&PlanArgs { gpu_memory: Some(40 << 30), gpu_gbps: Some(2000.0), ..args(&path) });
    assert!(high(&faster) > high(&whole));
    let prompt = |plan: &Value| plan["forecast"]["prompts"][0]["tokens_per_s_high"].as_f64();
    assert!(prompt(&faster) > prompt(&whole));
    assert_eq!(faster["forecast"]["answer"]["low"]["bound"], "GPU");
}
