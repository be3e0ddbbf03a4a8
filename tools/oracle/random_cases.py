#!/usr/bin/env python3
"""random_cases.py --n 10 --seed S --moeflux BIN --out DIR [--work WORKDIR]: random models of random families against moeflux.

Each case gets a random family, shape and weight format, is made by make_case.py or make_mlx_case.py, and run as
  BIN logits --model CASE --tokens 1,2,3 --out F.npy --backend reference|cpu
A markdown table goes to the standard output and to DIR/table.md; margin: see make_case.py, below 0.01 a rounding error may flip an expert. Exit 1 if a backend is outside its profile or fails.
Case number i of seed S is the same whatever --n; DIR/CASE/command.txt has the line that makes it again.
--cases CASE...: no random cases, run these (golden/*/). Without --moeflux the cases are only made.
"""
import argparse, json, os, random, shlex, subprocess, sys, tempfile, time
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import compare, families, oraclelib

HERE = Path(__file__).resolve().parent
PUBLISHED = [f for f in families.FAMILIES if f != "gpt_oss"]
MLX = [f for f in PUBLISHED if f != "qwen3_5_moe_text"]
SIGMOID = (*families.MLA, "glm4_moe")
HEAD = "| case | family | format | tokens | margin | backend | max abs | NMSE | top-1 | top-20 | KL | seconds | result |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"


class Draw(random.Random):
    def some(self, p):
        return self.random() < p

    def multiple(self, of, low, high):
        """A multiple of `of` between low and high, or the first from low."""
        first = -(-low // of)
        return of * self.randint(first, max(first, high // of))


def router(r, family, experts):
    """(topk, --set list). In the sigmoid families top-k 1 with normalising is undecided (README.md) and is not drawn."""
    if family not in SIGMOID:
        sets = [] if family.startswith("qwen3_5") else [f"norm_topk_prob={json.dumps(r.some(0.6))}"]
        return r.randint(1, min(experts - 1, 12)), sets
    groups = r.choice([g for g in (1, 1, 2, 3, 4) if experts % g == 0 and experts // g >= 2])
    keep = r.randint(1, groups - 1) if groups > 1 else 1
    per = experts // groups
    top = min(12, keep * per - (groups == 1))
    sets = [f"n_group={groups}", f"topk_group={keep}", f"norm_topk_prob={json.dumps(r.some(0.8))}", f"n_shared_experts={r.randint(1, 2)}",
            f"first_k_dense_replace={r.randint(0, 1)}", f"routed_scaling_factor={r.choice([1.0, 2.5, 2.827])}"]
    return r.randint(2, top), sets


def mixer(r, family, layers, step, group):
    """--set list of the token mixers. step: what dimensions are multiples of; group: what a quantised kv_b_proj needs."""
    if family in families.MLA:
        rope, rank = r.choice([8, 16, 32]), r.multiple(group, group, max(group, 96))
        sets = [f"kv_lora_rank={rank}", f"qk_rope_head_dim={rope}", f"qk_nope_head_dim={r.multiple(step, step, 64)}", f"v_head_dim={r.multiple(step, step, 64)}",
                "q_lora_rank=null" if r.some(0.3) else f"q_lora_rank={r.multiple(step, step, 96)}"]
        if family != "deepseek_v3":
            sets += [f"rope_scaling.original_max_position_embeddings={r.choice([16, 64, 4096])}", f"rope_scaling.factor={r.choice([2.0, 8.0, 40.0])}",
                     f"rope_scaling.mscale_all_dim={r.choice([1.0, 0.7])}"]
        return sets
    if family in families.HYBRID:
        keys = r.randint(1, 3)
        return [f"full_attention_interval={r.randint(2, min(4, layers))}", f"linear_num_key_heads={keys}", f"linear_num_value_heads={keys * r.randint(1, 3)}",
                f"linear_key_head_dim={r.choice([16, 24, 32, 64])}", f"linear_value_head_dim={r.choice([16, 24, 32, 64])}",
                f"linear_conv_kernel_dim={r.choice([2, 3, 4, 4, 4])}", f"shared_expert_intermediate_size={r.multiple(step, step, 96)}"]
    if family == "glm4_moe":
        return [f"attention_bias={json.dumps(r.some(0.5))}", f"use_qk_norm={json.dumps(r.some(0.5))}"]
    return []


def dense_layers(r, family, layers):
    """Some layers of qwen3_moe and qwen3_next without experts, never all."""
    if family not in ("qwen3_moe", "qwen3_next") or r.some(0.6):
        return []
    if r.some(0.5) and layers > 2:
        return ["decoder_sparse_step=2"]
    return [f"mlp_only_layers={json.dumps(sorted(r.sample(range(layers), r.randint(1, layers - 1))))}"]


def draw(seed, number):
    """(family, format, script, flags) of case `number`."""
    r = Draw(f"{seed}/{number}")
    mlx = r.some(0.5)
    family = r.choice(MLX if mlx else PUBLISHED)
    layers = r.randint(2, 5)
    fmt, flags, sets, step, hidden, group = mlx_format(r, family) if mlx else published_format(r, family)
    kv = r.randint(1, 3)
    experts = r.randint(4, 20)
    topk, more = router(r, family, experts)
    sets += more + mixer(r, family, layers, step, group) + dense_layers(r, family, layers)
    if family not in SIGMOID and r.some(0.3):
        sets.append("tie_word_embeddings=true")
    if family == "qwen3_moe" and not mlx and r.some(0.3):     # mlx-lm ignores rope_scaling here
        sets.append('rope_scaling={"rope_type":"yarn","factor":%s,"original_max_position_embeddings":%d}' % (r.choice([2.0, 4.0]), r.choice([16, 64])))
    sets.append(f"rms_norm_eps={r.choice([1e-6, 1e-5, 1e-3])}")
    tokens = r.randint(130, 180) if r.some(0.25) else r.randint(3, 60)
    geometry = dict(layers=layers, hidden=hidden, heads=kv * r.randint(1, 4), kv_heads=kv, head_dim=r.choice([16, 24, 32, 64]), experts=experts, topk=topk,
                    ffn=r.multiple(step, step, max(step, 64)), dense_ffn=r.multiple(step, step, 160), vocab=r.randint(100, 400))
    flags += ["--family", family, "--seed", str(r.randint(1, 10 ** 6)), "--tokens", str(tokens)]
    for k, v in geometry.items():
        flags += ["--" + k.replace("_", "-"), str(v)]
    for s in sets:
        flags += ["--set", s]
    return family, fmt, "make_mlx_case.py" if mlx else "make_case.py", flags


def published_format(r, family):
    dtype = r.choice(["f32", "f16", "bf16", "bf16"] + ["fp8", "fp8", "fp8"] * (family in families.MLA))
    flags, name = ["--dtype", dtype], [dtype]
    if family.startswith("qwen3_5"):
        name.append(r.choice(["fused", "per-expert"]))
        flags += ["--expert-layout", name[-1]]
    if family in families.HYBRID and r.some(0.4):
        flags += ["--a-log", "bf16"]
    shards = r.randint(1, 3)
    if shards > 1:
        flags += ["--shards", str(shards)]
        name.append(f"{shards} files")
    if r.some(0.4):
        flags.append("--extras")
        name.append("extras")
    if family not in ("qwen3_5_moe", "kimi_k2") and dtype != "fp8" and r.some(0.25):
        flags.append("--resaved")
        name.append("resaved")
    return " ".join(name), flags, [], 8, r.multiple(8, 136, 200) if dtype == "fp8" else r.multiple(8, 40, 128), 8


def mlx_format(r, family):
    bits, group, dtype = r.choice([2, 3, 4, 4, 5, 6, 8]), r.choice([32, 64, 64, 128]), r.choice(["bf16", "bf16", "f16", "f32"])
    flags, name = ["--group", str(group), "--dtype", dtype], []
    if family in families.MLA and r.some(0.4):
        flags += ["--bits", str(bits), "--plain-kv-b"]
        name = [f"q{bits} g{group} {dtype}", "plain kv_b"]
    elif r.some(0.15):
        recipe = r.choice(["mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"])
        flags += ["--recipe", recipe]
        name = [f"{recipe} g{group} {dtype}"]
    else:
        flags += ["--bits", str(bits)]
        name = [f"q{bits} g{group} {dtype}"]
    shards = r.randint(1, 2)
    if shards > 1:
        flags += ["--shards", "2"]
        name.append("2 files")
    if family == "qwen3_5_moe" and r.some(0.5):
        flags.append("--extras")
        name.append("extras")
    router = 64 if "qwen" in family and "--recipe" not in flags else 32      # the 8-bit router has groups of 64
    hidden = r.multiple(max(group, router), max(group, router), 128)
    step = group if group < 128 or r.some(0.5) else 64                       # dimensions the group does not divide stay unquantised
    return ", ".join(name), flags, [], step, hidden, group


def make(out, number, seed, work):
    """(case folder, family, format) or the error line."""
    family, fmt, script, flags = draw(seed, number)
    case = out / f"{seed}-{number:02d}-{family}"
    cmd = [sys.executable, str(HERE / script), *flags, "--out", str(case)]
    env = {k: v for k, v in os.environ.items() if k != "ORACLE_ENTERED"} | {"ORACLE_WORK": str(work), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(cmd, env=env, capture_output=True, text=True)
    case.mkdir(parents=True, exist_ok=True)
    (case / "command.txt").write_text(shlex.join(["python3", script, *flags]) + "\n")
    if done.returncode:
        (case / "error.txt").write_text(done.stderr)
        return case, family, fmt, (done.stderr.strip().splitlines() or ["no message"])[-1]
    return case, family, fmt, None


def existing(path):
    case = Path(path)
    info, c = json.loads((case / "case.json").read_text()), json.loads((case / "config.json").read_text())
    bits = info.get("bits")
    fmt = info.get("weights", "") if bits is None else f"{'q' if isinstance(bits, int) else ''}{bits} g{info['group']} {info['dtype']}"
    return case, c["model_type"], fmt, None


def test(a, case, backend):
    """(measures or None, seconds, verdict)."""
    tokens = ",".join(map(str, json.loads((case / "tokens.json").read_text())))
    got = a.out / f"{case.name}.{backend}.npy"
    got.unlink(missing_ok=True)
    cmd = [a.moeflux, "logits", "--model", str(case), "--tokens", tokens, "--out", str(got), "--backend", backend, "--precise"]
    start = time.monotonic()
    try:
        done = subprocess.run(cmd, capture_output=True, text=True, timeout=a.timeout)
    except subprocess.TimeoutExpired:
        return None, a.timeout, "FAIL: timeout"
    seconds = time.monotonic() - start
    if done.returncode:
        return None, seconds, f"FAIL: exit {done.returncode}: " + (done.stderr.strip().splitlines() or ["no message"])[-1][:160].replace("|", "/")
    try:
        m = oraclelib.compare_files(got, case / "logits.npy")
    except (OSError, ValueError, SyntaxError) as e:
        return None, seconds, f"FAIL: {e}"
    bad = compare.check(m, compare.PROFILES[a.profiles.get(backend, "f32")])
    return m, seconds, "FAIL: " + "; ".join(bad) if bad else "ok"


def row(case, family, fmt, tokens, margin, backend, m, seconds, verdict):
    cells = [f"{m['max_abs']:.1e}", f"{m['nmse']:.1e}", f"{100 * m['top1']:.1f} %", f"{100 * m['top20']:.1f} %", f"{m['kl']:.1e}"] if m else ["-"] * 5
    return "| " + " | ".join([case.name, family, fmt, str(tokens), str(margin), backend, *cells, f"{seconds:.1f}", verdict]) + " |"


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--n", type=int, default=10)
    ap.add_argument("--first", type=int, default=0, help="number of the first case")
    ap.add_argument("--seed", default="1")
    ap.add_argument("--moeflux", help="the program under test")
    ap.add_argument("--out", type=Path, help="where cases, results and table.md go")
    ap.add_argument("--work", help="work directory of setup.sh (or set ORACLE_WORK)")
    ap.add_argument("--backends", default="reference,cpu")
    ap.add_argument("--profile", action="append", default=[], metavar="BACKEND=NAME", help="profile of compare.py for a backend (default f32)")
    ap.add_argument("--timeout", type=float, default=300, help="seconds per run")
    ap.add_argument("--cases", nargs="+", help="run these instead of making random ones")
    a = ap.parse_args()
    if not a.cases and not a.out:
        ap.error("--out or --cases is needed")
    if a.cases and not a.moeflux:
        ap.error("--cases needs --moeflux")
    if a.cases and not a.out:
        a.out = Path(tempfile.mkdtemp(prefix="random_cases."))
    a.profiles = dict(p.split("=") for p in a.profile)
    return a


def main():
    a, bad, lines, runs = arguments(), 0, [], 0

    def say(line):
        lines.append(line)
        print(line, flush=True)

    a.out.mkdir(parents=True, exist_ok=True)
    say(HEAD)
    todo = map(existing, a.cases) if a.cases else (make(a.out, i, a.seed, oraclelib.work_dir()) for i in range(a.first, a.first + a.n))
    for case, family, fmt, error in todo:
        if error:
            bad += 1
            say(row(case, family, fmt, "-", "-", "-", None, 0.0, "not made: " + error[:160].replace("|", "/")))
            continue
        tokens = len(json.loads((case / "tokens.json").read_text()))
        margin = json.loads((case / "case.json").read_text())["router_margin"]
        for backend in a.backends.split(",") if a.moeflux else []:
            m, seconds, verdict = test(a, case, backend)
            bad, runs = bad + (verdict != "ok"), runs + 1
            say(row(case, family, fmt, tokens, margin, backend, m, seconds, verdict))
        if not a.moeflux:
            say(row(case, family, fmt, tokens, margin, "-", None, 0.0, "made"))
    say(f"\n{runs} runs, {bad} bad")
    (a.out / "table.md").write_text("\n".join(lines) + "\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
