//! Sizes of published geometries against numbers computed by hand, and refusals.

use std::fs;
use std::path::Path;

use moeflux_testing::temp_dir::TempDir;
use serde_json::{Value, json};

use super::*;

fn published(name: &str) -> PathBuf {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux/tests/data/configs");
    configs.join(name)
}

fn args(path: &Path) -> InspectArgs {
    InspectArgs { path: Some(path.to_owned()), bits: None, group: None, json: false }
}

fn report(name: &str) -> Value {
    let args = InspectArgs { bits: Some(4), group: Some(64), json: true, ..args(&published(name)) };
    serde_json::from_str(&run(&args).unwrap()).unwrap()
}

#[test]
fn experts_of_published_models_have_their_known_sizes() {
    let cases: [(&str, u64, u64); 6] = [
        ("qwen3.5-397b-a17b.json", 7_077_888, 10 * 60),
        ("qwen3.6-35b-a3b.json", 1_769_472, 8 * 40),
        ("deepseek-v3-671b.json", 24_772_608, 8 * 58),
        ("q35moe-2g.json", 1_769_472, 8 * 8),
        ("q3moe-2g.json", 2_654_208, 8 * 6),
        ("dsv3-2g.json", 1_769_472, 8 * 8),
    ];
    for (name, expert_bytes, experts_per_token) in cases {
        let report = report(name);
        assert_eq!(report["expert_bytes_min"], expert_bytes, "{name}");
        assert_eq!(report["expert_bytes_max"], expert_bytes, "{name}");
        assert_eq!(report["routed_bytes_per_token"], expert_bytes * experts_per_token, "{name}");
    }
}

#[test]
fn a_page_for_people_has_exact_and_rounded_bytes() {
    let args = InspectArgs {
        bits: Some(4),
        group: Some(64),
        ..args(&published("qwen3.5-397b-a17b.json"))
    };
    let page = run(&args).unwrap();
    let line = |label: &str| {
        let line = page.lines().find(|line| line.trim_start().starts_with(label));
        let Some(line) = line else { panic!("{label} is not in\n{page}") };
        line
    };
    assert!(line("one expert").contains(" 7,077,888 "), "{page}");
    assert!(line("experts per token").contains(" 4,246,732,800 "), "{page}");
    assert!(line("experts per token").contains(" 4.25 GB "), "{page}");
    assert!(line("45 x gated DeltaNet").contains("64 value heads of 128"), "{page}");
    assert!(line("60 x experts").contains("10 per token of 512"), "{page}");
    // 15 layers x (2 + 2) heads x 256 channels x 2 bytes x 1,000: f16, as in int8 arithmetic.
    assert!(line("KV per 1,000 tokens (f16)").contains(" 30,720,000 "), "{page}");
    // 8 bits and a 64th of two bf16 instead of 16 bits: 8.5 of 16.
    assert!(line("KV per 1,000 tokens (8 bits)").contains(" 16,320,000 "), "{page}");
    // 45 layers x (64 x 128 x 128 + 3 x 12,288) x 4 bytes.
    assert!(line("recurrent state").contains(" 195,379,200 "), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
}

#[test]
fn a_bare_config_has_its_own_quantisation_unless_overridden() {
    let temp = TempDir::new();
    let path = temp.path().join("any.json");
    let text = fs::read_to_string(published("q3moe-2g.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let bits = |path: &Path, bits: Option<u8>| {
        let args = InspectArgs { bits, json: true, ..args(path) };
        let report: Value = serde_json::from_str(&run(&args).unwrap()).unwrap();
        report["quantisation"].clone()
    };
    assert_eq!(bits(&published("q3moe-2g.json"), None)["bits"], Value::Null);
    config["quantization"] = json!({"group_size": 32, "bits": 6});
    fs::write(&path, config.to_string()).unwrap();
    assert_eq!(bits(&path, None)["bits"], 6);
    assert_eq!(bits(&path, None)["group"], 32);
    assert_eq!(bits(&path, Some(8))["bits"], 8);
    assert_eq!(bits(&path, Some(8))["group"], 64);
}

#[test]
fn refusals_of_inspect_state_a_remedy() {
    let check = |args: &InspectArgs, parts: &[&str]| {
        let line = run(args).unwrap_err().to_string();
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        assert!(!line.contains('\n'), "{line}");
    };
    let temp = TempDir::new();
    let dir = args(temp.path());
    check(&dir, &["config.json"]);
    let config = temp.path().join("config.json");
    fs::copy(published("q3moe-2g.json"), &config).unwrap();
    check(&dir, &["no *.safetensors", "moeflux inspect", "config.json"]);
    check(&InspectArgs { bits: Some(4), ..dir }, &["--bits", "leave them out"]);
    check(&args(&temp.path().join("model.safetensors")), &["one file of a model: name its folder"]);
    check(&args(&temp.path().join("missing.json")), &["missing.json"]);
    fs::write(&config, "{]").unwrap();
    check(&args(&config), &["config.json", "is not JSON"]);
}

#[test]
fn layers_that_differ_have_lines_that_differ() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden");
    let folders = fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = folders.filter(|it| it.join("case.json").is_file()).collect();
    paths.extend(known::KNOWN.iter().map(|it| PathBuf::from(it.name)));
    let mut n_seen = 0;
    for path in paths {
        let Ok(page) = run(&args(&path)) else { continue };
        n_seen += 1;
        let layers = page.lines().skip_while(|it| !it.starts_with("  layers")).skip(1);
        let mut found: Vec<String> = Vec::new();
        for line in layers.take_while(|it| !it.is_empty()) {
            let text = line.trim_start();
            match (text.split_once(" x "), line.len() - text.len(), found.last_mut()) {
                // Without the number of layers.
                (Some((_, words)), 4, _) => found.push(words.to_owned()),
                (_, _, Some(last)) => last.push_str(text),
                _ => panic!("a line goes on without a beginning:\n{page}"),
            }
        }
        let n_entries = found.len();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), n_entries, "{}:\n{page}", path.display());
    }
    assert!(n_seen > 40, "{n_seen}");
}

#[test]
fn attention_is_described_with_what_it_sees() {
    let page = |name: &str| {
        let page = run(&args(Path::new(name))).unwrap();
        page.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let v32 = page("deepseek-v3.2");
    assert!(v32.contains("longest context 163,840 tokens embeddings"), "{v32}");
    let choice = "to 2,048 positions that an indexer of 64 heads of 128 chooses";
    assert!(v32.contains(choice), "{v32}");
    assert!(page("deepseek-v3").contains("longest context 163,840 tokens embeddings"));
    assert!(!page("deepseek-v3").contains("indexer"));
    let oss = page("gpt-oss-20b");
    assert!(oss.contains("yarn x32, sees the last 128, sinks"), "{oss}");
}
