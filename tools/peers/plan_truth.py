#!/usr/bin/env python3
"""Runs `moeflux doctor`, then `moeflux plan` and `moeflux bench` side by side, and prints a table.

    tools/peers/plan_truth.py MOEFLUX WORKDIR [--gpu NAME|INDEX] [--models q35moe-2g,q3moe-2g]

Models are made by `moeflux synth` in WORKDIR from the configs of the tests, unless they are there;
those of deepseek_v3 whose names end in -fp8 (dsv3-2g-fp8) by `mkfp8.py`.
Each case is planned before it is measured: on the CPU and, with --gpu, on that GPU; with all experts
in memory (of the GPU, or of the host), and streamed with room for a part of them, there with and
without a trace of the same kind of tokens. No network is used.
"""

import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
REPO = os.path.join(HERE, "..", "..")
CONFIGS = os.path.join(REPO, "crates", "moeflux", "tests", "data", "configs")

MIB = 1 << 20

# Layers of models in FP8: with their bytes per weight, dsv3-2g has 1.8 GB then.
FP8_LAYERS = "5"

# Tokens of prompts; plan has figures of these.
PROMPTS = [512, 2048]

# Of the experts, those that have room where they are streamed.
STREAMED_SHARE = 0.4

# Of the experts, those that a GPU has room for where memory has the rest.
NEAR_SHARE = 0.25


def run(args):
    """What a command prints, or its error."""
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def made(moeflux, work, name):
    """The folder of a model; it is made if it is not there."""
    folder = os.path.join(work, name)
    if os.path.exists(os.path.join(folder, "config.json")):
        return folder
    config = os.path.join(CONFIGS, name.removesuffix("-fp8") + ".json")
    if name.endswith("-fp8"):
        run([sys.executable, os.path.join(HERE, "mkfp8.py"), config, folder, FP8_LAYERS])
    else:
        run([moeflux, "synth", "--config", config, "--bits", "4", "--group", "64", "--out", folder])
    return folder


def cases(moeflux, folder, gpu):
    """Name, options of plan and of bench, and whether experts are streamed."""
    plan = json.loads(run([moeflux, "plan", folder, "--gpu-memory", "0", "--memory", "1T", "--json"]))
    experts = plan["n_experts"] * plan["slot_bytes"]
    fixed = plan["fixed_bytes"]
    part = f"{int((fixed + STREAMED_SHARE * experts) / MIB)}M"
    on_cpu = ["--backend", "cpu"]
    yield "CPU, resident", ["--gpu-memory", "0"], on_cpu, False
    yield "CPU, streamed", ["--gpu-memory", "0", "--memory", part], on_cpu + ["--memory", part], True
    if gpu is None:
        return
    card = ["--gpu", gpu]
    whole = f"{int((1.3 * fixed + experts) / MIB) + 1024}M"
    near = f"{int((1.3 * fixed + NEAR_SHARE * experts) / MIB) + 256}M"
    few = f"{int(1.3 * fixed / MIB) + 256}M"
    yield "GPU, resident", ["--gpu-memory", whole], card + ["--gpu-memory", whole], False
    yield "GPU and memory", ["--gpu-memory", near], card + ["--gpu-memory", near], False
    options = ["--gpu-memory", few, "--memory", part]
    yield "GPU, streamed", options, card + options, True


def expected(moeflux, folder, options, trace=None):
    """The plan's ranges of an answer and of prompts."""
    more = ["--trace", trace] if trace else []
    plan = json.loads(run([moeflux, "plan", folder, "--json"] + options + more))
    forecast = plan["forecast"]
    answer = [forecast["answer"][end]["tokens_per_s"] for end in ("low", "high")]
    prompts = {
        it["n_tokens"]: ([it["tokens_per_s_low"], it["tokens_per_s_high"]], it["drive_bytes"])
        for it in forecast["prompts"]
    }
    return answer, prompts


def measured(moeflux, folder, options, prompt, gen, trace=None):
    """bench's JSON."""
    args = [moeflux, "bench", "--model", folder, "--json", "--repeat", "3"] + options
    args += ["--prompt-tokens", str(prompt), "--gen-tokens", str(gen)]
    if trace:
        args += ["--trace", trace]
    return json.loads(run(args))


def row(case, what, bounds, rate, runs):
    low, high = bounds
    spread = f"[{min(runs):.3g} .. {max(runs):.3g}]"
    verdict = "yes" if low <= rate <= high else "**no**"
    print(
        f"| {case} | {what} | {low:.3g} to {high:.3g} | {high / low:.2f} | {rate:.3g} {spread} | "
        f"{verdict} |",
        flush=True,
    )
    return low <= rate <= high


def compare(moeflux, work, name, args, reads):
    folder = made(moeflux, work, name)
    held = []
    for case, plan_options, bench_options, is_streamed in cases(moeflux, folder, args.gpu):
        if args.only not in case:
            continue
        case = f"{name}: {case}"
        answer, prompts = expected(moeflux, folder, plan_options)
        trace = os.path.join(work, "routes.trace") if is_streamed else None
        gen = args.gen if is_streamed else 64
        found = measured(moeflux, folder, bench_options, 0, gen, trace)
        rate, runs = found["decode_tokens_per_s"], found["decode_runs"]
        held.append(row(case, f"answer of {gen}", answer, rate, runs))
        if trace:
            narrow, _ = expected(moeflux, folder, plan_options, trace)
            held.append(row(case, f"answer of {gen}, traced", narrow, rate, runs))
        for n_tokens in PROMPTS:
            found = measured(moeflux, folder, bench_options, n_tokens, 0)
            rate, runs = found["prefill_tokens_per_s"], found["prefill_runs"]
            bounds, n_bytes = prompts[n_tokens]
            held.append(row(case, f"prompt of {n_tokens}", bounds, rate, runs))
            if is_streamed:
                read = found["prefill_streaming"]
                reads.append(
                    f"{case}, prompt of {n_tokens}: {n_bytes / 1e9:.2f} GB planned, "
                    f"{read['expert_bytes_read'] / len(runs) / 1e9:.2f} read, the drive beside "
                    f"it {read['device_gb_per_s']:.2f} GB/s"
                )
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("moeflux", help="the program")
    parser.add_argument("work", help="a folder for models, some GB")
    parser.add_argument("--gpu", help="NAME or INDEX of `moeflux doctor`, to measure it, too")
    parser.add_argument("--models", default="q35moe-2g", help="names of configs, by commas")
    parser.add_argument("--only", default="", help="cases with this in their names, as GPU")
    parser.add_argument("--gen", type=int, default=64, help="tokens of answers that stream")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    names = args.models.split(",")
    first = made(args.moeflux, args.work, names[0])
    doctor = [args.moeflux, "doctor", first, "--json"]
    found = json.loads(run(doctor + (["--gpu", args.gpu] if args.gpu else [])))
    system = found["system"]
    print(f"{system['cpu']}, {system['n_cores']} cores, {system['kernels']}; "
          f"{time.strftime('%Y-%m-%d %H:%M')}")
    best = max(way["rate_bytes_per_s"] for way in found["drive"]["ways"])
    print(f"memory {found['memory_bytes_per_s'] / 1e9:.1f} GB/s, drive {best / 1e9:.2f} GB/s")
    for name in ("cpu_pace", "gpu_pace"):
        if found[name]:
            print(name, json.dumps({key: float(f"{it:.4g}") for key, it in found[name].items()}))
    for warning in found["warnings"]:
        print("warning:", warning)
    print("\n| case | what | plan, tokens/s | high / low | bench, tokens/s | held |")
    print("|---|---|---|---|---|---|")
    held, reads = [], []
    for name in names:
        held += compare(args.moeflux, args.work, name, args, reads)
    print("\n" + "\n".join(reads))
    print(f"\n{sum(held)} of {len(held)} within the plan's range")
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
