//! `moeflux plan` and `moeflux doctor`: figures, stored measurements, and damage that is found.

use std::path::Path;

use serde_json::Value;

use crate::support::{ModelDir, check_fails, golden, moeflux, moeflux_in, stdout_in, stdout_of};

const CONFIG: &str = "qwen3.5-397b-a17b.json";
const SHARD: &str = "model.safetensors";

fn config() -> String {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux/tests/data/configs");
    configs.join(CONFIG).to_str().unwrap().to_owned()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The text without its line breaks, which stand where paths are long.
fn unbroken(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `doctor` on a small temporary file.
fn doctor<'a>(dir: &'a ModelDir, more: &[&'a str]) -> Vec<&'a str> {
    let dir = dir.path().to_str().unwrap();
    [&["doctor", dir, "--file-size", "4M", "--trials", "none"], more].concat()
}

#[test]
fn a_plan_of_a_config_states_needs_and_assumptions() {
    let cache = ModelDir::new();
    let config = config();
    let plan = ["plan", &config, "--bits", "4", "--group", "64", "--memory", "64G"];
    let page = stdout_in(&cache, &plan);
    for words in [
        "qwen3_5_moe stored in 4 bits: ",
        "weights that every token uses         5,584,514,944     5.58 GB     5.20 GiB",
        "600 of them for a token             4,246,732,800     4.25 GB     3.96 GiB",
        "memory    68.72 GB (64.00 GiB), from --memory",
        "drive     reads 3.00 GB/s, assumed: `moeflux doctor` measures it",
        "answer, at the beginning",
        "Low: ",
        "minimum: --memory ",
    ] {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    let told = json(&stdout_in(&cache, &[&plan[..], &["--disk-gbps", "7.5", "--json"]].concat()));
    assert_eq!(told["machine"]["drive"]["bytes_per_s"], 7.5e9);
    assert_eq!(told["routed_bytes_per_token"], 4_246_732_800_u64);
}

#[test]
fn a_memory_too_small_ends_with_one_line() {
    let output = moeflux(&["plan", "deepseek-v3", "--memory", "4G"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: DeepSeek-V3 needs at least "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn models_known_by_name_are_listed_and_described() {
    let cache = ModelDir::new();
    let page = stdout_in(&cache, &["plan", "--ram", "64G"]);
    for words in ["memory    68.72 GB", "Kimi-K2 (1T-A32B)", "FP8", "4 bits"] {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    let page = stdout_in(&cache, &["inspect", "qwen3-30b-a3b"]);
    assert!(page.contains("4 bits in groups of 64") && page.contains("48 x"), "{page}");
    let page = stdout_in(&cache, &["plan", "glm-4.5-air", "--ram", "64G", "--cores", "16"]);
    let words: Vec<&str> = page.split_whitespace().collect();
    assert!(words.join(" ").contains("for 16 cores"), "{page}");
    for name in ["Qwen3.6", "qwen3.6 35b", "Qwen/Qwen3.6-35B-A3B"] {
        let page = stdout_in(&cache, &["plan", name, "--ram", "64G"]);
        assert!(page.contains("Qwen3.6-35B-A3B"), "{name}: {page}");
    }
    check_fails(
        &["plan", "qwen3"],
        &["is ambiguous; use one of ", "Qwen3-30B-A3B, Qwen3-Coder-30B-A3B, "],
    );
    check_fails(&["plan", "DeepSeek-V4-Flash"], &["does not run DeepSeek-V4 yet"]);
    check_fails(&["plan", "Qwen9"], &["known models: Qwen3.5-4B"]);
}

#[test]
fn pages_fit_a_terminal() {
    let cache = ModelDir::new();
    for args in [
        &["plan", "--ram", "64G"][..],
        &["plan", "--ram", "64G", "--gpu-memory", "24G"],
        &["plan", "qwen3.5-397b-a17b", "--ram", "64G"],
        &["plan", "deepseek-v3", "--ram", "64G", "--cores", "16"],
        &["plan", "kimi-k2", "--ram", "64G", "--gpu-memory", "24G"],
        &["plan", "glm-5", "--ram", "64G", "--gpu", "RX 7900 XTX"],
        &["inspect", "gpt-oss-20b"],
        &["inspect", "deepseek-v3.2"],
        &["inspect", "deepseek-v3"],
        &["inspect", "qwen3.5-397b-a17b"],
    ] {
        let page = stdout_in(&cache, args);
        let longest = page.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(80), "{args:?}:\n{page}");
    }
}

#[test]
fn a_gpu_without_room_for_what_every_token_needs_is_refused() {
    let words = ["--gpu-memory allows 104.86 MB (104,857,600 bytes)", "every token needs are 873."];
    check_fails(&["plan", "qwen3-30b-a3b", "--ram", "64G", "--gpu-memory", "100M"], &words);
    let page = stdout_of(&["plan", "--ram", "64G", "--gpu-memory", "100M"]);
    assert!(page.contains("needs at least 873.89 MB of GPU memory"), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    let dir = ModelDir::new();
    let model = model_with_large_experts(&dir);
    let words = ["--gpu-memory allows 1.05 MB (1,048,576 bytes)", "that every token needs are "];
    check_fails(&["generate", "x", "--model", &model, "--gpu-memory", "1M"], &words);
}

/// Two layers of four experts of 18 MB, of which each token uses two.
fn model_with_large_experts(dir: &ModelDir) -> String {
    let config = serde_json::json!({
        "model_type": "qwen3_moe", "vocab_size": 512, "hidden_size": 1024,
        "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": false, "attention_bias": false, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "moe_intermediate_size": 10240, "norm_topk_prob": true,
        "num_experts": 4, "num_experts_per_tok": 2, "use_sliding_window": false,
    });
    std::fs::write(dir.file("config.json"), config.to_string()).unwrap();
    let path = |name: &str| dir.file(name).to_str().unwrap().to_owned();
    stdout_of(&["synth", "--config", &path("config.json"), "--out", &path("model")]);
    path("model")
}

/// What `--stats` prints of streamed experts only.
const STREAMED: &str = " requested were there";

#[test]
fn the_least_memory_is_the_least_that_works() {
    let (cache, dir) = (ModelDir::new(), ModelDir::new());
    let model = model_with_large_experts(&dir);
    let plan = json(&stdout_in(&cache, &["plan", &model, "--json"]));
    let [least, slot, all] =
        ["least_bytes", "slot_bytes", "all_bytes"].map(|key| plan[key].as_u64().unwrap());
    let run = |memory: u64| {
        let memory = memory.to_string();
        let args = ["generate", "x", "--model", &model, "--backend", "cpu", "-n", "4"];
        moeflux_in(&cache, &[&args[..], &["--memory", &memory, "--stats"]].concat())
    };
    let enough = run(least);
    let stderr = String::from_utf8(enough.stderr).unwrap();
    assert_eq!(enough.status.code(), Some(0), "{stderr}");
    // One slot less: the slots are larger than a process differs from run to run.
    let too_small = run(least - slot);
    let stderr = String::from_utf8(too_small.stderr).unwrap();
    assert_eq!(too_small.status.code(), Some(1), "{stderr}");
    // With all of it nothing is streamed, one slot less is. A short answer may end before experts
    // that it did not use are in memory.
    let printed = |memory: u64| String::from_utf8(run(memory).stderr).unwrap();
    let (whole, less) = (printed(all), printed(all - slot));
    assert!(whole.contains(" of 8 in memory ") && !whole.contains(STREAMED), "{whole}");
    assert!(less.contains("7 of 8 in memory; ") && less.contains(STREAMED), "{less}");
    // `plan` refuses the budgets that the engine refuses.
    let plan = |memory: u64| {
        moeflux_in(&cache, &["plan", &model, "--memory", &memory.to_string()]).status.code()
    };
    assert_eq!((plan(least), plan(least - slot)), (Some(0), Some(1)));
}

#[test]
fn a_trace_narrows_the_estimate() {
    let (cache, dir) = (ModelDir::new(), ModelDir::new());
    let model = model_with_large_experts(&dir);
    let trace = dir.file("routes.trace").to_str().unwrap().to_owned();
    let bench = ["bench", "--model", &model, "--backend", "cpu", "--prompt-tokens", "0"];
    let more = ["--gen-tokens", "40", "--repeat", "1", "--trace", &trace];
    stdout_in(&cache, &[&bench[..], &more].concat());
    let plan = |more: &[&str]| {
        // The least, so that most experts are on the drive.
        let least =
            json(&stdout_in(&cache, &["plan", &model, "--json"]))["least_bytes"].to_string();
        let args = ["plan", &model, "--memory", &least, "--json"];
        json(&stdout_in(&cache, &[&args[..], more].concat()))
    };
    let ratio = |plan: &Value| {
        let end = |name: &str| plan["forecast"]["answer"][name]["tokens_per_s"].as_f64().unwrap();
        end("high") / end("low")
    };
    let (without, with) = (plan(&[]), plan(&["--trace", &trace]));
    assert!(ratio(&with) <= ratio(&without), "{with}\n{without}");
    let rate = |end: &str| with["forecast"]["answer"][end]["hit_rate"].as_f64().unwrap();
    assert!((rate("low") - rate("high")).abs() < 1e-12 && rate("low") < 1.0);
    let other = ["plan", "qwen3-30b-a3b", "--ram", "64G", "--trace", &trace];
    let output = moeflux_in(&cache, &other);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && stderr.contains("this one has 6144 in 48"),
        "{stderr}"
    );
}

#[test]
fn wrong_uses_of_plan_and_doctor_are_explained() {
    let config = config();
    let case = golden("mlx-qwen3_moe-q4-g32-bf16");
    let case = case.to_str().unwrap();
    for (args, words) in [
        (&["plan", &config, "--disk-gbps", "0"][..], "from 0.001 to 100000"),
        (&["plan", &config, "--disk-gbps", "nan"], "from 0.001 to 100000"),
        (&["plan", &config, "--context", "262145"], "give 1 to 262144"),
        (&["plan", &config, "--ram", "lots"], "is not a size"),
        (&["plan", "--ram", "0"], "0 bytes are too few for any model"),
        (&["plan", "--memory", "64"], "for gigabytes, write 64G"),
        (&["plan", &config, "--bits", "7"], "choose one of"),
        (&["plan", case, "--bits", "4"], "leave them out"),
        (&["plan", "--trace", "x"], "required"),
        (&["plan", "qwen3-30b-a3b", "--ram", "9G", "--memory", "9G"], "cannot be used with"),
        (&["plan", "qwen3-30b-a3b", "--cores", "0"], "--cores"),
        (&["doctor", case, "--file-size", "1K"], "4M or more"),
        (&["doctor", case, "--sums", "x.json"], "--deep"),
    ] {
        let output = moeflux(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty() && stderr.contains(words), "{args:?}: {stderr}");
    }
    check_fails(&["plan", "/nonexistent.json"], &["/nonexistent.json"]);
    check_fails(&["plan", "x/model.safetensors"], &["one file of a model: name its folder x"]);
    check_fails(&["doctor", "/nonexistent"], &["/nonexistent"]);
    check_fails(&["doctor", &config], &["is a file", "name its folder"]);
}

#[test]
fn the_plan_uses_the_measurements_of_doctor() {
    let (cache, dir) = (ModelDir::new(), ModelDir::new());
    let dir_name = dir.path().to_str().unwrap();
    // Other tests use the machine.
    let doctor = ["doctor", dir_name, "--file-size", "4M", "--even-if-busy", "--json"];
    let output = moeflux_in(&cache, &doctor);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("writing 4.19 MB"), "{stderr}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it left something");
    let found = json(&String::from_utf8(output.stdout).unwrap());
    assert!(found["system"]["n_cores"].as_u64().unwrap() >= 1, "{found}");
    assert!(found["drive"]["is_temporary_file"].as_bool().unwrap(), "{found}");
    assert_eq!(found["drive"]["n_in_flight"], serde_json::json!([1, 2, 4, 8, 16, 32]));
    for way in found["drive"]["ways"].as_array().unwrap() {
        assert_eq!(way["bytes_per_s"].as_array().unwrap().len(), 6, "{found}");
    }
    let rates = found["drive"]["ways"].as_array().unwrap().iter();
    let best = rates.map(|way| way["rate_bytes_per_s"].as_f64().unwrap()).fold(0.0, f64::max);

    // A model that machines of tests have room for.
    let plan = json(&stdout_in(&cache, &["plan", "qwen3-30b-a3b", "--json"]));
    let drive = &plan["machine"]["drive"];
    assert!((drive["bytes_per_s"].as_f64().unwrap() / best - 1.0).abs() < 1e-9, "{plan}");
    assert!(drive["source"].as_str().unwrap().contains("by `moeflux doctor` just now"), "{plan}");
    assert_eq!(plan["machine"]["memory"]["bytes_per_s"], found["memory_bytes_per_s"]);
    let cpu = &plan["machine"]["cpu"];
    assert_eq!(cpu["pace"], found["cpu_pace"], "{found}");
    assert!(cpu["source"].as_str().unwrap().starts_with("measured by `moeflux doctor`"), "{plan}");
    for name in ["answer_bytes_per_s", "prompt_operations_per_s"] {
        assert!(cpu["pace"][name].as_f64().unwrap() > 1e6, "{cpu}");
    }
    let trials = std::fs::read_dir(cache.path().join("moeflux")).unwrap();
    let left = trials.flatten().filter(|it| it.file_name().to_string_lossy().starts_with("trial-"));
    assert_eq!(left.count(), 0, "a model of a trial was left");
}

/// A busy machine, which only Linux reports.
#[cfg(target_os = "linux")]
mod busy {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{Builder, JoinHandle};

    use super::*;

    /// Threads that keep every core busy for as long as this lives.
    struct BusyCores {
        stop: Arc<AtomicBool>,
        threads: Vec<JoinHandle<()>>,
    }

    impl BusyCores {
        fn start() -> Self {
            let stop = Arc::new(AtomicBool::new(false));
            let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
            let burn = |stop: Arc<AtomicBool>| {
                let burn = move || while !stop.load(Ordering::Relaxed) {};
                Builder::new().name("burner".to_owned()).spawn(burn).unwrap()
            };
            let threads = (0..2 * n_cores).map(|_| burn(Arc::clone(&stop))).collect();
            Self { stop, threads }
        }
    }

    impl Drop for BusyCores {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            for thread in self.threads.drain(..) {
                drop(thread.join());
            }
        }
    }

    #[test]
    fn figures_of_a_busy_machine_are_shown_and_not_kept() {
        let (cache, dir) = (ModelDir::new(), ModelDir::new());
        let file = cache.path().join("moeflux/measured-1.json");
        let source = || {
            let plan = json(&stdout_in(&cache, &["plan", "qwen3-30b-a3b", "--json"]));
            plan["machine"]["memory"]["source"].as_str().unwrap().to_owned()
        };
        let busy_cores = BusyCores::start();
        let page = unbroken(&stdout_in(&cache, &doctor(&dir, &[])));
        assert!(page.contains("too low, so `moeflux plan` does not use them"), "{page}");
        assert!(!file.exists() && source().starts_with("assumed"), "{}", source());
        let kept = unbroken(&stdout_in(&cache, &doctor(&dir, &["--even-if-busy"])));
        assert!(kept.contains("uses them, as --even-if-busy requests"), "{kept}");
        let before = std::fs::read(&file).unwrap();
        stdout_in(&cache, &doctor(&dir, &[]));
        assert_eq!(std::fs::read(&file).unwrap(), before, "earlier figures stay");
        drop(busy_cores);
        assert_eq!(source(), "measured by `moeflux doctor` just now on a busy machine");
        for plan in [&["plan"][..], &["plan", "qwen3-30b-a3b"]] {
            let page = unbroken(&stdout_in(&cache, plan));
            let words =
                "* warning: the figures of memory, the drive are too low, as the machine was";
            assert!(page.contains(words), "{page}");
        }

        let printed = stdout_in(&cache, &["doctor", "--forget"]);
        let lines: Vec<&str> = printed.lines().collect();
        assert!(lines[0].starts_with("forgotten, in ") && lines[0].contains("measured-1.json"));
        assert!(lines[1].starts_with("* memory ") && lines[2].starts_with("* drive "), "{printed}");
        assert!(source().starts_with("assumed"), "{}", source());
        assert!(stdout_in(&cache, &["doctor", "--forget"]).starts_with("nothing to forget: "));
    }
}

#[test]
fn cards_are_planned_by_their_names() {
    let cache = ModelDir::new();
    let plan = |more: &[&str]| {
        let args = ["plan", "qwen3-30b-a3b", "--ram", "32G", "--gpu"];
        unbroken(&stdout_in(&cache, &[&args[..], more].concat()))
    };
    let page = plan(&["rtx 3090"]);
    for words in [
        "GPU RTX 3090: 24G, 936 GB/s, PCIe 4 x16: from the vendor, not measured",
        "a model may use 22.50 GiB; answers read 562 GB/s there, and 22 GB/s",
        "experts: all on the GPU",
        "* all experts are on the GPU: after loading",
        "without the GPU, --memory",
    ] {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    assert!(!page.contains("no cache can guess"), "nothing is read from the drive\n{page}");
    let page = plan(&["3060", "--gpu-gbps", "200"]);
    for words in
        ["GPU from --gpu-gbps", "200 GB/s there", "all experts are on the GPU or in memory"]
    {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    // A part of the card.
    assert!(plan(&["3090", "--gpu-memory", "8G"]).contains("a model may use 8.00 GiB"));
    let args = ["plan", "qwen3.8-2.4t-a95b", "--ram", "64G", "--gpu", "4070"];
    check_fails(&args, &["the RTX 4070 has room for 12.08 GB", "give the GPU more than that"]);
    let output = moeflux_in(&cache, &["plan", "--gpu", "Voodoo"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("known cards: RTX 3060 12G, RTX 3070, "), "{stderr}");
    let output = moeflux_in(&cache, &["plan", "--gpu", "3090", "--ranks", "2"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn unrelated_files_in_a_folder_are_not_one_model() {
    let (cache, dir) = (ModelDir::new(), ModelDir::new());
    for (name, case) in [("a.gguf", "gguf-qwen3moe-k"), ("b.gguf", "gguf-qwen3moe-q8")] {
        std::fs::copy(golden(case).join("model.gguf"), dir.file(name)).unwrap();
        std::fs::File::options()
            .append(true)
            .open(dir.file(name))
            .and_then(|file| file.set_len(5 << 20))
            .unwrap();
    }
    let page = unbroken(&stdout_in(&cache, &doctor(&dir, &[])));
    for words in [
        "read from 2 files with weights, 10.49 MB, no runnable model",
        "* no model here was examined: ",
        "holds 2 GGUF models",
    ] {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    let file = dir.file("a.gguf");
    let args = ["doctor", file.to_str().unwrap(), "--file-size", "4M", "--trials", "none"];
    let page = unbroken(&stdout_in(&cache, &args));
    assert!(page.contains("read from 1 file of the model, 5.24 MB"), "{page}");
    assert!(page.contains("* the model here: "), "{page}");
}

#[test]
fn a_page_of_the_doctor_names_machine_drive_and_model() {
    let (cache, dir) = (ModelDir::new(), ModelDir::of_case("mlx-qwen3_moe-q4-g32-bf16"));
    let page = unbroken(&stdout_in(&cache, &doctor(&dir, &[])));
    for words in [
        "machine cpu ",
        " kernels ",
        "GB/s by reads in flight",
        "page cache, threads",
        "* the model here: ",
        "100 % of its experts",
    ] {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    let model = dir.path().to_str().unwrap();
    assert!(!page.contains("checksums") && !dir.file("moeflux-sums.json").exists());

    dir.edit_json("config.json", |config| config["model_type"] = "phimoe".into());
    let page = unbroken(&stdout_in(&cache, &doctor(&dir, &[])));
    assert!(page.contains("the model here cannot be run: ") && page.contains("phimoe"), "{model}");
}

#[test]
fn damage_of_a_checkpoint_in_place_is_found_by_a_later_deep_look() {
    let (cache, dir) = (ModelDir::new(), ModelDir::of_case("mlx-qwen3_moe-q4-g32-bf16"));
    let args = doctor(&dir, &["--deep"]);
    let first = unbroken(&stdout_in(&cache, &args));
    assert!(first.contains("checksums written to "), "{first}");
    let sums = std::fs::read(dir.file("moeflux-sums.json")).unwrap();
    let second = unbroken(&stdout_in(&cache, &args));
    assert!(second.contains("checksums match those of "), "{second}");
    assert_eq!(std::fs::read(dir.file("moeflux-sums.json")).unwrap(), sums);
    let verified = stdout_of(&["verify", dir.path().to_str().unwrap()]);
    let words = "compares them with the checksums in ";
    assert!(verified.contains(words) && !verified.contains("no checksums"), "{verified}");
    // The model is one still.
    stdout_of(&["inspect", dir.path().to_str().unwrap()]);

    let (header, mut data) = dir.split_safetensors(SHARD);
    let name = "model.layers.1.self_attn.q_proj.scales";
    let at = header[name]["data_offsets"][0].as_u64().unwrap();
    data[usize::try_from(at).unwrap() + 3] ^= 1;
    let whole = std::fs::read(dir.file(SHARD)).unwrap();
    let data_at = whole.len() - data.len();
    let damaged = [&whole[..data_at], &data].concat();
    std::fs::write(dir.file(SHARD), damaged).unwrap();
    let output = moeflux_in(&cache, &args);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let damages: Vec<&str> = stdout.lines().filter(|it| it.starts_with("damaged: ")).collect();
    assert_eq!(damages.len(), 1, "{stdout}");
    let first_byte = data_at as u64 + at;
    for words in [SHARD, name, &format!("bytes {first_byte} to "), "its bytes have changed"] {
        assert!(damages[0].contains(words), "`{words}` is not in {}", damages[0]);
    }
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.ends_with("1 damaged: fetch or copy these files again\n"), "{stderr}");
    let output = moeflux_in(&cache, &doctor(&dir, &["--deep", "--json"]));
    assert_eq!(output.status.code(), Some(1));
    let found = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(found["deep"]["damages"].as_array().unwrap().len(), 1, "{found}");

    // Another file under the name, and a file of sums that is none.
    dir.edit_header(SHARD, |header| header["__metadata__"] = serde_json::json!({"new": "yes"}));
    let output = moeflux_in(&cache, &args);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("damaged: ") && stdout.contains("do not match the checksums"));
    std::fs::write(dir.file("moeflux-sums.json"), &sums[..sums.len() / 2]).unwrap();
    let output = moeflux_in(&cache, &args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("moeflux-sums.json") && stderr.contains("delete it"), "{stderr}");
}

#[test]
fn sums_tell_stacked_experts_apart_and_packs_have_their_own() {
    let (cache, dir) = (ModelDir::new(), ModelDir::synthetic());
    let model = dir.file("model");
    let model = model.to_str().unwrap();
    let sums = dir.file("elsewhere.json");
    let sums = ["--sums", sums.to_str().unwrap(), "--file-size", "4M", "--trials", "none"];
    let deep = [&["doctor", model, "--deep"][..], &sums].concat();
    stdout_in(&cache, &deep);
    assert!(dir.file("elsewhere.json").exists());
    assert!(!dir.file("model/moeflux-sums.json").exists());

    let no_place = ["doctor", model, "--deep", "--sums", "/nonexistent/sums.json"];
    check_fails(
        &[&no_place[..], &["--file-size", "4M", "--trials", "none"]].concat(),
        &["/nonexistent", "--sums FILE"],
    );
    check_fails(&["doctor", cache.path().to_str().unwrap(), "--deep"], &["no *.safetensors"]);

    let packed = dir.file("packed");
    let packed = packed.to_str().unwrap();
    stdout_of(&["pack", model, packed]);
    let deep = ["doctor", packed, "--deep", "--file-size", "4M", "--trials", "none"];
    let page = unbroken(&stdout_in(&cache, &deep));
    assert!(page.contains("match their checksums"), "{page}");
    let experts = dir.file("packed/experts-00000.safetensors");
    let mut bytes = std::fs::read(&experts).unwrap();
    bytes[20_000] ^= 4;
    std::fs::write(&experts, bytes).unwrap();
    let output = moeflux_in(&cache, &deep);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("damaged: layer 0 expert 0: "), "{stdout}");
    assert_eq!(output.status.code(), Some(1));
}
