#!/usr/bin/env python3
"""second_opinion.py CASE... [--work WORKDIR]: recompute a case with another implementation and compare.

A case of make_case.py (made by transformers) is run by mlx-lm in float32; a case of make_mlx_case.py (made by mlx-lm) is
dequantised by dequant.py and run by transformers, or the other way round if its case.json says that transformers made the logits.
Exit 1 if any differs by more than the f32 profile of compare.py.
--pick N: choose N tokens without near ties for an MLX case (used by make_mlx_case.py); writes tokens.json.
"""
import argparse, json, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import oraclelib


def is_mlx(case):
    return "quantization" in json.loads((Path(case) / "config.json").read_text())


def wants_transformers(case):
    """The logits of an MLX case are mlx-lm's unless case.json says otherwise."""
    info = Path(case) / "case.json"
    return is_mlx(case) and not (info.exists() and json.loads(info.read_text()).get("logits_by") == "transformers")


def by_mlx(case):
    import mlxlib
    model = mlxlib.load_mlx(case) if is_mlx(case) else mlxlib.load(case, f32=True)[0]
    return mlxlib.logits(mlxlib.lift_router_bias(mlxlib.to_f32(model)), json.loads((Path(case) / "tokens.json").read_text())), None


def by_transformers(case, pick=None, seed=0, margin=0.1):
    import dequant, make_case, torch
    torch.set_num_threads(1)
    cfg, model = dequant.model(case, make_case.build_model)
    if pick:
        vocab = cfg.get("text_config", cfg)["vocab_size"]
        oraclelib.dump(Path(case) / "tokens.json", make_case.choose_tokens(model, pick, vocab, seed, margin))
    return make_case.run(model, json.loads((Path(case) / "tokens.json").read_text()))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("cases", nargs="+")
    ap.add_argument("--work")
    ap.add_argument("--pick", type=int)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--margin", type=float, default=0.1)
    a = ap.parse_args()
    kinds = {wants_transformers(c) for c in a.cases}
    if len(kinds) == 2:                                # each kind in its own environment
        env = {k: v for k, v in os.environ.items() if k != "ORACLE_ENTERED"}
        me = [sys.executable, __file__, "--work", str(oraclelib.work_dir())]
        sys.exit(max([subprocess.run(me + [c for c in a.cases if wants_transformers(c) == k], env=env).returncode for k in (False, True)]))
    mlx = kinds.pop()
    oraclelib.enter(*(("ve-torch", "torch") if mlx else ("ve-mlx", "mlx")))
    import numpy as np
    import compare
    bad = 0
    for c in a.cases:
        got, margin = by_transformers(c, a.pick, a.seed, a.margin) if mlx else by_mlx(c)
        if a.pick:
            np.save(Path(c) / "second.npy", got)
            oraclelib.dump(Path(c) / "second.json", {"router_margin": round(margin, 5) if margin < 1e9 else None})
            continue
        m = oraclelib.compare(got, np.load(Path(c) / "logits.npy"))
        why = compare.check(m, compare.PROFILES["f32"])
        bad += bool(why)
        print(f"{Path(c).name:28s} {'transformers' if mlx else 'mlx-lm':12s} {oraclelib.line(m)}" + (f"  margin {margin:.3f}" if margin else "") +
              ("  FAIL " + "; ".join(why) if why else ""), flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
