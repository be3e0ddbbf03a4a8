#!/usr/bin/env python3
"""quantised.py --golden DIR --out FILE [--work WORKDIR]: what mlx-lm makes of published-style cases when it quantises them.

Each case is loaded, cast and quantised by mlx-lm's own functions, as mlx_lm.convert does. The file has, per case, bits and group, the
"quantization" block of the config and for each quantised module the FNV-1a 64 of its weight, scales and biases, one after the other.
Not recorded: what is not quantised. There mlx-lm adds 1 to norms in their stored type and turns convolutions; `moeflux pack` leaves both.
"""
import argparse, json, sys, tempfile
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import oraclelib
oraclelib.enter("ve-mlx", "mlx")
import mlx.core as mx, mlx_lm, numpy as np
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import quantize_model
import mlxlib

# (case, bits, group, torch_dtype that replaces the config's)
WANTED = [("qwen3_next-bf16-wide", b, g, None) for b, g in ((2, 32), (3, 64), (4, 128), (5, 32), (6, 64), (8, 128), (4, 64))]
WANTED += [("deepseek_v3-fp8-wide", b, g, None) for b, g in ((4, 64), (3, 128), (5, 32), (8, 64))]
WANTED += [(n, 4, 32, None) for n in ("qwen3_moe-bf16", "qwen3_moe-f16-yarn", "qwen3_next-f32", "qwen3_next-bf16", "deepseek_v3-bf16",
                                      "deepseek_v3-fp8", "deepseek_v3_yarn-f32", "kimi_k2-bf16", "kimi_k2-fp8")]
WANTED += [("qwen3_5_moe-bf16", 4, 64, None), ("qwen3_5_moe-bf16", 3, 32, None), ("qwen3_5_moe_text-f16", 6, 32, None),
           ("qwen3_5_moe_text-f16", 8, 64, None), ("glm4_moe-bf16", 5, 64, None), ("glm4_moe-f16", 2, 32, None), ("glm4_moe-f16", 6, 64, None),
           ("qwen3_moe-f32", 2, 64, None), ("qwen3_moe-f32", 4, 32, "bfloat16"), ("qwen3_moe-f32", 5, 32, "float16")]
WANTED += [("llama-bf16-wide", b, g, None) for b, g in ((4, 64), (4, 32), (6, 64))]


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return h


def raw(x):
    """The bytes as a file has them."""
    view = {mx.bfloat16: mx.uint16, mx.float16: mx.uint16, mx.float32: mx.uint32}.get(x.dtype)
    return np.array(x.view(view) if view else x).tobytes()


def as_published(w, block):
    """E4M3 to bf16, as mlx-lm's sanitize for deepseek has it; mlxlib's own keeps f32."""
    exact(w, block)
    for k, v in w.items():
        if v.dtype == mx.float32 and k.endswith("proj.weight"):
            w[k] = v.astype(mx.bfloat16)


exact = mlxlib.dequantise
mlxlib.dequantise = as_published


def quantise(case, bits, group, torch_dtype):
    config = json.loads((case / "config.json").read_text())
    model, loaded = mlxlib.load(case)
    dtype = torch_dtype or config.get("torch_dtype") or config.get("text_config", {}).get("dtype")
    if dtype in ("float16", "bfloat16", "float32"):
        cast = getattr(model, "cast_predicate", lambda _: True)
        to = getattr(mx, dtype)
        model.update(tree_map_with_path(lambda k, v: v.astype(to) if cast(k) and mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    loaded.pop("quantization", None)
    model, loaded = quantize_model(model, loaded, group, bits)
    weights = dict(tree_flatten(model.parameters()))
    modules = sorted(k.removesuffix(".scales") for k in weights if k.endswith(".scales"))
    hashes = {m: f"{fnv(b''.join(raw(weights[f'{m}.{p}']) for p in ('weight', 'scales', 'biases'))):016x}" for m in modules}
    return loaded["quantization"], hashes


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--golden", required=True, type=Path)
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--work", help="work directory of setup.sh (or set ORACLE_WORK)")
    a = ap.parse_args()
    lines = []
    for name, bits, group, torch_dtype in WANTED:
        block, modules = quantise(a.golden / name, bits, group, torch_dtype)
        print(f"{name} q{bits} g{group} {torch_dtype or ''}: {len(modules)} modules")
        lines.append(json.dumps(dict(case=name, bits=bits, group=group, torch_dtype=torch_dtype, quantization=block, modules=modules)))
    made_with = f"mlx {mx.__version__}, mlx-lm {mlx_lm.__version__}"
    a.out.write_text('{"made_with": "%s", "packs": [\n%s\n]}\n' % (made_with, ",\n".join(lines)))


if __name__ == "__main__":
    main()
