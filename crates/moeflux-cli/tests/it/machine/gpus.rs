//! `--backend` and `--gpu`: available GPUs compute, missing ones are named.

use moeflux_testing::needs_gpu;
use serde_json::{Value, json};

use crate::serving::ServerProcess;
use crate::support::{ModelDir, check_fails, golden, moeflux, read_npy, stdout_of};

const NAME: &str = "qwen3_moe-f32";
const TOKENS: &str = "1,2,3,4,5,6,7,8";

#[test]
fn a_gpu_is_chosen_by_its_number_and_computes_the_same() {
    needs_gpu!();
    let dir = ModelDir::new();
    let model = golden(NAME);
    let logits = |file: &str, device: &[&str]| {
        let out = dir.file(file);
        let (model, out_name) = (model.to_str().unwrap(), out.to_str().unwrap());
        let args = ["logits", "--model", model, "--tokens", TOKENS, "--out", out_name];
        stdout_of(&[&args[..], device].concat());
        read_npy(&out, 256).concat()
    };
    let expected = logits("cpu.npy", &["--backend", "cpu", "--precise"]);
    let computed = logits("gpu.npy", &["--backend", "gpu", "--gpu", "0"]);
    let few = ["--backend", "gpu", "--gpu", "0", "--gpu-memory", "40M"];
    for (computed, expected) in computed.iter().zip(&expected) {
        assert!((computed - expected).abs() <= 5e-4, "{computed}, not {expected}");
    }
    assert!(logits("few.npy", &few) == computed, "less memory there changes no bit");
}

#[test]
fn a_missing_gpu_is_one_line_and_auto_continues_without() {
    needs_gpu!();
    let model = golden(NAME);
    let out = ModelDir::new();
    let file = out.file("out.npy");
    let args = [
        "logits",
        "--model",
        model.to_str().unwrap(),
        "--tokens",
        TOKENS,
        "--out",
        file.to_str().unwrap(),
    ];
    let wrong = ["--backend", "gpu", "--gpu", "no such GPU"];
    check_fails(&[&args[..], &wrong].concat(), &["no such GPU", "not found; available: 0: "]);
    let output = moeflux(&[&args[..], &["--backend", "auto"]].concat());
    assert!(output.status.success());
    // A machine with a GPU prints nothing.
    let stderr = String::from_utf8(output.stderr).unwrap();
    let notes: Vec<&str> = stderr.lines().filter(|line| line.starts_with("note: ")).collect();
    assert!(notes.len() <= 1, "{stderr}");
    assert!(notes.iter().all(|it| it.starts_with("note: computing on the CPU: ")), "{stderr}");
}

#[test]
fn answers_of_a_gpu_are_bound_from_their_first_token() {
    needs_gpu!();
    let server = ServerProcess::start(&["--port", "0", "--backend", "gpu", "--gpu", "0"], &[]);
    let schema = json!({"type": "object", "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"], "additionalProperties": false});
    let form = json!({"type": "json_schema", "json_schema": {"name": "c", "schema": schema}});
    let body = json!({"messages": [{"role": "user", "content": "Pick a colour."}],
        "temperature": 0, "response_format": form});
    let found = server.json("POST /v1/chat/completions", &body);
    let text = found["choices"][0]["message"]["content"].as_str().unwrap();
    let answer: Value = serde_json::from_str(text).unwrap();
    assert!(["red", "green"].contains(&answer["colour"].as_str().unwrap()), "{answer}");
}

#[test]
fn the_doctor_lists_gpus_with_their_limits() {
    needs_gpu!();
    let dir = ModelDir::new();
    let folder = dir.path().to_str().unwrap();
    let text = stdout_of(&["doctor", folder, "--file-size", "16M", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let gpus = report["gpus"].as_array().unwrap();
    assert!(!gpus.is_empty());
    for gpu in gpus {
        assert!(gpu["binding_bytes_max"].as_u64().unwrap() >= 64 << 20, "{gpu}");
        assert!(gpu["lacks"].is_null(), "{gpu}");
    }
}

#[test]
fn options_of_a_gpu_mean_a_gpu() {
    needs_gpu!();
    let model = golden(NAME);
    let args = ["bench", "--model", model.to_str().unwrap(), "--repeat", "1", "--json"];
    let computed_on = |more: &[&str]| {
        let result: Value = serde_json::from_str(&stdout_of(&[&args[..], more].concat())).unwrap();
        result["backend"].as_str().unwrap().to_owned()
    };
    let short = ["--prompt-tokens", "8", "--gen-tokens", "2"];
    assert_eq!(computed_on(&[&short[..], &["--gpu", "0"]].concat()), "gpu");
    assert_eq!(computed_on(&[&short[..], &["--gpu", "0", "--backend", "auto"]].concat()), "gpu");
    assert_eq!(computed_on(&short), "cpu", "a small model");
    let wrong = [&args[..], &["--gpu", "no such GPU"]].concat();
    check_fails(&wrong, &["no such GPU", "not found; available: 0: "]);
    for option in [["--gpu", "0"], ["--gpu-memory", "1G"]] {
        let args = [&args[..], &["--backend", "cpu"], &option].concat();
        let output = moeflux(&args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let expected = format!("{} selects a GPU, but --backend cpu uses none", option[0]);
        assert!(stderr.contains(&expected), "{stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn messages_of_drivers_about_the_desktop_are_suppressed() {
    needs_gpu!();
    let dir = ModelDir::new();
    let mut doctor = std::process::Command::new(env!("CARGO_BIN_EXE_moeflux"));
    doctor.args(["doctor", "--json"]).arg(dir.path());
    crate::support::set_cache(&mut doctor, dir.path());
    // With the layer that looks for a desktop, which other tests leave out.
    let doctor = doctor.env_remove("NODEVICE_SELECT").env_remove("XDG_RUNTIME_DIR");
    let output = doctor.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("XDG_RUNTIME_DIR"), "{stderr}");
}
