"""Checkpoints with packed weights as a float32 transformers model, written without mlx and without torch's own fp8: an independent reading of the formats.

MLX mxfp4: NAME.weight (u32) with two codes a byte, NAME.scales (u8) with an exponent for each 32 columns.
MLX affine: a row of `bits`-wide values is one little-endian bit stream (element 0 in the lowest bits of the first u32); w = q * scale + bias
per group along the last dimension. Tensors: NAME.weight (u32), NAME.scales, NAME.biases.
fp8: NAME.weight in E4M3, NAME.weight_scale_inv with one float32 factor per block; w = value * factor.
"""
import json, re
from pathlib import Path
import numpy as np, torch
from safetensors import safe_open

NORMS = (".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight")


def tensors(case):
    raw = {}
    for f in sorted(Path(case).glob("model*.safetensors")):
        with safe_open(f, "pt") as s:
            raw.update({k: s.get_tensor(k) for k in s.keys()})
    return raw


def config(case):
    return json.loads((Path(case) / "config.json").read_text())


def unpack(w, bits):
    b = np.unpackbits(np.ascontiguousarray(w).view(np.uint8), axis=-1, bitorder="little")
    b = b.reshape(*b.shape[:-1], -1, bits).astype(np.int32)
    return (b << np.arange(bits, dtype=np.int32)).sum(-1)


def read(case):
    """{name: float32 tensor}, quantised tensors expanded, with the bits and group of config.json's "quantization"."""
    q, raw, out = config(case)["quantization"], tensors(case), {}
    for k, v in raw.items():
        name = k.rsplit(".", 1)[0]
        if k.endswith((".scales", ".biases")) and name + ".weight" in raw:
            continue
        if v.dtype == torch.uint32:
            if name + ".biases" not in raw:            # mode mxfp4
                s = raw[name + ".scales"]
                flat = packed(v.view(torch.uint8).reshape(-1, v.shape[-1] * 4), s.reshape(-1, s.shape[-1]))
                out[k] = flat.view(*v.shape[:-1], -1)
                continue
            p = q.get(name)
            p = dict(dict(bits=4, group_size=64), **p) if isinstance(p, dict) else q     # defaults of an entry are its own
            x = torch.from_numpy(unpack(v.numpy(), p["bits"])).float()
            s, b = raw[name + ".scales"].float(), raw[name + ".biases"].float()
            assert x.shape[-1] == s.shape[-1] * p["group_size"], (name, x.shape, s.shape, p)
            out[k] = (x.view(*s.shape, -1) * s[..., None] + b[..., None]).view(x.shape)
        else:
            out[k] = v.float()
    return out


def e4m3(byte):
    """The value of one E4M3 byte: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, 0x7f and 0xff are NaN."""
    sign, e, m = -1.0 if byte & 0x80 else 1.0, byte >> 3 & 15, byte & 7
    if e == 15 and m == 7:
        return float("nan")
    return sign * (2.0 ** (e - 7) * (1 + m / 8) if e else 2.0 ** -6 * m / 8)


def e8m0(s):
    """Exponents as powers of two."""
    return torch.from_numpy(np.ldexp(1.0, s.view(torch.uint8).numpy().astype(np.int32) - 127)).float()


def read_published(case):
    """{name: float32 tensor} of a checkpoint with weights in FP8, INT4 or MXFP4, in any of the spellings that are published."""
    block = config(case)["quantization_config"].get("weight_block_size")
    raw, out = tensors(case), {}
    table = torch.tensor([e4m3(b) for b in range(256)])
    for k, v in raw.items():
        base = k.removesuffix(".weight").removesuffix(".weight_packed")
        scale = next((raw[n] for n in (base + ".weight_scale_inv", base + ".weight_scale", base + ".scale") if n in raw), None)
        if k.endswith(("_scale_inv", ".weight_scale", ".scale", ".weight_shape")):
            continue
        if k.endswith(".weight_packed"):
            out[base + ".weight"] = packed(v, scale)
        elif v.dtype == torch.float8_e4m3fn:
            x = table[v.view(torch.uint8).long()]
            s = e8m0(scale) if scale.dtype == torch.float8_e8m0fnu else scale.float()
            rows, cols = block or (1, x.shape[1])
            for i in range(s.shape[0]):
                for j in range(s.shape[1]):
                    x[i * rows:(i + 1) * rows, j * cols:(j + 1) * cols] *= s[i, j]
            out[k] = x
        else:
            out[k] = v.float()
    return out


def packed(v, scale):
    """Codes of 4 bits, the lower half of a byte first: integers 8 above what they stand for, or E2M1."""
    b = v.contiguous().view(torch.uint8).reshape(v.shape[0], -1).long()
    codes = torch.stack([b & 15, b >> 4], -1).reshape(v.shape[0], -1)
    if v.dtype == torch.int32:
        x, s = codes.float() - 8, scale.float()
    else:
        grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        x, s = torch.where(codes > 7, -1.0, 1.0) * grid[codes & 7], e8m0(scale)
    return (x.view(*s.shape, -1) * s[..., None]).reshape(x.shape)


def to_transformers(case):
    """State dict of an MLX case under transformers' names."""
    cfg = config(case)
    layers = cfg.get("text_config", cfg)["num_hidden_layers"]
    skip = re.compile(rf"(^|\.)(mtp|vision_tower)\.|^model\.layers\.{layers}\.")
    w = {k.removeprefix("language_model."): v for k, v in read(case).items() if not skip.search(k)}
    for k in list(w):
        if m := re.match(r"(.*\.mlp\.)switch_mlp\.gate_proj\.weight$", k):
            b = m[1] + "switch_mlp."
            w[m[1] + "experts.gate_up_proj"] = torch.cat([w.pop(b + "gate_proj.weight"), w.pop(b + "up_proj.weight")], 1)
            w[m[1] + "experts.down_proj"] = w.pop(b + "down_proj.weight")
        elif m := re.match(r"(.*\.mlp\.experts\.)gate_proj\.(weight|bias)$", k):     # gpt_oss: gate and up in turn, weights input first
            parts = [w.pop(f"{m[1]}{part}_proj.{m[2]}") for part in ("gate", "up")]
            both, down = torch.stack(parts, 2).flatten(1, 2), w.pop(f"{m[1]}down_proj.{m[2]}")
            tail = "" if m[2] == "weight" else "_bias"
            turned = (lambda v: v.transpose(1, 2).contiguous()) if m[2] == "weight" else (lambda v: v)
            w[f"{m[1]}gate_up_proj{tail}"], w[f"{m[1]}down_proj{tail}"] = turned(both), turned(down)
        elif k.endswith("embed_q.weight"):             # MLA in absorbed form: [heads, kv_lora, nope] and [heads, v, kv_lora]
            b = k[:-len("embed_q.weight")]
            kv = torch.cat([w.pop(k).transpose(1, 2), w.pop(b + "unembed_out.weight")], 1)
            w[b + "kv_b_proj.weight"] = kv.reshape(-1, kv.shape[-1]).contiguous()
        elif k.endswith("conv1d.weight"):
            w[k] = w[k].transpose(1, 2).contiguous()   # mlx: [channels, kernel, 1]
        elif cfg["model_type"] in ("qwen3_5_moe", "qwen3_5", "qwen3_next") and k.endswith(NORMS):
            w[k] = w[k] - 1.0                          # mlx stores 1 + weight
    return cfg, w


def model(case, build_model):
    cfg, w = to_transformers(case)
    m = build_model(cfg)
    bad = m.load_state_dict(w, strict=False)
    missing = [k for k in bad.missing_keys if not (k == "lm_head.weight" and m.config.tie_word_embeddings)]
    if missing or bad.unexpected_keys:
        raise ValueError(f"missing {missing[:3]}, unexpected {bad.unexpected_keys[:3]}")
    m.tie_weights()
    return cfg, m
