//! `bench`: the conditions in its reports, and invalid numbers. Speed is not tested.

use serde_json::Value;

use crate::support::{ModelDir, golden, moeflux, stdout_of};

/// One with recurrent layers, whose context can only be come back to, and one without.
const CASES: [&str; 2] = ["mlx-qwen3_5_moe-q4-g64-bf16", "deepseek_v3-bf16"];

fn bench(case: &str, more: &[&str]) -> Value {
    let model = golden(case);
    let args = ["bench", "--model", model.to_str().unwrap(), "--json", "--threads", "2"];
    serde_json::from_str(&stdout_of(&[&args[..], more].concat())).unwrap()
}

/// Of `n_runs` positive rates the median is between the lowest and the highest.
#[track_caller]
fn check_rates(result: &Value, part: &str, n_runs: usize) {
    let runs = result[format!("{part}_runs")].as_array().unwrap();
    let runs: Vec<f64> = runs.iter().map(|run| run.as_f64().unwrap()).collect();
    assert_eq!(runs.len(), n_runs, "{result}");
    assert!(runs.iter().all(|run| run.is_finite() && *run > 0.0), "{result}");
    let median = &result[format!("{part}_tokens_per_s")];
    if n_runs == 0 {
        assert!(median.is_null(), "{result}");
        return;
    }
    let median = median.as_f64().unwrap();
    assert!(runs.iter().any(|run| *run <= median) && runs.iter().any(|run| *run >= median));
}

#[test]
fn every_run_counts_but_the_first() {
    for case in CASES {
        let result = bench(case, &["--prompt-tokens", "9", "--gen-tokens", "3", "--repeat", "4"]);
        check_rates(&result, "prefill", 4);
        check_rates(&result, "decode", 4);
    }
}

#[test]
fn a_part_without_tokens_is_left_out() {
    for context in ["0", "20"] {
        let more = ["--repeat", "1", "--context-tokens", context, "--chunk", "8"];
        for case in CASES {
            let result =
                bench(case, &[&["--prompt-tokens", "0", "--gen-tokens", "2"], &more[..]].concat());
            check_rates(&result, "prefill", 0);
            check_rates(&result, "decode", 1);
            let result =
                bench(case, &[&["--prompt-tokens", "18", "--gen-tokens", "0"], &more[..]].concat());
            check_rates(&result, "prefill", 1);
            check_rates(&result, "decode", 0);
        }
    }
}

#[test]
fn a_figure_comes_with_its_conditions() {
    let more =
        ["--prompt-tokens", "5", "--gen-tokens", "2", "--context-tokens", "3", "--seed", "9"];
    let result = bench(CASES[0], &more);
    for (key, expected) in [
        ("prompt_tokens", 5),
        ("gen_tokens", 2),
        ("context_tokens", 3),
        ("seed", 9),
        ("n_threads", 2),
        ("chunk", 512),
    ] {
        assert_eq!(result[key], expected, "{key}");
    }
    let shards = std::fs::read_dir(golden(CASES[0])).unwrap().map(|entry| entry.unwrap());
    let shards =
        shards.filter(|entry| entry.path().extension().is_some_and(|it| it == "safetensors"));
    let n_bytes: u64 = shards.map(|entry| entry.metadata().unwrap().len()).sum();
    assert_eq!(result["model_bytes"], n_bytes);
    assert!(result["weight_bytes_per_token"].as_u64().unwrap() < n_bytes, "{result}");
    assert!(result["weight_bytes_per_token"].as_u64().unwrap() > 0, "{result}");
    for key in ["backend", "arithmetic", "isa", "model", "version"] {
        assert!(!result[key].as_str().unwrap().is_empty(), "{key}");
    }
    let command = result["command"].as_str().unwrap();
    assert!(command.contains(" bench --model ") && command.contains(" --seed 9"), "{command}");
    assert!(!result["machine"]["cpu"].as_str().unwrap().is_empty());
    assert!(result["machine"]["n_cores"].as_u64().unwrap() > 0);
    if cfg!(target_os = "linux") {
        assert!(result["machine"]["memory_bytes"].as_u64().unwrap() > 0);
        assert!(result["rss_bytes_peak"].as_u64().unwrap() > 0);
    }
}

#[test]
fn arithmetic_instructions_and_backend_follow_the_options() {
    let few = ["--prompt-tokens", "2", "--gen-tokens", "1", "--repeat", "1"];
    let asked = |more: &[&str]| bench(CASES[0], &[&few, more].concat());
    assert_eq!(asked(&["--precise"])["arithmetic"], "f32");
    assert_eq!(asked(&[])["arithmetic"], "int8");
    assert_eq!(asked(&["--kv-bits", "16"])["arithmetic"], "int8");
    assert_eq!(asked(&["--kv-bits", "8"])["arithmetic"], "int8-kv8");
    assert_eq!(asked(&["--isa", "scalar"])["isa"], "scalar");
    assert_eq!(asked(&["--backend", "reference"])["backend"], "reference");
}

#[test]
fn the_table_has_a_line_for_each_part() {
    let dir = ModelDir::of_bytes_case();
    let model = dir.path().to_str().unwrap();
    let args = ["bench", "--model", model, "--prompt-tokens", "4", "--repeat", "2"];
    let table = stdout_of(&[&args[..], &["--gen-tokens", "2"]].concat());
    for word in [model, "machine ", "computed ", "\nprefill ", "\ndecode ", " GB/s"] {
        assert!(table.contains(word), "`{word}` is not in: {table}");
    }
    let table = stdout_of(&[&args[..], &["--gen-tokens", "0"]].concat());
    assert!(table.contains("\nprefill ") && !table.contains("decode"), "{table}");
}

#[test]
fn numbers_that_cannot_be_are_wrong_use() {
    let model = golden(CASES[0]);
    let huge = "18446744073709551615";
    let cases: [(&[&str], &str); 7] = [
        (&["--prompt-tokens", "0", "--gen-tokens", "0"], "nothing to measure"),
        (&["--prompt-tokens", "1000000"], "takes: 4096"),
        (&["--context-tokens", "4096", "--prompt-tokens", "0", "--gen-tokens", "1"], "takes: 4096"),
        (&["--context-tokens", huge], huge),
        (&["--gen-tokens", huge, "--context-tokens", "1"], huge),
        (&["--repeat", "0"], "from 1 to 10000"),
        (&["--repeat", "10001"], "from 1 to 10000"),
    ];
    for (more, words) in cases {
        let output = moeflux(&[&["bench", "--model", model.to_str().unwrap()], more].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{more:?}");
        assert!(stderr.starts_with("error: ") && stderr.contains(words), "{more:?}: {stderr}");
    }
}

#[test]
fn several_sessions_answer_together() {
    for case in CASES {
        let more =
            ["--sessions", "3", "--prompt-tokens", "4", "--gen-tokens", "5", "--repeat", "2"];
        let result = bench(case, &[&more[..], &["--context-tokens", "6"]].concat());
        check_rates(&result, "decode", 2);
        assert_eq!(result["sessions"], 3);
        let each = result["decode_tokens_per_s_per_session"].as_f64().unwrap();
        let all = result["decode_tokens_per_s"].as_f64().unwrap();
        assert!((each * 3.0 - all).abs() < 1e-6 * all, "{result}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_runs_that_are_whole() {
    use std::process::{Command, Stdio};

    let model = golden(CASES[1]);
    let args = ["bench", "--model", model.to_str().unwrap(), "--json", "--repeat", "1000"];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_moeflux"));
    bench.args(args).args(["--prompt-tokens", "0", "--gen-tokens", "60"]);
    let child = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (_sender, nothing) = std::sync::mpsc::channel::<()>();
    assert!(nothing.recv_timeout(std::time::Duration::from_secs(1)).is_err());
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let n_runs = result["decode_runs"].as_array().unwrap().len();
    assert!((1..1000).contains(&n_runs), "{n_runs}");
    check_rates(&result, "decode", n_runs);
}
