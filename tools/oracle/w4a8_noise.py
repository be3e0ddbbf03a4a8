#!/usr/bin/env python3
"""w4a8_noise.py MLX_CASE... [--group 32] [--work WORKDIR]: what int8 activations alone do to a case.

mlx-lm runs the checkpoint in float32, except that the input of every quantised matrix product is rounded to int8 (symmetric,
one scale per --group values, or per row with --group 0). The line shows how far an otherwise exact W4A8 engine is from logits.npy.
"""
import argparse, json, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import oraclelib
oraclelib.enter("ve-mlx", "mlx")
import mlx.core as mx, mlx.nn as nn, numpy as np
from mlx_lm.models import mla, switch_layers
import mlxlib


def int8(x, group):
    g = group or x.shape[-1]
    if x.shape[-1] % g:
        g = x.shape[-1]
    y = x.reshape(*x.shape[:-1], -1, g)
    s = mx.maximum(mx.abs(y).max(-1, keepdims=True) / 127, 1e-30)
    return (mx.round(y / s) * s).reshape(x.shape)


def patch(group):
    for cls in (nn.QuantizedLinear, switch_layers.QuantizedSwitchLinear, mla.QuantizedMultiLinear):
        def call(self, x, *a, _f=cls.__call__, **k):
            return _f(self, int8(x, group), *a, **k)
        cls.__call__ = call


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("cases", nargs="+")
    ap.add_argument("--group", type=int, default=32)
    ap.add_argument("--work")
    a = ap.parse_args()
    patch(a.group)
    for c in a.cases:
        model = mlxlib.to_f32(mlxlib.load_mlx(c))
        got = mlxlib.logits(model, json.loads((Path(c) / "tokens.json").read_text()))
        print(f"{Path(c).name:24s} int8/{a.group or 'row'}: {oraclelib.line(oraclelib.compare(got, np.load(Path(c) / 'logits.npy')))}", flush=True)


if __name__ == "__main__":
    main()
