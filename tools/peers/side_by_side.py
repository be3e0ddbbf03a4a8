#!/usr/bin/env python3
"""side_by_side.py --work WORKDIR --moeflux BIN --model DIR --gguf FILE [--gguf FILE2 ...] [--limit SIZE] ...

Runs `moeflux bench` and llama-bench in turn (A B A B ...), each in its own fresh memory cgroup of --limit with the model's page
cache dropped, and prints medians, spread and the ratio moeflux / llama.cpp for prompt and generation.

llama.cpp gets its best setting. Without --limit every --gguf (give both Q4_0 and Q4_K) is tried with --repack 0 and 1, and the
fastest is taken separately for prompt and for generation. With --limit it must run --repack 0 (repacking copies the weights to
memory, which cannot be limited) and every --gguf is tried; the read-ahead of its disk is printed, as mmap streaming lives on it: the
peer's best known setting is 128 KB (see README.md: loop_readahead.sh). A --limit that holds the whole file is treated as no limit.
--context-tokens C puts C tokens into each session first, untimed: llama-bench -d C, so that a decode step far into a text is measured.
--llama-build build-avx2 with --arg=--isa --arg=avx2 compares without anything newer than AVX2 (build_llama.sh WORKDIR avx2).
Model and GGUF must have the same geometry (README.md: mkmoe.py). Needs root; run on an otherwise idle machine.
"""
import argparse, json, os, statistics as st, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
from limited import Disk, run, size


def llama(a, gguf, repack, parts):
    """{"prompt": [t/s], "gen": [t/s]}, measurements; one process per part so that neither warms the other."""
    exe, out, infos = str(Path(a.work) / "llama" / a.llama_build / "bin" / "llama-bench"), {}, {}
    for part in parts:
        n = {"prompt": a.prompt_tokens, "gen": a.gen_tokens}[part]
        if n == 0:
            continue
        tokens = {"prompt": ["-p", str(n), "-n", "0"], "gen": ["-p", "0", "-n", str(n)]}[part]
        cmd = [exe, "-m", gguf, "-t", str(a.threads), "-o", "jsonl", "-r", str(a.repeat), "--repack", str(repack), "-d", str(a.context_tokens), *tokens]
        r, infos[part] = run(cmd, size(a.limit), [gguf], capture=True)
        if r.returncode:
            return None, dict(infos[part], error=(r.stderr or "").strip().splitlines()[-1:] or "killed")
        out[part] = json.loads(r.stdout.strip().splitlines()[-1])["samples_ts"]
    return out, infos


def moeflux(a):
    """The object of one `moeflux bench`, measurements."""
    cmd = [a.moeflux, "bench", "--model", a.model, "--prompt-tokens", str(a.prompt_tokens), "--gen-tokens", str(a.gen_tokens),
           "--context-tokens", str(a.context_tokens), "--repeat", str(a.repeat), "--threads", str(a.threads), "--json", *a.arg]
    if a.memory:
        cmd += ["--memory", a.memory]
    r, info = run(cmd, size(a.limit), [a.model], capture=True)
    if r.returncode:
        sys.exit(f"error: {' '.join(cmd)}\n{(r.stderr or '')[-1500:]}\n{info}")
    return json.loads(r.stdout), info


def summary(xs):
    return f"{st.median(xs):8.2f}  [{min(xs):.2f} .. {max(xs):.2f}]" if xs else "       -"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", required=True, help="WORKDIR of build_llama.sh")
    ap.add_argument("--moeflux", required=True)
    ap.add_argument("--model", required=True)
    ap.add_argument("--gguf", action="append", required=True)
    ap.add_argument("--limit", default="0", help="cgroup limit for both, for example 1024M; 0: none")
    ap.add_argument("--memory", help="--memory for moeflux bench; default: left to moeflux without a limit, 85 %% of the limit with one")
    ap.add_argument("--prompt-tokens", type=int, default=512)
    ap.add_argument("--gen-tokens", type=int, default=64)
    ap.add_argument("--context-tokens", type=int, default=0, help="tokens in the session before each run, not timed")
    ap.add_argument("--rounds", type=int, default=4)
    ap.add_argument("--repeat", type=int, default=1, help="runs within one process, after one that does not count")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--arg", action="append", default=[], help="further argument for moeflux bench")
    ap.add_argument("--llama-build", default="build", help="folder below WORKDIR/llama")
    ap.add_argument("--json", help="write all samples to this file")
    a = ap.parse_args()
    limit = size(a.limit)
    biggest = max(os.path.getsize(g) for g in a.gguf)
    streaming = 0 < limit < biggest * 1.1
    repacks = [0] if streaming else [0, 1]
    if limit and not a.memory:
        a.memory = f"{int(limit * 0.85) >> 20}M"
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: load average {load:.1f}; a busy machine ruins llama.cpp's spinning threads (65.9 fell to 5.1 t/s)")
    print(f"limit {a.limit}, {'streaming' if streaming else 'resident'}, {a.threads} threads, prompt {a.prompt_tokens}, generate {a.gen_tokens}, after {a.context_tokens} tokens of context")
    for g in a.gguf:
        print(f"  {Path(g).name}: {os.path.getsize(g) / 1e6:.0f} MB, read-ahead of its disk {Disk(g).read_ahead_kb()} KB")
    print(f"  {Path(a.model).name}: read-ahead of its disk {Disk(a.model).read_ahead_kb()} KB")

    # 1. the peer's best setting
    best = {}
    for g in a.gguf:
        for rp in repacks:
            got, info = llama(a, g, rp, ("prompt", "gen"))
            if got is None:
                print(f"  llama.cpp {Path(g).name} repack {rp}: failed {info}")
                continue
            for part, xs in got.items():
                v = st.median(xs)
                print(f"  llama.cpp {Path(g).name} repack {rp} {part}: {v:.2f} t/s")
                if part not in best or v > best[part][0]:
                    best[part] = (v, g, rp)
    if not best:
        sys.exit("error: llama.cpp failed with every setting")
    # 2. in turn
    ours, theirs = {"prompt": [], "gen": []}, {"prompt": [], "gen": []}
    ours_info, theirs_info, last = [], [], {}
    runs = {"prompt": "prefill_runs", "gen": "decode_runs"}
    for i in range(a.rounds):
        last, info = moeflux(a)
        ours_info.append(info)
        for part in best:
            ours[part] += last[runs[part]]
        for part, (_, g, rp) in best.items():
            got, info = llama(a, g, rp, (part,))
            if got:
                theirs[part] += got[part]
                theirs_info.append(info[part])
        print(f"  round {i + 1}: " + "  ".join(f"{p}: moeflux {ours[p][-1] if ours[p] else 0:.2f} llama.cpp {theirs[p][-1] if theirs[p] else 0:.2f}" for p in best), flush=True)
    print(f"{'':8s} {'moeflux t/s':>30s}   {'llama.cpp t/s':>30s}   ratio   peer setting")
    for part, (_, g, rp) in best.items():
        if ours[part] and theirs[part]:
            print(f"{part:8s} {summary(ours[part]):>30s}   {summary(theirs[part]):>30s}   {st.median(ours[part]) / st.median(theirs[part]):5.2f}   {Path(g).name} --repack {rp}")
    for who, infos in (("moeflux", ours_info), ("llama.cpp", theirs_info)):
        print(f"{who:10s} disk MB {[i['disk_mb'] for i in infos]}  MB/s {[i['disk_mb_per_s'] for i in infos]}  peak MB {[i['peak_mb'] for i in infos]}")
    show = ("expert_bytes_read", "expert_hits", "expert_misses", "read_gb_per_s", "device_gb_per_s", "read_wait_s", "rss_bytes_peak")
    print("moeflux, last run: " + "  ".join(f"{k} {last[k]}" for k in show if k in last))
    if a.json:
        Path(a.json).write_text(json.dumps(dict(args=vars(a), best={k: v[1:] for k, v in best.items()}, moeflux=ours, llama=theirs, moeflux_runs=ours_info, llama_runs=theirs_info, last=last), indent=1) + "\n")


if __name__ == "__main__":
    main()
