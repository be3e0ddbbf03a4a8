#!/usr/bin/env python3
"""gguf_case.py --family F --seed S --out DIR [--work WORKDIR]: a tiny random GGUF file and the logits transformers computes for it.

Writes model.gguf as llama.cpp's converters write the family (conversion/*.py), with the package `gguf`, tokens.json, logits.npy and
case.json as make_case.py does. Each tensor is quantised, or made of random blocks where `gguf` cannot quantise; the transformers model
gets what `gguf` dequantises from the file's bytes, with what the converter changed undone.

--types PATTERN=TYPE,...: types by regular expression over names in the file, the first that fits; vectors, routers, convolutions: F32.
--split N: so many parts, as llama-gguf-split names them.
"""
import argparse, os, re, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import families, oraclelib
oraclelib.enter("ve-torch", "torch")
import numpy as np, torch, gguf, transformers
import make_case
from gguf import GGMLQuantizationType as T, quants

ARCH = dict(qwen3_moe="qwen3moe", qwen3_next="qwen3next", qwen3_5_moe_text="qwen35moe", deepseek_v3="deepseek2", kimi_k2="deepseek2", glm4_moe="glm4moe",
            glm4_moe_lite="deepseek2", glm_moe_dsa="glm-dsa", deepseek_v32="deepseek32", gpt_oss="gpt-oss", minimax_m2="minimax-m2", hy_v3="hy_v3",
            qwen3_vl_moe="qwen3vlmoe", qwen2_moe="qwen2moe", mixtral="llama", olmoe="olmoe", qwen2="qwen2", qwen3="qwen3", qwen3_5_text="qwen35", llama="llama")
# post_attention_layernorm is ffn_norm there.
WITH_FFN_NORM = {"qwen3_moe", "qwen2_moe", "qwen3_vl_moe", "minimax_m2", "hy_v3", "mixtral", "olmoe", "qwen2", "qwen3", "llama", *families.MLA}
TOKENIZERS = dict(kimi_k2="kimi-k2", glm4_moe_lite="glm4")
GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.router": "ffn_gate_inp", "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k", "self_attn.indexer.k_norm": "indexer.k_norm", "self_attn.indexer.weights_proj": "indexer.proj"}
for part in ("gate", "up", "down"):
    LAYER[f"mlp.shared_expert.{part}_proj"] = LAYER[f"mlp.shared_experts.{part}_proj"] = f"ffn_{part}_shexp"
KEEP_F32 = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "exp_probs_b.bias", "exp_probs_b", "ssm_a", "ssm_dt.bias")
# f16 scale fields of blocks that `gguf` cannot quantise: (offset of d, offset of dmin or None, dmin / d that makes the mean 0)
FIELDS = {T.Q2_K: (80, 82, 1.5), T.Q3_K: (108, None, 0), T.Q4_K: (0, 2, 7.5), T.Q5_K: (0, 2, 15.5), T.Q6_K: (208, None, 0), T.IQ2_XXS: (0, None, 0),
          T.IQ2_XS: (0, None, 0), T.IQ2_S: (0, None, 0), T.IQ3_XXS: (0, None, 0), T.IQ3_S: (0, None, 0), T.IQ4_NL: (0, None, 0), T.IQ4_XS: (0, None, 0)}


def random_blocks(shape, kind, std, rng):
    """Blocks of random bytes whose values have this standard deviation."""
    n_values, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    assert shape[-1] % n_values == 0, (shape, kind)
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // n_values, n_bytes), dtype=np.uint8)
    d_at, min_at, ratio = FIELDS[kind]

    def scaled(d):
        put = lambda at, v: blocks.__setitem__((..., slice(at, at + 2)), np.broadcast_to(np.frombuffer(np.float16(v).tobytes(), np.uint8), (*blocks.shape[:-1], 2)))
        put(d_at, d)
        if min_at is not None:
            put(min_at, d * ratio)
        return quants.dequantize(blocks.reshape(*shape[:-1], -1), kind)

    got = scaled(2.0 ** -6).std()
    scaled(2.0 ** -6 * std / got)
    return blocks.reshape(*shape[:-1], -1)


class Writer:
    """Tensors of the file in order, and what they hold when they are read back."""

    def __init__(self, types, seed):
        self.types = [(re.compile(p), T[t]) for p, t in (entry.split("=") for entry in types.split(",") if entry)]
        self.rng, self.tensors = np.random.default_rng(seed + 500), []

    def kind(self, name, shape):
        if len(shape) < 2 or name in KEEP_F32 or any(name.endswith("." + it) for it in KEEP_F32):
            return T.F32
        return next((t for p, t in self.types if p.search(name)), T.F32)

    def add(self, name, values):
        """Stores a tensor; answers its values as the file has them."""
        values = np.ascontiguousarray(values, np.float32)
        kind = self.kind(name, values.shape)
        if kind in FIELDS:
            data = random_blocks(values.shape, kind, float(values.std()), self.rng)
        else:
            data = quants.quantize(values, kind)
        self.tensors.append((name, data, kind))
        return np.asarray(quants.dequantize(data, kind), np.float32).reshape(values.shape)


def tiled(n_k, n_v, width):
    """Places of channels of value heads, from grouped by key head to tiled (conversion/qwen.py, _reorder_v_heads)."""
    return np.arange(n_v * width).reshape(n_k, n_v // n_k, width).transpose(1, 0, 2).reshape(-1)


def permuted(writer, name, values, axis, order):
    """Stores values[order] along an axis; answers the file's values in their old order."""
    back = np.argsort(order)
    return np.take(writer.add(name, np.take(values, order, axis)), back, axis)


def delta(writer, prefix, name, v, cfg):
    """A tensor of a linear layer, or None if it is stored as it is."""
    n_k, n_v = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"]
    d_k, d_v, r = cfg["linear_key_head_dim"], cfg["linear_value_head_dim"], n_v // n_k
    if name == "in_proj_qkvz.weight":                    # qwen3_next: [q | k | v | z] by key head -> [q | k | v], z
        rows = np.arange(len(v)).reshape(n_k, 2 * d_k + 2 * r * d_v)
        parts = np.split(rows, [d_k, 2 * d_k, 2 * d_k + r * d_v], 1)
        qkv, z = np.concatenate([p.reshape(-1) for p in parts[:3]]), parts[3].reshape(-1)
        out = np.empty_like(v)
        out[qkv], out[z] = writer.add(prefix + "attn_qkv.weight", v[qkv]), writer.add(prefix + "attn_gate.weight", v[z])
        return out
    is_tiled = cfg["model_type"] in ("qwen3_5_moe_text", "qwen3_5_text") and n_k != n_v
    heads = tiled(n_k, n_v, 1) if is_tiled else np.arange(n_v)
    channels = tiled(n_k, n_v, d_v) if is_tiled else np.arange(n_v * d_v)
    mixed = np.concatenate([np.arange(2 * n_k * d_k), 2 * n_k * d_k + channels])
    if name == "A_log":
        writer.add(prefix + "ssm_a", -np.exp(v[heads]))
        return v
    if name == "dt_bias":
        return permuted(writer, prefix + "ssm_dt.bias", v, 0, heads)
    if name == "conv1d.weight":
        return permuted(writer, prefix + "ssm_conv1d.weight", v[:, 0], 0, mixed)[:, None]
    if name == "in_proj_qkv.weight":
        return permuted(writer, prefix + "attn_qkv.weight", v, 0, mixed)
    if name == "in_proj_z.weight":
        return permuted(writer, prefix + "attn_gate.weight", v, 0, channels)
    if name in ("in_proj_b.weight", "in_proj_a.weight"):
        return permuted(writer, prefix + {"b": "ssm_beta", "a": "ssm_alpha"}[name[8]] + ".weight", v, 0, heads)
    if name == "out_proj.weight":
        return permuted(writer, prefix + "ssm_out.weight", v, 1, channels)
    return None


def store(writer, cfg, name, v, fused):
    """Stores one tensor of the transformers model as the converter does; answers what the file holds, in the model's own shape."""
    name = name.replace("model.language_model.", "model.")
    m = re.match(r"model\.layers\.(\d+)\.(.*)", name)
    if not m:
        module, _, kind = name.rpartition(".")
        plus = 1.0 if name == "model.norm.weight" and cfg["model_type"] in families.HYBRID else 0.0
        return writer.add(f"{GLOBAL[module]}.{kind}", v + plus) - plus
    prefix, rest = f"blk.{m[1]}.", m[2]
    if rest.startswith("linear_attn."):
        out = delta(writer, prefix, rest[len("linear_attn."):], v, cfg)
        if out is not None:
            return out
    if cfg["model_type"] == "gpt_oss" and (rest.startswith("mlp.experts.") or rest.endswith("sinks")):
        return gpt_oss(writer, prefix, rest, v)
    if cfg["model_type"] in ("mixtral", "llama") and re.match(r"self_attn\.[qk]_proj", rest):
        n_heads = cfg["num_attention_heads" if "q_proj" in rest else "num_key_value_heads"]
        order = np.arange(len(v)).reshape(n_heads, 2, -1).transpose(0, 2, 1).reshape(-1)     # conversion/llama.py, permute
        return permuted(writer, prefix + LAYER[rest.rpartition(".")[0]] + "." + rest.rpartition(".")[2], v, 0, order)
    if rest == "mlp.experts.gate_up_proj":               # [E, 2 inner, hidden]
        if fused:
            return writer.add(prefix + "ffn_gate_up_exps.weight", v)
        gate, up = np.split(v, 2, 1)
        return np.concatenate([writer.add(prefix + "ffn_gate_exps.weight", gate), writer.add(prefix + "ffn_up_exps.weight", up)], 1)
    if rest == "mlp.experts.down_proj":
        return writer.add(prefix + "ffn_down_exps.weight", v)
    if rest.endswith("e_score_correction_bias"):
        return writer.add(prefix + ("exp_probs_b" if cfg["model_type"] == "hy_v3" else "exp_probs_b.bias"), v)
    if rest == "self_attn.kv_b_proj.weight":             # per head [k | v] -> k transposed, v
        n, d_k, d_v = cfg["num_attention_heads"], cfg["qk_nope_head_dim"], cfg["v_head_dim"]
        heads = v.reshape(n, d_k + d_v, -1)
        k = writer.add(prefix + "attn_k_b.weight", heads[:, :d_k].transpose(0, 2, 1)).transpose(0, 2, 1)
        return np.concatenate([k, writer.add(prefix + "attn_v_b.weight", heads[:, d_k:])], 1).reshape(v.shape)
    if rest == "post_attention_layernorm.weight":
        target = "ffn_norm" if cfg["model_type"] in WITH_FFN_NORM else "post_attention_norm"
    else:
        target = LAYER[rest.rpartition(".")[0]]
    plus = 1.0 if cfg["model_type"] in families.HYBRID and rest.endswith("norm.weight") and rest != "linear_attn.norm.weight" else 0.0
    if target == "ffn_gate_inp_shexp" and cfg["model_type"] == "qwen3_next":   # some files have [hidden], some [1, hidden]
        return writer.add(prefix + target + ".weight", v[0])[None]
    return writer.add(prefix + target + "." + rest.rpartition(".")[2], v + plus) - plus


def gpt_oss(writer, prefix, rest, v):
    """Experts are input first, gate and up in turn."""
    if rest == "self_attn.sinks":
        return writer.add(prefix + "attn_sinks.weight", v)
    out = np.empty_like(v)
    kind = "bias" if rest.endswith("_bias") else "weight"
    put = lambda part, x: (writer.add(f"{prefix}ffn_{part}_exps.weight", x.transpose(0, 2, 1)).transpose(0, 2, 1) if kind == "weight"
                           else writer.add(f"{prefix}ffn_{part}_exps.bias", x))
    if "down_proj" in rest:
        return put("down", v)
    out[..., ::2], out[..., 1::2] = put("gate", v[..., ::2]), put("up", v[..., 1::2])
    return out


def frequency_divisors(writer, cfg):
    """The scaling of Llama 3 as a tensor (conversion/llama.py, generate_extra_tensors)."""
    rope, dim = cfg["rope_scaling"], cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]
    low, high, length = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for frequency in 1.0 / (cfg["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)):
        wavelength = 2 * np.pi / float(frequency)
        smooth = (length / wavelength - low) / (high - low)
        factors.append(1 if wavelength < length / high else rope["factor"] if wavelength > length / low else 1 / ((1 - smooth) / rope["factor"] + smooth))
    writer.add("rope_freqs.weight", np.array(factors))


def mtp(writer, cfg, n):
    """A layer that predicts a further token, in part: enough to be counted and skipped."""
    g, h = np.random.default_rng(77), cfg["hidden_size"]
    for name, shape in (("nextn.eh_proj.weight", (h, 2 * h)), ("nextn.enorm.weight", (h,)), ("nextn.hnorm.weight", (h,)), ("attn_norm.weight", (h,))):
        writer.add(f"blk.{n}.{name}", g.standard_normal(shape))


def metadata(w, cfg, with_mtp):
    """As TextModel.set_gguf_parameters and the family's own write them."""
    c, kind = cfg, cfg["model_type"]
    w.add_block_count(c["num_hidden_layers"] + with_mtp)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    if "intermediate_size" in c:
        w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(1 if kind in families.MLA else c["num_key_value_heads"])
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type", rope.get("type")) == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in (("beta_fast", w.add_rope_scaling_yarn_beta_fast), ("beta_slow", w.add_rope_scaling_yarn_beta_slow)):
            if key in rope:
                add(rope[key])
    if "mrope_section" in rope:
        w.add_rope_dimension_sections((rope["mrope_section"] + [0])[:4])
    w.add_rope_freq_base(float(rope.get("rope_theta", c.get("rope_theta"))))
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if kind not in families.DENSE:
        w.add_expert_count(c.get("num_experts") or c.get("num_local_experts") or c["n_routed_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
    if kind in ("gpt_oss", "minimax_m2"):
        w.add_expert_feed_forward_length(c["intermediate_size"])
    elif "moe_intermediate_size" in c:
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if kind == "gpt_oss":
        w.add_sliding_window(c["sliding_window"])
    if kind == "minimax_m2":
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_rope_dimension_count(c["rotary_dim"])
    if kind == "hy_v3":
        w.add_expert_shared_feed_forward_length(c["moe_intermediate_size"] * c["num_shared_experts"])
        w.add_expert_weights_norm(c["route_norm"])
        w.add_expert_weights_scale(c["router_scaling_factor"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if kind == "qwen2_moe":
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if kind in ("mixtral", "llama"):
        w.add_vocab_size(c["vocab_size"])
        w.add_rope_dimension_count(c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])
    if "index_topk" in c:
        w.add_indexer_head_count(c["index_n_heads"])
        w.add_indexer_key_length(c["index_head_dim"])
        w.add_indexer_top_k(c["index_topk"])
    if with_mtp:
        w.add_nextn_predict_layers(1)
    if c.get("head_dim"):
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if kind in families.HYBRID:
        if kind not in families.DENSE:
            w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        if kind == "qwen3_next":
            w.add_array("qwen3next.attention.recurrent_layers", [t == "linear_attention" for t in c["layer_types"]] + [False] * with_mtp)   # later than gguf 0.19
        w.add_full_attention_interval(c["full_attention_interval"])
        w.add_rope_dimension_count(int(c["head_dim"] * rope.get("partial_rotary_factor", 0.25)))
    if kind in families.MLA or kind == "glm4_moe":
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        if c["norm_topk_prob"]:
            w.add_expert_weights_norm(True)
    if kind == "glm4_moe":
        w.add_rope_dimension_count(int(c["head_dim"] * c["partial_rotary_factor"]))
    if kind in families.MLA:
        w.add_vocab_size(c["vocab_size"])
        if c.get("q_lora_rank"):
            w.add_q_lora_rank(c["q_lora_rank"])
        w.add_kv_lora_rank(c["kv_lora_rank"])
        w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
        w.add_value_length(c["kv_lora_rank"])
        w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        w.add_value_length_mla(c["v_head_dim"])
        w.add_rope_dimension_count(c["qk_rope_head_dim"])
        if "mscale_all_dim" in rope:
            w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(TOKENIZERS.get(kind, "qwen2"))
    w.add_token_list([f"t{i}" for i in range(c["vocab_size"])])
    w.add_eos_token_id(2)


def write(out, cfg, writer, with_mtp, split):
    for old in out.glob("*.gguf"):
        old.unlink()
    per = -(-len(writer.tensors) // split)
    for part in range(split):
        name = "model.gguf" if split == 1 else f"model-{part + 1:05d}-of-{split:05d}.gguf"
        w = gguf.GGUFWriter(out / name, ARCH[cfg["model_type"]])
        if part == 0:
            metadata(w, cfg, with_mtp)
        if split > 1:
            w.add_uint16("split.no", part)
            w.add_uint16("split.count", split)
            w.add_int32("split.tensors.count", len(writer.tensors))
        for tensor, data, kind in writer.tensors[part * per:(part + 1) * per]:
            if kind in (T.F32, T.F16):
                w.add_tensor(tensor, data)
            else:
                w.add_tensor(tensor, np.ascontiguousarray(data).view(np.uint8), raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--family", required=True, choices=ARCH)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=True)
    ap.add_argument("--work", help="work directory of setup.sh (or set ORACLE_WORK)")
    ap.add_argument("--tokens", default="24", help="how many random tokens")
    ap.add_argument("--types", default="", help="PATTERN=TYPE,...: the first that fits")
    ap.add_argument("--fused", action="store_true", help="gate and up of experts in one tensor")
    ap.add_argument("--mtp", action="store_true", help="also write a layer that predicts further tokens")
    ap.add_argument("--split", type=int, default=1)
    ap.add_argument("--margin", type=float, default=0.1)
    ap.add_argument("--router-bias", type=float, default=0.0)
    families.add_flags(ap)
    a = ap.parse_args()
    cfg = families.build(a.family, {k: getattr(a, k) for k in families.GEOMETRY}, a.sets)
    whole, cfg = cfg, dict(cfg.get("text_config", cfg), model_type=cfg["model_type"])
    out = Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    model = make_case.build_model(whole)
    make_case.fill(model, a.seed, model.config.tie_word_embeddings, router_bias=a.router_bias)
    writer = Writer(a.types, a.seed)
    with torch.no_grad():
        for name, v in model.state_dict().items():
            if not (name == "lm_head.weight" and model.config.tie_word_embeddings or name.startswith("model.visual.")):
                v.copy_(torch.from_numpy(np.ascontiguousarray(store(writer, cfg, name, v.numpy().copy(), a.fused))))
    if (cfg.get("rope_scaling") or {}).get("rope_type") == "llama3":
        frequency_divisors(writer, cfg)
    if a.mtp:
        mtp(writer, cfg, cfg["num_hidden_layers"])
    toks = make_case.choose_tokens(model, int(a.tokens), cfg["vocab_size"], a.seed, a.margin)
    logits, margin = make_case.run(model, toks)
    write(out, cfg, writer, int(a.mtp), a.split)
    oraclelib.dump(out / "tokens.json", toks)
    np.save(out / "logits.npy", logits)
    kinds = sorted({kind.name for _, _, kind in writer.tensors})
    info = dict(kind="gguf", family=cfg["model_type"], seed=a.seed, tokens=len(toks), types=kinds, activations="f32", parts=a.split,
                router_margin=round(margin, 5) if np.isfinite(margin) else None,
                made_with=f"gguf 0.19.0, torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}")
    oraclelib.dump(out / "case.json", info)
    if not np.isfinite(logits).all():
        sys.exit(f"error: {out.name}: not finite")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{a.family}: seed {a.seed}, {len(toks)} tokens, {size / 1e6:.2f} MB, router margin {info['router_margin']}, {' '.join(kinds)}")


if __name__ == "__main__":
    main()
