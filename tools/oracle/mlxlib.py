"""mlx-lm side: load a published-style checkpoint or an MLX one, run it, quantise it."""
import json, math, tempfile
from pathlib import Path
import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models import rope_utils
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)


class _NoTruncate:
    """math without floor and ceil: yarn with truncate=false, which mlx-lm does not know."""
    floor = ceil = staticmethod(lambda x: x)

    def __getattr__(self, k):
        return getattr(math, k)


def read(case):
    w = {}
    for f in sorted(Path(case).glob("model*.safetensors")):
        w.update(mx.load(str(f)))
    return w


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])


def dequantise(w, block):
    """E4M3, INT4 and MXFP4 weights as float32, exactly (mlx-lm's own loader rounds to bf16, and knows only some of them)."""
    for k in [k for k in w if k.endswith("_blocks")]:       # gpt_oss: output first in files, input first in the model
        base = k.removesuffix("_blocks")
        b, s = np.array(w.pop(k)), np.ldexp(np.float32(1), np.array(w.pop(base + "_scales")).astype(np.int32) - 127)
        x = E2M1[np.stack([b & 15, b >> 4], -1)].reshape(*s.shape, -1) * s[..., None]
        w[base] = mx.array(x.reshape(*s.shape[:2], -1).astype(np.float32)).swapaxes(1, 2)
    for k in [k for k in w if k.endswith((".weight_scale_inv", ".weight_scale", ".scale"))]:
        base = k.rsplit(".", 1)[0]
        s = w.pop(k)
        # Powers of two are loaded as bytes.
        s = np.ldexp(np.float32(1), np.array(s).astype(np.int32) - 127) if s.dtype == mx.uint8 else np.array(s.astype(mx.float32))
        if base + ".weight_packed" in w:
            v = np.array(w.pop(base + ".weight_packed"))
            w.pop(base + ".weight_shape", None)
            b = v.view(np.uint8).reshape(v.shape[0], -1)
            q = np.stack([b & 15, b >> 4], -1).reshape(v.shape[0], -1).astype(np.int32)
            x = q - 8.0 if v.dtype == np.int32 else E2M1[q]
            w[base + ".weight"] = mx.array((x.reshape(*s.shape, -1) * s[..., None]).reshape(x.shape).astype(np.float32))
            continue
        name = base + ".weight"
        rows, cols = w[name].shape
        per_value = np.kron(s, np.ones(block or (1, cols), np.float32))[:rows, :cols]
        w[name] = mx.from_fp8(w[name], dtype=mx.float32) * mx.array(per_value)


def view(case, tmp, f32):
    """A copy of a published-style case in the layout mlx-lm's loader wants. Usually nothing changes.

    f32: widen the weights first. mlx-lm adds 1 to qwen3_5's and qwen3_next's norm weights in their stored type; in bf16 that rounds."""
    case, tmp = Path(case), Path(tmp)
    c = json.loads((case / "config.json").read_text())
    t = c.get("text_config", c)
    if (rope := c.get("rope_parameters")) and not c["model_type"].endswith("_text"):     # saved by transformers 5: back to the older words
        c.update(rope_theta=rope["rope_theta"], partial_rotary_factor=rope.get("partial_rotary_factor", 1.0))
        c["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        c.setdefault("scoring_func", "sigmoid")
        if "num_local_experts" in c:
            c.setdefault("num_experts", c["num_local_experts"])
            c.setdefault("n_routed_experts", c["num_local_experts"])
    if c["model_type"] in ("qwen3_next", "qwen3_moe"):      # fields mlx-lm has no default for
        t.setdefault("intermediate_size", 1)
    if c["model_type"] == "minimax_m2":
        t.setdefault("shared_intermediate_size", 0)
    if c["model_type"] == "glm_moe_dsa":
        t.update(scoring_func="sigmoid", moe_layer_freq=1, rope_parameters=dict(rope_theta=t["rope_theta"], rope_type="default"))
    w = read(case)
    if fp8 := c.pop("quantization_config", None):
        dequantise(w, fp8.get("weight_block_size"))
    if c["model_type"] in ("qwen3_5_moe_text", "qwen3_5_text"):       # mlx-lm knows only the nested form
        c = {"model_type": c["model_type"].removesuffix("_text"), "text_config": t}
    if f32:
        w = {k: v.astype(mx.float32) if mx.issubdtype(v.dtype, mx.floating) else v for k, v in w.items()}
    n = t["num_hidden_layers"]
    fused = [k[:-len("gate_up_proj")] for k in w if k.endswith(".experts.gate_up_proj")]
    loose = sorted({k.split(".experts.")[0] + ".experts." for k in w if ".experts.0.gate_proj.weight" in k})
    if c["model_type"] == "qwen3_5_moe":                    # wants fused experts
        E = t["num_experts"]
        for b in loose:
            g, u, d = [mx.stack([w.pop(f"{b}{e}.{k}_proj.weight") for e in range(E)]) for k in ("gate", "up", "down")]
            w[b + "gate_up_proj"], w[b + "down_proj"] = mx.concatenate([g, u], axis=-2), d
    elif c["model_type"] == "gpt_oss":                      # its loader is for mxfp4 blocks; give it its own final layout
        for b in fused:
            gu, gb = w.pop(b + "gate_up_proj").swapaxes(1, 2), w.pop(b + "gate_up_proj_bias")
            for i, name in enumerate(("gate_proj", "up_proj")):
                w[b + name + ".weight"], w[b + name + ".bias"] = mx.contiguous(gu[:, i::2]), mx.contiguous(gb[:, i::2])
            w[b + "down_proj.weight"] = mx.contiguous(w.pop(b + "down_proj").swapaxes(1, 2))
            w[b + "down_proj.bias"] = w.pop(b + "down_proj_bias")
    else:                                                   # wants one tensor per expert
        for b in fused:
            gu, d = w.pop(b + "gate_up_proj"), w.pop(b + "down_proj")
            for e in range(gu.shape[0]):
                g, u = mx.split(gu[e], 2, axis=0)
                w[f"{b}{e}.gate_proj.weight"], w[f"{b}{e}.up_proj.weight"], w[f"{b}{e}.down_proj.weight"] = g, u, d[e]
    if c["model_type"] in ("deepseek_v3", "kimi_k2"):       # mlx-lm drops the MTP layer only when it is number 61
        w = {k: v for k, v in w.items() if not k.startswith(f"model.layers.{n}.")}
    (tmp / "config.json").write_text(json.dumps(c))
    mx.save_safetensors(str(tmp / "model.safetensors"), w)
    return c


def load_as_is(folder, scaling):
    """mlx-lm's loader, with borders of yarn that are not rounded if the config says so."""
    rope_utils.math = _NoTruncate() if scaling.get("truncate") is False else math
    try:
        return load_model(folder)
    finally:
        rope_utils.math = math


def load(case, f32=False):
    """(model, config) of a published-style case, in its stored dtype or widened to float32."""
    with tempfile.TemporaryDirectory() as tmp:
        c = view(case, tmp, f32)
        scaling = {k: v for k, v in (c.get("rope_scaling") or {}).items() if k not in ("rope_theta", "partial_rotary_factor")}
        model, cfg = load_as_is(Path(tmp), scaling)
    if scaling and c["model_type"] in ("qwen3_moe", "glm4_moe"):    # mlx-lm ignores rope_scaling here
        dims = int(c["head_dim"] * c.get("partial_rotary_factor", 1.0))
        for layer in model.layers:
            layer.self_attn.rope = rope_utils.initialize_rope(dims, c["rope_theta"], False, scaling, c["max_position_embeddings"])
    return with_limit(model, c), cfg


def with_limit(model, c):
    """mlx-lm's gpt_oss has a limit of 7 whatever the config says."""
    if c["model_type"] == "gpt_oss":
        for layer in model.layers:
            layer.mlp.experts.activation._limit = c["swiglu_limit"]
    return model


def load_mlx(case):
    """An MLX case. mlx-lm would quantise a plain kv_b_proj anew as embed_q and unembed_out, so it is widened to float32 first."""
    w, c = read(case), json.loads((Path(case) / "config.json").read_text())
    plain = [k.removesuffix(".weight") for k in w if k.endswith(".kv_b_proj.weight")]
    if not plain:
        return with_limit(load_as_is(Path(case), c.get("rope_scaling") or {})[0], c)
    for k in plain:
        p = c["quantization"].get(k, c["quantization"])
        v = [w.pop(f"{k}.{n}") for n in ("weight", "scales", "biases")]
        w[k + ".weight"] = mx.dequantize(v[0], v[1].astype(mx.float32), v[2].astype(mx.float32), p["group_size"], p["bits"])
    with tempfile.TemporaryDirectory() as tmp:
        (Path(tmp) / "config.json").write_text(json.dumps(c))
        mx.save_safetensors(str(Path(tmp) / "model.safetensors"), w)
        return load_model(Path(tmp))[0]


def lift_router_bias(model):
    """mlx-lm counts excluded expert groups as 0, transformers as minus infinity: the same once every score is positive."""
    for layer in model.layers:
        mlp = getattr(layer, "mlp", None) or getattr(layer, "block_sparse_moe", None)
        gate = getattr(mlp, "gate", None)
        if hasattr(gate, "e_score_correction_bias"):
            gate.e_score_correction_bias = gate.e_score_correction_bias.astype(mx.float32) + 4.0
    return model


def to_f32(model):
    model.update(tree_map(lambda v: v.astype(mx.float32) if mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    return model


def logits(model, tokens, step=None):
    """[tokens, vocab] as float32. step: feed the prompt through the cache in pieces of that length."""
    x = mx.array([tokens])
    if step is None:
        out = model(x)
    else:
        from mlx_lm.models.cache import make_prompt_cache
        cache = make_prompt_cache(model)
        out = mx.concatenate([model(x[:, i:i + step], cache=cache) for i in range(0, len(tokens), step)], 1)
    return np.array(out[0].astype(mx.float32))
