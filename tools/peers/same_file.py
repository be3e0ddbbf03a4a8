#!/usr/bin/env python3
"""same_file.py --moeflux BIN --model FILE.gguf [--limit SIZE] [--threads 2] [--rounds 3]: both engines on one file.

Runs `moeflux bench` and llama.cpp in turn (A B A B ...) and prints medians, spread and the ratio moeflux / llama.cpp for prompt
and answer. llama.cpp is that of the Python package llama-cpp-python, so nothing has to be built but that; only llama_decode is
timed. It runs with repacked weights and without, and the faster is taken, separately for prompt and answer. With --limit both run
in a fresh memory cgroup with the file's page cache dropped, and moeflux gets --memory of the limit. Needs root for --limit. Run it
on an otherwise idle machine.
"""
import argparse, json, statistics as st, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
from limited import run, size


def child(model, repack, threads, n_prompt, n_answer):
    """Prints the rates of one run of llama.cpp."""
    import llama_cpp as lib
    silence = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(silence, None)
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.use_extra_bufts = repack
    loaded = lib.llama_model_load_from_file(model.encode(), params)
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(loaded))
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n_prompt + n_answer + 8, 512, 512
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(loaded, params)

    def decode(tokens):
        array = (lib.llama_token * len(tokens))(*tokens)
        began = time.perf_counter()
        assert lib.llama_decode(context, lib.llama_batch_get_one(array, len(tokens))) == 0
        return time.perf_counter() - began

    tokens = [(7919 * i + 13) % n_vocab for i in range(n_prompt + n_answer)]
    decode(tokens[:1])                                  # as `bench`, which warms up
    prompt = n_prompt / decode(tokens[:n_prompt]) if n_prompt else None
    answer = n_answer / sum(decode([token]) for token in tokens[n_prompt:]) if n_answer else None
    print(json.dumps({"prompt": prompt, "answer": answer}))


def once(a, cmd):
    if a.limit:
        r, _ = run(cmd, size(a.limit), [a.model], capture=True)
    else:
        r = subprocess.run(cmd, text=True, capture_output=True)
    if r.returncode:
        sys.exit(f"{' '.join(cmd)}: {r.stderr.strip().splitlines()[-1:] or 'killed'}")
    return json.loads(r.stdout.strip().splitlines()[-1])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--moeflux"), ap.add_argument("--model", required=True)
    ap.add_argument("--limit")
    ap.add_argument("--threads", type=int, default=2), ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--prompt-tokens", type=int, default=512), ap.add_argument("--gen-tokens", type=int, default=48)
    ap.add_argument("--repack", type=int, help=argparse.SUPPRESS)
    a = ap.parse_args()
    if a.repack is not None:
        return child(a.model, bool(a.repack), a.threads, a.prompt_tokens, a.gen_tokens)
    lengths = ["--prompt-tokens", str(a.prompt_tokens), "--gen-tokens", str(a.gen_tokens)]
    ours = [a.moeflux, "bench", "--model", a.model, "--backend", "cpu", "--threads", str(a.threads), "--repeat", "1", "--json"]
    ours += lengths + (["--memory", a.limit] if a.limit else [])
    rates = {"moeflux": [], 0: [], 1: []}
    for _ in range(a.rounds):
        found = once(a, ours)
        rates["moeflux"].append({"prompt": found["prefill_tokens_per_s"], "answer": found["decode_tokens_per_s"]})
        # Repacked weights are a copy in memory, which cannot be limited.
        for repack in (0,) if a.limit else (0, 1):
            theirs = [sys.executable, __file__, "--model", a.model, "--repack", str(repack), "--threads", str(a.threads)]
            rates[repack].append(once(a, theirs + lengths))
    for part in ("prompt", "answer"):
        runs = {name: [it[part] for it in found] for name, found in rates.items() if found}
        if None in runs["moeflux"]:
            continue
        best = max((0, 1), key=lambda repack: st.median(runs.get(repack, [0])))
        ratios = [x / y for x, y in zip(runs["moeflux"], runs[best])]
        text = {name: f"{st.median(it):.2f} ({min(it):.2f} to {max(it):.2f})" for name, it in runs.items()}
        print(f"{part}: moeflux {text['moeflux']}, llama.cpp {text[best]} tokens/s{' repacked' * best}; "
              f"ratio {st.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), {a.rounds} rounds")


if __name__ == "__main__":
    main()
