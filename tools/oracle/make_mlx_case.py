#!/usr/bin/env python3
"""make_mlx_case.py --family F --bits B --group G --out DIR [--work WORKDIR]: an MLX-quantised checkpoint as mlx-lm writes it.

A random checkpoint is made by make_case.py, then loaded, cast, quantised and saved by mlx-lm's own functions, as mlx_lm.convert
does. Written beside it: tokens.json, case.json and
  logits.npy         mlx-lm with exactly the stored weights, scales and biases, all arithmetic in float32 (the reference; excluded
                     expert groups count as minus infinity, as in transformers)
  logits_native.npy  mlx-lm as users run it: activations in --dtype (bf16: about three digits; for information)
--plain-kv-b: deepseek and kimi with kv_b_proj quantised as it is, as older conversions have it; then logits.npy is by transformers from
the dequantised weights (mlx-lm would quantise embed_q and unembed_out anew) and there is no logits_native.npy.
"""
import argparse, json, os, subprocess, sys, tempfile
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import families, oraclelib
oraclelib.enter("ve-mlx", "mlx")
import mlx.core as mx, mlx_lm, numpy as np
from mlx.utils import tree_map_with_path
from mlx_lm.convert import QUANT_RECIPES, mixed_quant_predicate_builder
from mlx_lm.utils import quantize_model, save_config, save_model
import mlxlib

GEOMETRY = dict(hidden=128, head_dim=64, ffn=64, dense_ffn=128, heads=4, kv_heads=2)   # so that groups of 64 fit
MLA = ["kv_lora_rank=64", "q_lora_rank=64", "qk_nope_head_dim=64", "qk_rope_head_dim=16", "v_head_dim=64"]


TYPES = {"bf16": mx.bfloat16, "f16": mx.float16, "f32": mx.float32}


def quantise(src, out, bits, group, dtype, recipe=None, mode="affine"):
    """What mlx_lm.convert does between loading and the tokenizer."""
    model, cfg = mlxlib.load(src, f32=dtype == "f32")
    to = TYPES[dtype]
    cast = getattr(model, "cast_predicate", lambda _: True)
    model.update(tree_map_with_path(lambda k, v: v.astype(to) if cast(k) and mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    predicate = mixed_quant_predicate_builder(recipe, model, group) if recipe else None
    model, cfg = quantize_model(model, cfg, group, bits, mode=mode, quant_predicate=predicate)
    save_model(out, model)
    save_config(cfg, config_path=out / "config.json")
    return cfg


def plain_kv_b(src, out, w, bits, group, dtype):
    """Put kv_b_proj back in the place of embed_q and unembed_out."""
    for k, v in mlxlib.read(src).items():
        if k.endswith(".kv_b_proj.weight"):
            base = k.removesuffix("kv_b_proj.weight")
            for n in [n for n in w if n.startswith((base + "embed_q.", base + "unembed_out."))]:
                del w[n]
            for n, x in zip(("weight", "scales", "biases"), mx.quantize(v.astype(TYPES[dtype]), group, bits)):
                w[f"{base}kv_b_proj.{n}"] = x
    cfg = json.loads((out / "config.json").read_text())
    for block in ("quantization", "quantization_config"):       # conversions of that age know no "mode"
        cfg[block].pop("mode", None)
    oraclelib.dump(out / "config.json", cfg)


def terse(out):
    """Leave out of the entries of single tensors what mlx-lm takes for them by default."""
    cfg = json.loads((out / "config.json").read_text())
    for block in ("quantization", "quantization_config"):
        for entry in (v for v in cfg[block].values() if isinstance(v, dict)):
            for key, default in (("group_size", 64), ("bits", 4), ("mode", "affine")):
                if entry.get(key) == default:
                    del entry[key]
    oraclelib.dump(out / "config.json", cfg)


def extras(src, w):
    """What some conversions carry and a text-only forward pass must skip: vision tower, MTP layer."""
    t = json.loads((src / "config.json").read_text()).get("text_config", {})
    h, like = t["hidden_size"], w["language_model.model.norm.weight"].dtype
    mx.random.seed(77)
    for k, s in {"vision_tower.patch_embed.proj.weight": (32, 2, 4, 4, 3), "vision_tower.blocks.0.norm1.weight": (32,),
                 "language_model.mtp.fc.weight": (8, 2 * h), "language_model.mtp.norm.weight": (h,),
                 "language_model.mtp.layers.0.input_layernorm.weight": (h,)}.items():
        w[k] = mx.random.normal(s).astype(like)


def write(out, w, shards):
    for f in out.glob("model*.safetensors*"):
        f.unlink()
    names, where = sorted(w), {}
    per = -(-len(names) // shards)
    for i in range(shards):
        f = f"model-{i + 1:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors"
        part = {k: w[k] for k in names[i * per:(i + 1) * per]}
        mx.save_safetensors(str(out / f), part, metadata={"format": "mlx"})
        where.update({k: f for k in part})
    oraclelib.dump(out / "model.safetensors.index.json", {"metadata": {"total_size": sum(v.nbytes for v in w.values())}, "weight_map": where})


def generate(out, src, a):
    out, src, dtype = Path(out), Path(src), a.dtype
    out.mkdir(parents=True, exist_ok=True)
    quantise(src, out, a.bits, a.group, dtype, a.recipe, a.mode)
    w = mlxlib.read(out)
    mx.eval(w)
    if a.plain_kv_b:
        plain_kv_b(src, out, w, a.bits, a.group, dtype)
    if a.terse:
        terse(out)
    if a.extras:
        extras(src, w)
    write(out, w, a.shards)
    old = json.loads((src / "case.json").read_text())
    # Tokens without near ties have to be chosen on the quantised model; transformers does it on the dequantised weights.
    run_torch("second_opinion.py", str(out), "--pick", str(old["tokens"]), "--seed", str(old["seed"]), "--margin", str(a.margin))
    tokens = json.loads((out / "tokens.json").read_text())
    model = mlxlib.load_mlx(out)                       # the files as written
    try:
        native = None if a.plain_kv_b else mlxlib.logits(model, tokens)
    except RuntimeError:                               # no CPU kernel: experts that the group does not divide, in bf16 or f16
        native = None
    model = mlxlib.lift_router_bias(mlxlib.to_f32(model))
    by_mlx, by_transformers = mlxlib.logits(model, tokens), np.load(out / "second.npy")
    ref = by_transformers if a.plain_kv_b else by_mlx
    np.save(out / "logits.npy", ref)
    second = oraclelib.compare(by_transformers, by_mlx)
    step = float(np.abs(mlxlib.logits(model, tokens[:40], 1) - by_mlx[:40]).max())
    info = dict(kind="mlx", family=old["family"], seed=old["seed"], tokens=len(tokens), bits=a.recipe or (a.bits if a.mode == "affine" else a.mode), group=a.group, dtype=dtype,
                shards=a.shards, extras=a.extras, plain_kv_b=a.plain_kv_b, logits_by="transformers" if a.plain_kv_b else "mlx-lm",
                activations="f32" if a.plain_kv_b else f"f32 in logits.npy, {dtype} in logits_native.npy",
                router_margin=json.loads((out / "second.json").read_text())["router_margin"],
                transformers_max_abs=second["max_abs"], step_by_step_max_abs=step,
                made_with=f"mlx {mx.__version__}, mlx-lm {mlx_lm.__version__}")
    if native is not None:
        np.save(out / "logits_native.npy", native)
        m = oraclelib.compare(native, ref)
        info.update(native_nmse=m["nmse"], native_top1=m["top1"])
    for f in ("second.npy", "second.json"):
        (out / f).unlink()
    oraclelib.dump(out / "case.json", info)
    if not (np.isfinite(ref).all() and second["max_abs"] < 1e-2 and step < 1e-2):
        sys.exit(f"error: {out.name}: transformers differs by {second['max_abs']:.1e}, step by step by {step:.1e}")
    return info


def run_torch(script, *args):
    env = {k: v for k, v in os.environ.items() if k != "ORACLE_ENTERED"}
    cmd = [sys.executable, str(Path(__file__).with_name(script)), *args, "--work", str(oraclelib.work_dir())]
    r = subprocess.run(cmd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        sys.exit(f"{script}: " + r.stderr[-2000:])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--family", required=True, choices=[f for f in families.FAMILIES if not f.endswith("_text")])
    ap.add_argument("--bits", type=int, choices=[2, 3, 4, 5, 6, 8], default=4)
    ap.add_argument("--group", type=int, choices=[32, 64, 128], default=64)
    ap.add_argument("--dtype", choices=TYPES, default="bf16", help="of scales, biases, norms (published: bf16)")
    ap.add_argument("--mode", choices=["affine", "mxfp4"], default="affine", help="mxfp4: with --bits 4 --group 32")
    ap.add_argument("--recipe", choices=QUANT_RECIPES, help="mlx-lm's mixed bits per tensor, instead of --bits (no 8-bit router then)")
    ap.add_argument("--plain-kv-b", action="store_true", help="deepseek and kimi: keep kv_b_proj, quantised")
    ap.add_argument("--terse", action="store_true", help="leave out of each tensor's entry what mlx-lm takes by default")
    ap.add_argument("--shards", type=int, default=1)
    ap.add_argument("--extras", action="store_true", help="qwen3_5_moe, qwen3_5: also write vision and MTP tensors, which the engine must skip")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--tokens", default="24")
    ap.add_argument("--out", required=True)
    ap.add_argument("--margin", type=float, default=0.1, help="see make_case.py")
    ap.add_argument("--from", dest="src", help="quantise this case of make_case.py instead of making one")
    ap.add_argument("--work", help="work directory of setup.sh (or set ORACLE_WORK)")
    families.add_flags(ap)
    a = ap.parse_args()
    if a.plain_kv_b and a.family not in families.MLA or a.extras and a.family not in ("qwen3_5_moe", "qwen3_5") or a.plain_kv_b and a.recipe:
        ap.error("--plain-kv-b is for deepseek and kimi without --recipe, --extras for qwen3_5_moe")
    with tempfile.TemporaryDirectory() as tmp:
        src = a.src
        if not src:
            src = tmp
            geo = dict(GEOMETRY)
            if a.group == 128:
                geo.update(ffn=128, head_dim=128)
            geo.update({k: getattr(a, k) for k in families.GEOMETRY if getattr(a, k) is not None})
            sets = (MLA if a.family in families.MLA else []) + a.sets
            cmd = ["--family", a.family, "--seed", str(a.seed), "--tokens", a.tokens, "--out", tmp, "--margin", "0"]
            for k, v in geo.items():
                cmd += ["--" + k.replace("_", "-"), str(v)]
            for s in sets:
                cmd += ["--set", s]
            run_torch("make_case.py", *cmd)
        info = generate(a.out, src, a)
    size = sum(f.stat().st_size for f in Path(a.out).iterdir())
    native = f", {a.dtype} activations nmse {info['native_nmse']:.1e}" if "native_nmse" in info else ""
    print(f"{a.family} q{info['bits']} g{a.group} {a.dtype}: seed {info['seed']}, {info['tokens']} tokens, {size / 1e6:.2f} MB, "
          f"router margin {info['router_margin']}, transformers {info['transformers_max_abs']:.1e}, "
          f"step by step {info['step_by_step_max_abs']:.1e}{native}")


if __name__ == "__main__":
    main()
