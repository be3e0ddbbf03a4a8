#!/usr/bin/env python3
"""Makes a checkpoint of deepseek_v3 with random weights, stored as DeepSeek publishes them: matrices
in FP8 (e4m3) with a scale for each block of 128 x 128, the rest in bf16 and f32.

    tools/peers/mkfp8.py CONFIG.json OUT [LAYERS]

`moeflux synth` makes affine and GGUF weights only. With dsv3-2g.json of moeflux's tests and 5 layers
it is 1.8 GB. Needs nothing but Python.
"""

import json
import os
import random
import struct
import sys

BLOCK = 128

# Bytes of e4m3 without its two NaNs: as random bits, the root of the mean square is 139.
NO_NANS = bytes(it - 1 if it & 0x7F == 0x7F else it for it in range(256))
SCALE = 0.02 / 139

# High bytes of bf16: with any low byte, values from 2^-7 to 2^-5 of either sign.
SMALL = bytes(0x3C if it < 128 else 0xBC for it in range(256))


def fp8(draw, n_values):
    return draw.randbytes(n_values).translate(NO_NANS)


def bf16(draw, n_values):
    both = bytearray(2 * n_values)
    both[0::2] = draw.randbytes(n_values)
    both[1::2] = draw.randbytes(n_values).translate(SMALL)
    return bytes(both)


def tensors(config):
    """Name, type and shape of all, in order."""
    hidden, n_heads = config["hidden_size"], config["num_attention_heads"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    value, latent, query = config["v_head_dim"], config["kv_lora_rank"], config["q_lora_rank"]
    n_experts = config["n_routed_experts"]

    def vector(name, n):
        yield f"{name}.weight", "BF16", [n]

    def matrix(name, rows, columns):
        blocks = [-(-rows // BLOCK), -(-columns // BLOCK)]
        yield f"{name}.weight", "F8_E4M3", [rows, columns]
        yield f"{name}.weight_scale_inv", "F32", blocks

    def ffn(name, inner):
        yield from matrix(f"{name}.gate_proj", inner, hidden)
        yield from matrix(f"{name}.up_proj", inner, hidden)
        yield from matrix(f"{name}.down_proj", hidden, inner)

    yield "model.embed_tokens.weight", "BF16", [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        here = f"model.layers.{layer}"
        yield from vector(f"{here}.input_layernorm", hidden)
        yield from vector(f"{here}.post_attention_layernorm", hidden)
        yield from matrix(f"{here}.self_attn.q_a_proj", query, hidden)
        yield from vector(f"{here}.self_attn.q_a_layernorm", query)
        yield from matrix(f"{here}.self_attn.q_b_proj", n_heads * (nope + rope), query)
        yield from matrix(f"{here}.self_attn.kv_a_proj_with_mqa", latent + rope, hidden)
        yield from vector(f"{here}.self_attn.kv_a_layernorm", latent)
        yield from matrix(f"{here}.self_attn.kv_b_proj", n_heads * (nope + value), latent)
        yield from matrix(f"{here}.self_attn.o_proj", hidden, n_heads * value)
        if layer < config["first_k_dense_replace"]:
            yield from ffn(f"{here}.mlp", config["intermediate_size"])
            continue
        yield f"{here}.mlp.gate.weight", "BF16", [n_experts, hidden]
        yield f"{here}.mlp.gate.e_score_correction_bias", "F32", [n_experts]
        for expert in range(n_experts):
            yield from ffn(f"{here}.mlp.experts.{expert}", config["moe_intermediate_size"])
        n_shared = config["n_shared_experts"]
        yield from ffn(f"{here}.mlp.shared_experts", n_shared * config["moe_intermediate_size"])
    yield from vector("model.norm", hidden)
    yield "lm_head.weight", "BF16", [config["vocab_size"], hidden]


def n_values(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def values(draw, name, kind, shape):
    n = n_values(shape)
    if kind == "F8_E4M3":
        return fp8(draw, n)
    if name.endswith("scale_inv"):
        return struct.pack("<f", SCALE) * n
    if name.endswith("bias"):
        return bytes(4 * n)
    return struct.pack("<H", 0x3F80) * n if "norm" in name else bf16(draw, n)


def main():
    config_path, out, *layers = sys.argv[1:]
    with open(config_path, encoding="utf-8") as file:
        config = json.load(file)
    if layers:
        config["num_hidden_layers"] = int(layers[0])
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
    widths = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
    header, end = {}, 0
    listed = list(tensors(config))
    for name, kind, shape in listed:
        begin, end = end, end + widths[kind] * n_values(shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(out)
    draw = random.Random(0)
    with open(os.path.join(out, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, kind, shape in listed:
            file.write(values(draw, name, kind, shape))
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)


if __name__ == "__main__":
    main()
