#!/usr/bin/env python3
"""make_case.py --family F --seed S --out DIR [--work WORKDIR]: a tiny random checkpoint and the logits transformers computes for it.

Writes config.json and safetensors named and laid out as published checkpoints are, tokens.json, logits.npy (float32,
[tokens, vocab], computed in float32 from exactly the stored weights) and case.json (how it was made).
--dtype fp8: as DeepSeek publishes it, linear weights in F8_E4M3 with one float32 factor per 128 x 128 block, the rest bf16.
  --fp8-block, --fp8-scale and --fp8-scheme give other blocks, factors and spellings.
--dtype int4, mxfp4: experts as compressed-tensors packs them, by its own functions, the rest bf16.
Every weight is random, norms, biases, A_log and the correction bias too, so that a forgotten term cannot hide.
"""
import argparse, os, re, sys, tempfile
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import families, oraclelib
oraclelib.enter("ve-torch", "torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import numpy as np, torch, transformers
from safetensors.torch import save_file
from torch.nn import functional as F

KEEP_F32 = ("A_log", "e_score_correction_bias")      # float32 even in published bf16 checkpoints
TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "fp8": torch.bfloat16, "int4": torch.bfloat16, "mxfp4": torch.bfloat16}
GROUP = 32                                           # columns per factor of int4 and mxfp4


class Fp8:
    """How --dtype fp8 stores factors: rows and columns of each, their type, and the names of tensors.

    deepseek: weight_scale_inv. v4: scale, as DeepSeek V4. channel: weight_scale for each row, as compressed-tensors."""

    def __init__(self, block=(128, 128), scale="f32", scheme="deepseek"):
        self.block, self.scale, self.scheme = block, scale, scheme
        self.suffix = {"deepseek": "_scale_inv", "v4": "", "channel": "_scale"}[scheme]

    def name(self, weight):
        return weight.removesuffix(".weight") + ".scale" if self.scheme == "v4" else weight + self.suffix

    def config(self):
        if self.scheme == "channel":
            w = dict(num_bits=8, type="float", strategy="channel", symmetric=True, dynamic=False)
            a = dict(num_bits=8, type="float", strategy="token", symmetric=True, dynamic=True)
            return compressed("float-quantized", w, a)
        q = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=list(self.block))
        return dict(q, scale_fmt="ue8m0") if self.scale == "e8m0" else q


def compressed(form, weights, activations=None):
    """A quantization_config of compressed-tensors, which names what is not quantised by patterns."""
    return dict(quant_method="compressed-tensors", format=form, quantization_status="compressed", kv_cache_scheme=None, global_compression_ratio=None,
                ignore=["lm_head", "re:.*embed_tokens.*", "re:.*mlp.gate$"] + ([] if form == "float-quantized" else ["re:.*self_attn.*", "re:.*shared_experts.*"]),
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=activations, output_activations=None)))


INT4 = dict(num_bits=4, type="int", strategy="group", group_size=GROUP, symmetric=True, dynamic=False, actorder=None)
MXFP4 = dict(num_bits=4, type="float", strategy="group", group_size=GROUP, symmetric=True, dynamic=False, scale_dtype="torch.uint8")


def text_config(cfg):
    """The transformers config object of the text model described by config.json."""
    cfg = {k: v for k, v in cfg.items() if k != "quantization_config"}
    if cfg["model_type"] in ("qwen3_5_moe", "qwen3_5_moe_text"):
        return transformers.Qwen3_5MoeTextConfig.from_dict(cfg.get("text_config", cfg))
    if cfg["model_type"] in ("qwen3_5", "qwen3_5_text"):
        return transformers.Qwen3_5TextConfig.from_dict(cfg.get("text_config", cfg))
    if cfg["model_type"] in ("qwen4_exp", "qwen4_exp_text"):
        return transformers.AutoConfig.for_model("qwen4_exp_text").from_dict(cfg.get("text_config", cfg))
    if cfg["model_type"] in ("kimi_k2", "kimi_k25"):  # the same model class as deepseek_v3
        return transformers.DeepseekV3Config.from_dict(dict(cfg.get("text_config", cfg), model_type="deepseek_v3"))
    return transformers.AutoConfig.for_model(cfg["model_type"]).from_dict(cfg)


def build_model(cfg):
    tc = text_config(cfg)
    tc._attn_implementation = "eager"
    if cfg["model_type"] == "qwen3_vl_moe":          # no class of the language model alone has a head
        return transformers.Qwen3VLMoeForConditionalGeneration._from_config(
            tc, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    return transformers.AutoModelForCausalLM.from_config(tc, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()


def fill(model, seed, tied, router_bias=0.0, qk_scale=1.0):
    g = torch.Generator().manual_seed(seed)
    if model.config.model_type == "gpt_oss":          # the class draws these from torch's global generator, which nothing seeds
        for k, p in model.named_parameters():
            if k.endswith("router.bias"):
                torch.nn.init.zeros_(p)
    rnd = lambda p: torch.randn(p.shape, generator=g)
    with torch.no_grad():
        for k, p in list(model.named_parameters()) + [(k, b) for k, b in model.named_buffers() if "correction_bias" in k]:
            if "embed_tokens" in k:
                p.copy_(rnd(p) * (1.5 * p.shape[1] ** -0.5 if tied else 0.5))
            elif re.search(r"mlp\.(gate|router)\.weight$", k):
                p.copy_(rnd(p) * (2.0 * p.shape[-1] ** -0.5))        # decided routing: experts get different weights
            elif k.endswith(("hc_norm.weight", "norm_key.weight", "norm_query.weight", "norm_conv.weight")):
                p.copy_(rnd(p) * 0.2)                                # each stream has gains of its own
            elif "A_log" in k:
                p.copy_(torch.rand(p.shape, generator=g) * 2)
            elif k.endswith("sinks"):
                p.copy_(rnd(p))
            elif k.endswith("proj_bias"):
                p.copy_(rnd(p) * 0.1)
            elif p.ndim >= 2:
                fan_in = p.shape[-2] if isinstance_gpt_oss_expert(model, k) else p.shape[-1]
                p.copy_(rnd(p) * fan_in ** -0.5)
            else:
                p.add_(rnd(p) * 0.1 + (router_bias if "correction_bias" in k else 0.0))
        for m in model.modules():
            if type(m).__name__.endswith("GatedDeltaNet"):
                condition_delta_net(m, qk_scale)


def condition_delta_net(m, qk_scale):
    """Make keys resemble queries and the convolution's last tap dominate, as in trained models.

    The output is normalised after q.k has scaled it, so with unrelated q and k its sign turns on a value near 0: rounding errors
    grow a thousandfold and neither bf16 nor int8 activations can be judged."""
    m.conv1d.weight[..., -1] += 1.5
    nk, dk, dv, r = m.num_k_heads, m.head_k_dim, m.head_v_dim, m.num_v_heads // m.num_k_heads
    if hasattr(m, "in_proj_qkvz"):                    # qwen3_next: per key head q, k, r values, r gates
        w = m.in_proj_qkvz.weight.view(nk, 2 * dk + 2 * r * dv, -1)
        w[:, dk:2 * dk] = 0.8 * w[:, :dk] + 0.6 * w[:, dk:2 * dk]
    else:
        w, n = m.in_proj_qkv.weight, nk * dk
        w[n:2 * n] = 0.8 * w[:n] + 0.6 * w[n:2 * n]
    m.conv1d.weight[:2 * nk * dk] *= qk_scale         # small keys and queries make the epsilon of their norm visible


def isinstance_gpt_oss_expert(model, k):
    """gpt_oss stores expert matrices input first, all other families output first."""
    return model.config.model_type == "gpt_oss" and ".experts." in k


# Per family: names in the model, and what published checkpoints call them.
PUBLISHED = {
    "mixtral": [(r"\.mlp\.", ".block_sparse_moe."), (r"\.gate_proj\.", ".w1."), (r"\.up_proj\.", ".w3."), (r"\.down_proj\.", ".w2.")],
    "hy_v3": [(r"\.mlp\.gate\.weight", ".mlp.router.gate.weight"), (r"\.mlp\.e_score_correction_bias", ".mlp.expert_bias"),
              (r"\.mlp\.shared_experts\.", ".mlp.shared_mlp.")],
    "kimi_k25": [(r"^", "language_model.")],
}
PUBLISHED["minimax_m2"] = PUBLISHED["mixtral"]


def published_name(k, cfg):
    for pattern, name in PUBLISHED.get(cfg["model_type"], []):
        k = re.sub(pattern, name, k)
    return k


def published_names(model, cfg, layout):
    """{published name: view into the model's own tensor}. layout: fused | per-expert."""
    found = own_names(model, cfg, layout)
    if cfg["model_type"] == "qwen3_vl_moe":          # input first, as gpt_oss
        found = {k: v.transpose(1, 2) if v.ndim == 3 and ".experts." in k else v for k, v in found.items()}
    return {published_name(k, cfg): v for k, v in found.items()}


def own_names(model, cfg, layout):
    gpt = cfg["model_type"] == "gpt_oss"
    out = {}
    for k, v in model.state_dict().items():
        if k == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if cfg["model_type"] in ("qwen3_5_moe", "qwen3_5", "qwen4_exp") and k.startswith("model."):
            k = "model.language_model." + k[len("model."):]
        if k.endswith("ngram_embedding.weight"):
            for i, part in enumerate(v.chunk(model.config.split_ngram_parts, 0)):
                out[k.replace(".weight", f".shard_{i}.weight")] = part
            continue
        m = re.match(r"(.*\.mlp\.experts\.)(gate_up_proj|down_proj)$", k)
        if m and layout == "per-expert" and not gpt:
            for e in range(v.shape[0]):
                if m[2] == "down_proj":
                    out[f"{m[1]}{e}.down_proj.weight"] = v[e]
                else:
                    out[f"{m[1]}{e}.gate_proj.weight"], out[f"{m[1]}{e}.up_proj.weight"] = v[e].chunk(2, 0)
        else:
            out[k] = v
    return out


def store(model, cfg, seed, dtype, layout, a_log, fp8=Fp8()):
    """The tensors as written to file; the model's own are set to the values stored."""
    g, out = torch.Generator().manual_seed(seed + 55), {}
    with torch.no_grad():
        for k, v in published_names(model, cfg, layout).items():
            if v.dtype == torch.int64:                   # constants of hashes
                out[k] = v.clone()
            elif dtype == "fp8" and v.ndim == 2 and not re.search(r"(embed_tokens|lm_head|mlp\.gate)\.weight$", k):
                q, s, factors = to_fp8(v, g, fp8)
                out[k], out[fp8.name(k)] = q, s
                v.copy_(q.float() * per_value(factors, v.shape, fp8.block))
            elif dtype == "mxfp4" and re.search(r"\.mlp\.experts\.(gate_up|down)_proj$", k):     # gpt_oss: rows are outputs, 16 bytes a block
                rows = v.transpose(1, 2)
                parts, values = to_mxfp4(rows.reshape(-1, rows.shape[2]), g)
                out[k + "_blocks"] = parts["packed"].reshape(*rows.shape[:2], -1, GROUP // 2)
                out[k + "_scales"] = parts["scale"].reshape(*rows.shape[:2], -1)
                v.copy_(values.reshape(rows.shape).transpose(1, 2))
            elif dtype in ("int4", "mxfp4") and re.search(r"\.mlp\.experts\.\d+\..*\.weight$", k):
                parts, values = (to_int4 if dtype == "int4" else to_mxfp4)(v, g)
                out.update({f"{k}_{part}": t for part, t in parts.items()})
                v.copy_(values)
            else:
                to = TORCH[a_log] if k.endswith("A_log") else torch.float32 if k.endswith(KEEP_F32) else TORCH[dtype]
                out[k] = v.to(to).contiguous().clone()
                v.copy_(out[k].float())
    return out


def per_value(s, shape, block):
    """A factor per block as a factor per value."""
    return s.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:shape[0], :shape[1]]


def to_fp8(w, g, fp8):
    """E4M3 values, a factor per block as stored, and as float32; the factors differ by up to 64, so that a wrong block shows and subnormals occur."""
    if fp8.scheme == "channel":
        fp8.block = (1, 1 << 20)
    block = fp8.block
    rows, cols = (-(-n // b) for n, b in zip(w.shape, block))
    s = torch.empty(rows, cols)
    for i in range(rows):
        for j in range(cols):
            s[i, j] = w[i * block[0]:(i + 1) * block[0], j * block[1]:(j + 1) * block[1]].abs().max() / 448
    s *= 2.0 ** (6 * torch.rand(s.shape, generator=g))
    if fp8.scale == "e8m0":
        e = s.log2().ceil().clamp(-127, 127)
        stored, s = (e + 127).to(torch.uint8).view(torch.float8_e8m0fnu), 2.0 ** e
    else:
        stored = s.to(TORCH[fp8.scale])
        s = stored.float()
    return (w / per_value(s, w.shape, block)).to(torch.float8_e4m3fn), stored, s


def to_int4(w, g):
    """Codes from -8 to 7 under bf16 factors, packed by compressed-tensors; some factors are negative, zero or tiny."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    x = w.reshape(w.shape[0], -1, GROUP)
    s = (x.abs().amax(-1) / 7.5).to(torch.bfloat16).float()
    s = torch.where(torch.rand(s.shape, generator=g) < 0.1, -s, s)
    q = (x / s[..., None]).round().clamp(-8, 7)
    q.view(-1)[:GROUP] = torch.arange(GROUP) % 16 - 8                 # every code
    s.view(-1)[1::7], s.view(-1)[2::11] = 0.0, 2.0 ** -130            # zeros, and subnormal in f32
    parts = {"packed": pack_to_int32(q.reshape(w.shape).to(torch.int8), 4), "scale": s.to(torch.bfloat16), "shape": torch.tensor(w.shape)}
    # compressed-tensors would round products to the factors' type.
    return parts, (q * s[..., None]).reshape(w.shape)


def to_mxfp4(w, g):
    """E2M1 codes, packed by compressed-tensors, under powers of two; some of the least of these, and every code."""
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    x = w.reshape(w.shape[0], -1, GROUP)
    e = (x.abs().amax(-1).log2().floor() - 2 + torch.randint(0, 2, x.shape[:-1], generator=g)).clamp(-127, 127)
    e.view(-1)[1::7], e.view(-1)[2::11], e.view(-1)[3::13] = -127.0, -126.0, -125.0
    q = x / 2.0 ** e.double()[..., None]
    q = torch.copysign(grid.double()[(q.abs()[..., None] - grid.double()).abs().argmin(-1)], q).float()
    q.view(-1)[:GROUP] = torch.cat([grid, -grid]).repeat(GROUP // 16)
    parts = {"packed": pack_fp4_to_uint8(q.reshape(w.shape)), "scale": (e + 127).to(torch.uint8)}
    return parts, (q.double() * 2.0 ** e.double()[..., None]).float().reshape(w.shape)


def extras(cfg, state, seed):
    """Tensors that published checkpoints carry and a text-only forward pass must skip: vision tower, MTP layer."""
    g = torch.Generator().manual_seed(seed + 77)
    dt = state[next(k for k in state if k.endswith("embed_tokens.weight"))].dtype
    t = lambda *s: torch.randn(s, generator=g).to(dt)
    n, h = cfg.get("text_config", cfg)["num_hidden_layers"], cfg.get("text_config", cfg)["hidden_size"]
    if cfg["model_type"] in ("qwen3_5_moe", "qwen3_5", "qwen4_exp"):
        v = cfg["vision_config"]["hidden_size"]
        state.update({"model.visual.patch_embed.proj.weight": t(v, 3, 2, 4, 4), "model.visual.patch_embed.proj.bias": t(v),
                      "model.visual.blocks.0.norm1.weight": t(v), "model.visual.merger.linear_fc2.weight": t(h, v)})
    if cfg["model_type"] in families.HYBRID:
        state.update({"mtp.fc.weight": t(8, 2 * h), "mtp.norm.weight": t(h), "mtp.pre_fc_norm_embedding.weight": t(h),
                      "mtp.layers.0.input_layernorm.weight": t(h), "mtp.layers.0.mlp.gate.weight": t(8, h)})
    elif cfg.get("num_nextn_predict_layers"):
        p = f"model.layers.{n}."
        state.update({p + "eh_proj.weight": t(8, 2 * h), p + "enorm.weight": t(h), p + "hnorm.weight": t(h),
                      p + "input_layernorm.weight": t(h), p + "shared_head.norm.weight": t(h),
                      p + "embed_tokens.weight": t(8, h), p + "self_attn.o_proj.weight": t(8, h)})
        if cfg.get("quantization_config", {}).get("quant_method") == "fp8":
            state[p + "self_attn.o_proj.weight"], state[p + "self_attn.o_proj.weight_scale_inv"], _ = to_fp8(t(8, h).float(), g, Fp8())


def write_weights(out, state, shards):
    for f in out.glob("model*.safetensors*"):
        f.unlink()
    if shards < 2:
        save_file(state, out / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(state)
    per = -(-len(names) // shards)
    where = {}
    for i in range(shards):
        part = {k: state[k] for k in names[i * per:(i + 1) * per]}
        f = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, out / f, metadata={"format": "pt"})
        where.update({k: f for k in part})
    total = sum(v.numel() * v.element_size() for v in state.values())
    oraclelib.dump(out / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def selection_gaps(mod, x, correction=None):
    """For each row of x: the gap between the last expert (or group) chosen and the first left out, divided by the spread of the scores."""
    s = F.linear(x.float(), mod.weight.float(), getattr(mod, "bias", None))
    bias, best = getattr(mod, "e_score_correction_bias", correction), torch.full((len(x),), float("inf"))

    def gap(v, k):
        v = v.sort(-1, descending=True)[0]
        return (v[:, k - 1] - v[:, k]) if k < v.shape[-1] else torch.full((len(v),), float("inf"))

    if bias is not None:
        s = s.sigmoid() + bias
    spread = s.std(-1)
    groups, keep = getattr(mod, "num_group", 1) or 1, getattr(mod, "topk_group", 1)
    if groups > 1:
        g = s.view(len(s), groups, -1)
        v = g.topk(2, -1)[0].sum(-1)
        best = torch.minimum(best, gap(v, keep))
        m = torch.zeros_like(v).scatter_(1, v.topk(keep, -1)[1], 1.0)
        s = g.masked_fill(m[..., None] == 0, -1e9).reshape(len(s), -1)
    return torch.minimum(best, gap(s, mod.top_k)) / spread


INDEX_SHARE = 0.2                                    # an indexer chooses among many more scores than a router: its gaps are smaller


def position_gaps(scores, k):
    """For each query of an indexer: the gap between the last position chosen and the first left out, divided by the spread of the scores."""
    v = scores.float().sort(-1, descending=True)[0]
    n_seen = (v > -1e30).sum(-1)                     # the mask adds -inf or the lowest number
    gaps = torch.full(v.shape[:-1], float("inf"))
    for at in (n_seen > k).nonzero():
        row = v[tuple(at)][:n_seen[tuple(at)]]
        gaps[tuple(at)] = (row[k - 1] - row[k]) / row.std()
    return gaps / INDEX_SHARE


class Margins:
    """While open, records selection_gaps of every router call and position_gaps of every indexer call."""

    def __init__(self, model, last_only=False):
        self.model, self.last, self.gaps = model, last_only, []

    def __enter__(self):
        def hook(mod, args, _out):
            x = args[0].detach().reshape(-1, args[0].shape[-1])
            if self.last:
                x = x.view(self.batch, -1, x.shape[-1])[:, -1]
            self.gaps.append(selection_gaps(mod, x, *args[1:]))
        own_topk = torch.Tensor.topk

        def add(gaps):
            self.gaps.append(gaps[:, -1] if self.last else gaps.reshape(-1))

        def topk(scores, k, *args, **kwargs):            # the only place where an indexer shows its scores
            gaps = position_gaps(scores.detach(), k)
            add(gaps) if scores.dim() > 1 else of_blocks.append(gaps)
            return own_topk(scores, k, *args, **kwargs)

        def end(mod, _args, out):
            torch.Tensor.topk = own_topk
            if of_blocks:                                # scored row by row, from the first whole block on
                batch, n_rows = out.shape[0], out.shape[-2]
                first = torch.full((batch, mod.compress_ratio - 1), float("inf"))
                add(torch.cat([first, torch.stack(of_blocks).view(batch, n_rows - mod.compress_ratio + 1)], 1))
                of_blocks.clear()

        of_blocks = []
        start = lambda *_: setattr(torch.Tensor, "topk", topk)
        named = lambda end: [m for m in self.model.modules() if type(m).__name__.lower().endswith(end)]
        self.hooks = [m.register_forward_hook(hook) for m in named("topkrouter")]
        for m in named("indexer"):
            self.hooks += [m.register_forward_pre_hook(start), m.register_forward_hook(end)]
        return self

    def __exit__(self, *_):
        for h in self.hooks:
            h.remove()

    def worst(self):
        return torch.stack(self.gaps).min(0)[0] if self.gaps else torch.tensor([float("inf")])    # without routers nothing is near a tie


def run(model, toks):
    """Logits [tokens, vocab] and the smallest relative margin over all tokens and layers."""
    with torch.no_grad(), Margins(model) as m:
        out = model(torch.tensor([toks]), use_cache=False).logits[0].float().numpy()
    return out, float(m.worst().min())


def choose_tokens(model, n, vocab, seed, want, start=()):
    """n random tokens such that no routing decision is a near tie: each is redrawn until its margin in all layers reaches `want`.

    Without this a rounding error of 1e-6 may flip an expert and change the logits by per cents, and no tolerance is right."""
    rng, toks = np.random.default_rng(seed + 1000), list(start)
    while len(toks) < n:
        best = (-1.0, 0)
        for width in (8, 24):
            cand = rng.integers(0, vocab, width)
            with torch.no_grad(), Margins(model, last_only=True) as m:
                m.batch = width
                model.model(torch.tensor([toks + [int(c)] for c in cand]), use_cache=False)
            w = m.worst()
            ok = (w >= want).nonzero()
            i = int(ok[0]) if len(ok) else int(w.argmax())
            best = max(best, (float(w[i]), int(cand[i])))
            if best[0] >= want:
                break
        toks.append(best[1])
    return toks


def reload_logits(out, cfg, toks):
    """Load the written files with transformers' own loader, as a user would."""
    tc = text_config(cfg)
    cls = type(build_model(cfg))
    with tempfile.TemporaryDirectory() as tmp:
        src, more = out, {}
        if cfg["model_type"] == "gpt_oss" and "quantization_config" in cfg:
            tc, more = None, dict(quantization_config=transformers.Mxfp4Config(dequantize=True))
        elif "quantization_config" in cfg:                # transformers' own fp8 kernels want a GPU
            import dequant
            src = Path(tmp)
            save_file({k: v.contiguous() for k, v in dequant.read_published(out).items()}, src / "model.safetensors", metadata={"format": "pt"})
            oraclelib.dump(src / "config.json", {k: v for k, v in cfg.items() if k != "quantization_config"})
        elif cfg["model_type"] == "kimi_k25":           # the class that is computed with has no prefix
            from safetensors.torch import load_file
            src = Path(tmp)
            state = {k: v for f in out.glob("model*.safetensors") for k, v in load_file(f).items()}
            save_file({k.removeprefix("language_model."): v for k, v in state.items()}, src / "model.safetensors", metadata={"format": "pt"})
            oraclelib.dump(src / "config.json", cfg["text_config"])
        m = cls.from_pretrained(src, config=tc, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", **more).eval()
    with torch.no_grad():
        return m(toks, use_cache=False).logits[0].float().numpy()


def resave(out, cfg, dtype):
    """config.json in the words of transformers 5: rope_parameters, num_local_experts, dtype."""
    tc = text_config(cfg)
    tc.dtype, tc.architectures = TORCH[dtype], cfg["architectures"]
    tc.save_pretrained(out)


def generate(out, cfg, seed, tokens, dtype="f32", layout="per-expert", shards=1, with_extras=False, a_log="f32", margin=0.1, resaved=False, fp8=None, **tweaks):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    t = cfg.get("text_config", cfg)
    t["dtype" if "text_config" in cfg else "torch_dtype"] = str(TORCH[dtype]).removeprefix("torch.")
    fp8 = fp8 or Fp8()
    if dtype == "fp8":
        cfg["quantization_config"] = fp8.config()
    elif cfg["model_type"] == "gpt_oss" and dtype == "mxfp4":
        cfg["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                                         "model.embed_tokens", "lm_head"])
    elif dtype in ("int4", "mxfp4"):
        cfg["quantization_config"] = compressed("pack-quantized" if dtype == "int4" else "mxfp4-pack-quantized", INT4 if dtype == "int4" else MXFP4)
    if resaved:
        resave(out, cfg, dtype)
    else:
        oraclelib.dump(out / "config.json", cfg)
    torch.set_num_threads(1)
    model = build_model(cfg)
    fill(model, seed, model.config.tie_word_embeddings, **tweaks)
    state = store(model, cfg, seed, dtype, layout, a_log, fp8)
    if "," in str(tokens):
        toks = [int(x) for x in tokens.split(",")]
    else:
        toks = choose_tokens(model, int(tokens), t["vocab_size"], seed, margin)
    logits, got = run(model, toks)
    if with_extras:
        extras(cfg, state, seed)
    write_weights(out, state, shards)
    oraclelib.dump(out / "tokens.json", toks)
    np.save(out / "logits.npy", logits)
    again = float(np.abs(reload_logits(out, cfg, torch.tensor([toks])) - logits).max())
    info = dict(kind="transformers", family=cfg["model_type"], seed=seed, tokens=len(toks), weights=dtype, experts=layout,
                shards=shards, extras=with_extras, activations="f32", router_margin=round(got, 5) if np.isfinite(got) else None, reload_max_abs=again,
                made_with=f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}")
    oraclelib.dump(out / "case.json", info)
    if not (np.isfinite(logits).all() and again < 1e-3):
        sys.exit(f"error: {out.name}: not finite, or the files do not load back to the same model ({again:.1e})")
    return info


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--family", required=True, choices=families.FAMILIES)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=True)
    ap.add_argument("--work", help="work directory of setup.sh (or set ORACLE_WORK)")
    ap.add_argument("--tokens", default="24", help="how many random tokens (default 24), or a comma list of ids")
    ap.add_argument("--dtype", choices=TORCH, default="f32", help="how weights are stored; logits are computed in f32 from them")
    ap.add_argument("--fp8-block", type=lambda s: tuple(int(n) for n in s.split("x")), default=(128, 128), help="rows x columns per factor (default 128x128)")
    ap.add_argument("--fp8-scale", choices=["f32", "bf16", "e8m0"], default="f32", help="type of the factors")
    ap.add_argument("--fp8-scheme", choices=["deepseek", "v4", "channel"], default="deepseek", help="names of the factors, or one per row as compressed-tensors")
    ap.add_argument("--expert-layout", choices=["fused", "per-expert"], help="default: as published for the family")
    ap.add_argument("--a-log", choices=["f32", "bf16", "f16"], default="f32", help="how A_log is stored (f32 and bf16 both occur in bf16 checkpoints)")
    ap.add_argument("--shards", type=int, default=1)
    ap.add_argument("--extras", action="store_true", help="also write vision and MTP tensors, which the engine must skip")
    ap.add_argument("--margin", type=float, default=0.1, help="wanted distance of every routing decision from a tie, in units of "
                    "the scores' spread (tokens are redrawn until they reach it; default 0.1)")
    ap.add_argument("--resaved", action="store_true", help="config.json as transformers 5 writes it when it saves (families with a flat config)")
    ap.add_argument("--router-bias", type=float, default=0.0, help="mean of e_score_correction_bias; below -1 every score is negative, "
                    "which shows whether excluded groups count as minus infinity or as 0")
    ap.add_argument("--qk-scale", type=float, default=1.0, help="scale of the delta net's queries and keys before their norm; "
                    "0.02 shows where its epsilon is added")
    families.add_flags(ap)
    a = ap.parse_args()
    layout = a.expert_layout or families.DEFAULT_EXPERTS.get(a.family, "per-expert")
    if a.family == "gpt_oss" and layout != "fused":
        sys.exit("error: gpt_oss experts are only ever stored fused")
    if a.dtype == "fp8" and (a.family not in families.MLA + families.DENSE or layout != "per-expert"):
        sys.exit("error: --dtype fp8 is for the deepseek and dense families, experts stored one by one")
    if a.dtype in ("int4", "mxfp4") and layout != "per-expert" and (a.family, a.dtype) != ("gpt_oss", "mxfp4"):
        sys.exit("error: --dtype int4 and mxfp4 are for experts stored one by one")
    if a.resaved and (a.family in ("qwen3_5_moe", "qwen3_5", "qwen4_exp", "kimi_k2") or a.dtype in ("fp8", "int4", "mxfp4")):
        sys.exit("error: --resaved is for families that transformers 5 saves with a flat config, not for fp8, int4 and mxfp4")
    cfg = families.build(a.family, {k: getattr(a, k) for k in families.GEOMETRY}, a.sets)
    info = generate(a.out, cfg, a.seed, a.tokens, a.dtype, layout, a.shards, a.extras, a.a_log, a.margin, a.resaved,
                    fp8=Fp8(a.fp8_block, a.fp8_scale, a.fp8_scheme), router_bias=a.router_bias, qk_scale=a.qk_scale)
    size = sum(f.stat().st_size for f in Path(a.out).iterdir())
    print(f"{a.family}: seed {info['seed']}, {info['tokens']} tokens, {size / 1e6:.2f} MB, router margin {info['router_margin']}, reload {info['reload_max_abs']:.1e}")


if __name__ == "__main__":
    main()
