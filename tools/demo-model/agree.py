#!/usr/bin/env python3
"""agree.py [--moeflux BINARY] [--tokens N] [--golden]: logits of the exported checkpoint by four programs, on a held-out page.

transformers (f32, on the dequantised values) is what the others are compared with: mlx-lm (activations f32) and moeflux's two backends.
Prints a markdown table; exit 1 if one is beyond the f32 profile of tools/oracle/compare.py. Needs ORACLE_WORK (tools/oracle/setup.sh).
--golden also writes golden/demo-tokens.json, the first 256 tokens, and golden/demo-logits.npy, transformers' logits of every 32nd, for `cargo test`.
"""
import argparse, json, os, shutil, subprocess, sys, tempfile
from pathlib import Path
ROOT = Path(__file__).resolve().parents[2]
ORACLE, MODEL = ROOT / "tools" / "oracle", ROOT / "crates" / "moeflux-demo" / "model"
sys.path.insert(0, str(ORACLE))
import oraclelib

GOLDEN, EVERY = 256, 32                                # --golden keeps each EVERYth row of the logits of GOLDEN tokens, 8,192 each: 262 kB
BY_MLX = """
import sys, numpy
sys.path.insert(0, sys.argv[1])
import second_opinion
numpy.save(sys.argv[3], second_opinion.by_mlx(sys.argv[2])[0])
"""


def passage(n):
    """The first held-out page of at least n tokens, cut to n, after the end of the page before."""
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    end = "<|endoftext|>"
    for page in Path(__file__).with_name("heldout.txt").read_text(encoding="utf-8").split(end):
        ids = tok.encode(end + page, add_special_tokens=False).ids
        if len(ids) >= n:
            return ids[:n]
    sys.exit(f"error: no held-out page has {n} tokens")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--moeflux", default=str(ROOT / "target" / "release" / "moeflux"))
    ap.add_argument("--tokens", type=int, default=512)
    ap.add_argument("--golden", action="store_true")
    ap.add_argument("--work", help="instead of ORACLE_WORK")
    a = ap.parse_args()
    oraclelib.enter("ve-torch", "torch")
    import numpy as np
    import compare, second_opinion
    tokens = passage(a.tokens)
    with tempfile.TemporaryDirectory() as tmp:
        case = Path(tmp)
        for name in ("model.safetensors", "config.json"):
            shutil.copy(MODEL / name, case)
        (case / "tokens.json").write_text(json.dumps(tokens))
        mlx = str(oraclelib.work_dir() / "ve-mlx" / "bin" / "python")
        subprocess.run([mlx, "-c", BY_MLX, str(ORACLE), tmp, str(case / "mlx-lm.npy")], check=True)
        for backend in ("reference", "cpu"):
            subprocess.run([a.moeflux, "logits", "--model", str(MODEL), "--tokens", ",".join(map(str, tokens)),
                            "--out", str(case / f"moeflux {backend}.npy"), "--backend", backend, "--precise"], check=True)
        right, margin = second_opinion.by_transformers(case)
        found = {f.stem: oraclelib.compare(np.load(f), right) for f in sorted(case.glob("*.npy"))}
    print(f"{len(tokens)} tokens, largest logit {np.abs(right).max():.1f}, closest routing decision {margin:.1e} of the scores' spread\n")
    print("| against transformers | max abs | NMSE | top-1 | top-20 | KL |\n|---|---|---|---|---|---|")
    for name, m in found.items():
        print(f"| {name} | {m['max_abs']:.1e} | {m['nmse']:.1e} | {100 * m['top1']:.1f} % | {100 * m['top20']:.2f} % | {m['kl']:.1e} |")
    bad = {name: why for name, m in found.items() if (why := compare.check(m, compare.PROFILES["f32"]))}
    if a.golden and not bad:
        (ROOT / "golden" / "demo-tokens.json").write_text(json.dumps(tokens[:GOLDEN]) + "\n")
        np.save(ROOT / "golden" / "demo-logits.npy", right[EVERY - 1:GOLDEN:EVERY])
    for name, why in bad.items():
        print(f"FAIL {name}: {'; '.join(why)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
