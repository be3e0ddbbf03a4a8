"""The demo model in PyTorch: qwen3_5_moe (text), written to train fast on one GPU and to equal transformers' arithmetic.

Parameter names are those of transformers' Qwen3_5MoeForCausalLM. Every expert is computed for every token and weighted by zero
where it was not chosen: with 24 narrow experts two plain matrix products beat sorting. Documents packed into one row do not see
each other (`doc`: an id per token; attention, convolution and delta state stop at its changes).
"""
import math
import torch
from torch import nn
from torch.nn import functional as F

CHUNK = 64


def config(vocab, eos, **more):
    """text_config of config.json: the geometry of the demo model, with the keys of the published family."""
    c = dict(model_type="qwen3_5_moe_text", vocab_size=vocab, hidden_size=256, num_hidden_layers=8, full_attention_interval=4,
             num_attention_heads=4, num_key_value_heads=2, head_dim=64, hidden_act="silu", max_position_embeddings=4096,
             rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=False, attention_dropout=0.0, attn_output_gate=True,
             initializer_range=0.02, use_cache=True, linear_conv_kernel_dim=4, linear_key_head_dim=64, linear_num_key_heads=2,
             linear_num_value_heads=4, linear_value_head_dim=64, mamba_ssm_dtype="float32", mlp_only_layers=[],
             moe_intermediate_size=64, mtp_num_hidden_layers=0, mtp_use_dedicated_embeddings=False, num_experts=24,
             num_experts_per_tok=4, router_aux_loss_coef=0.001, shared_expert_intermediate_size=128, eos_token_id=eos,
             pad_token_id=None, dtype="bfloat16")
    c.update(more)
    half = int(c["head_dim"] * 0.25) // 2
    w = half // 3
    c["rope_parameters"] = dict(mrope_interleaved=True, mrope_section=[half - 2 * w, w, w], partial_rotary_factor=0.25,
                                rope_theta=10000, rope_type="default")
    n = c["full_attention_interval"]
    c["layer_types"] = ["linear_attention" if (i + 1) % n else "full_attention" for i in range(c["num_hidden_layers"])]
    return c


class Norm(nn.Module):
    """(1 + w) * x / rms(x)"""

    def __init__(self, dim, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        x32 = x.float()
        return x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


class Weight(nn.Module):
    """A named tensor."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))


class UnitLowerInverse(torch.autograd.Function):
    """(I + L)^-1 of strictly lower triangular L [..., 64, 64], by doubling the size of the diagonal blocks known."""

    @staticmethod
    def forward(ctx, low, masks, eye):
        inv = eye - low * masks[0]
        for m in masks[1:]:
            inv = inv - inv @ ((low * m) @ inv)
        ctx.save_for_backward(inv)
        return inv

    @staticmethod
    def backward(ctx, grad):
        (inv,) = ctx.saved_tensors
        t = inv.transpose(-1, -2)
        return -(t @ grad @ t), None, None


def block_masks(n=CHUNK):
    i = torch.arange(n)
    out, b = [], 1
    while b < n:
        out.append(((i[:, None] // (2 * b) == i // (2 * b)) & (i[:, None] // b > i // b)).float())
        b *= 2
    return torch.stack(out)


def chunk_inputs(q, k, v, g, beta, low):
    """All that does not depend on the state. q, k [B, G, 1, N, C, dk]; v [B, G, R, N, C, dv]; g, beta [B, G, R, N, C]; low: the triangle."""
    cum = g.cumsum(-1)
    decay = (cum.unsqueeze(-1) - cum.unsqueeze(-2)).masked_fill(~low, float("-inf")).exp()
    kt = k.transpose(-1, -2)
    system = (k @ kt) * decay * beta.unsqueeze(-1)
    attn = (q @ kt) * decay
    vb = v * beta.unsqueeze(-1)
    kb = k * (beta * cum.exp()).unsqueeze(-1)
    qs = q * cum.exp().unsqueeze(-1)
    ks = k * (cum[..., -1:] - cum).exp().unsqueeze(-1)
    return system, attn, vb, kb, qs, ks, cum[..., -1].exp()


def delta_rule(q, k, v, g, beta, masks, eye):
    """Chunked gated delta rule. q, k [B, T, G, dk], v [B, T, G * R, dv], g, beta [B, T, G * R], all f32 -> [B, T, G * R, dv]."""
    B, T, G, dk = k.shape
    H, dv = v.shape[2:]
    R, pad = H // G, -T % CHUNK
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * dk ** -0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, 0, 0, pad)) for x in (g, beta))
    N = (T + pad) // CHUNK
    q, k = (x.reshape(B, N, CHUNK, G, 1, dk).permute(0, 3, 4, 1, 2, 5) for x in (q, k))
    v = v.reshape(B, N, CHUNK, G, R, dv).permute(0, 3, 4, 1, 2, 5)
    g, beta = (x.reshape(B, N, CHUNK, G, R).permute(0, 3, 4, 1, 2) for x in (g, beta))
    low = masks.new_ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    system, attn, vb, kb, qs, ks, last = chunk_inputs(q, k, v, g, beta, low)
    inv = UnitLowerInverse.apply(system, masks, eye)
    per = lambda x: x.reshape(B * H, N, *x.shape[4:])
    u, w = per(inv @ vb).unbind(1), per(inv @ kb).unbind(1)
    kt, last = per(ks).transpose(-1, -2).unbind(1), last.reshape(B * H, N, 1, 1).unbind(1)
    S, states, news = u[0].new_zeros(B * H, dk, dv), [], []
    for i in range(N):
        states.append(S)
        new = torch.baddbmm(u[i], w[i], S, alpha=-1)
        news.append(new)
        if i + 1 < N:
            S = torch.baddbmm(S * last[i], kt[i], new)
    out = per(qs) @ torch.stack(states, 1) + per(attn) @ torch.stack(news, 1)
    return out.reshape(B, H, N * CHUNK, dv).transpose(1, 2)[:, :T]


def causal_conv(u, w, same):
    """silu(depthwise causal convolution). u [B, T, C], w [C, K]; same[s] [B, T, 1]: is the token s before in the same document."""
    K, T = w.shape[1], u.shape[1]
    y = u * w[:, K - 1]
    for s in range(1, min(K, T)):
        x = F.pad(u[:, :T - s], (0, 0, s, 0))
        if same is not None:
            x = x * same[s - 1]
        y = y + x * w[:, K - 1 - s]
    return F.silu(y)


class DeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.nk, self.nv, self.dk, self.dv = (c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"], c["linear_value_head_dim"])
        H, self.kd, self.vd, self.eps = c["hidden_size"], self.nk * self.dk, self.nv * self.dv, c["rms_norm_eps"]
        self.in_proj_qkv = nn.Linear(H, 2 * self.kd + self.vd, bias=False)
        self.in_proj_z = nn.Linear(H, self.vd, bias=False)
        self.in_proj_b = nn.Linear(H, self.nv, bias=False)
        self.in_proj_a = nn.Linear(H, self.nv, bias=False)
        self.out_proj = nn.Linear(self.vd, H, bias=False)
        self.conv1d = Weight(2 * self.kd + self.vd, 1, c["linear_conv_kernel_dim"])
        self.norm = Weight(self.dv)
        self.A_log = nn.Parameter(torch.zeros(self.nv))
        self.dt_bias = nn.Parameter(torch.zeros(self.nv))

    def forward(self, x, ctx):
        B, T, _ = x.shape
        u = causal_conv(self.in_proj_qkv(x), self.conv1d.weight.squeeze(1), ctx["same"])
        q, k, v = u.float().split([self.kd, self.kd, self.vd], -1)
        z, b, a = self.in_proj_z(x), self.in_proj_b(x).float(), self.in_proj_a(x).float()
        g = -self.A_log.exp() * F.softplus(a + self.dt_bias)
        if ctx["start"] is not None:                  # the state of the document before is gone
            g = torch.where(ctx["start"], -30.0, g)
        with torch.autocast(x.device.type, enabled=False):
            o = delta_rule(q.reshape(B, T, self.nk, self.dk), k.reshape(B, T, self.nk, self.dk), v.reshape(B, T, self.nv, self.dv),
                           g, b.sigmoid(), ctx["masks"], ctx["eye"])
        o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm.weight
        return self.out_proj((o * F.silu(z.float().reshape(B, T, self.nv, self.dv))).reshape(B, T, self.vd))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.nh, self.nkv, self.d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        H = c["hidden_size"]
        self.q_proj = nn.Linear(H, 2 * self.nh * self.d, bias=False)
        self.k_proj = nn.Linear(H, self.nkv * self.d, bias=False)
        self.v_proj = nn.Linear(H, self.nkv * self.d, bias=False)
        self.o_proj = nn.Linear(self.nh * self.d, H, bias=False)
        self.q_norm, self.k_norm = Norm(self.d, c["rms_norm_eps"]), Norm(self.d, c["rms_norm_eps"])

    def forward(self, x, ctx):
        B, T, _ = x.shape
        q, gate = self.q_proj(x).reshape(B, T, self.nh, 2 * self.d).chunk(2, -1)
        q, k = self.q_norm(q), self.k_norm(self.k_proj(x).reshape(B, T, self.nkv, self.d))
        v = self.v_proj(x).reshape(B, T, self.nkv, self.d)
        q, k = (rotate(t, ctx["cos"], ctx["sin"]).to(v.dtype).transpose(1, 2) for t in (q, k))
        k, v = (t.repeat_interleave(self.nh // self.nkv, 1) for t in (k, v.transpose(1, 2)))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=ctx["mask"], is_causal=ctx["mask"] is None)
        o = o.transpose(1, 2).reshape(B, T, self.nh * self.d) * torch.sigmoid(gate.reshape(B, T, self.nh * self.d))
        return self.o_proj(o)


def rotate(x, cos, sin):
    """Rope on the first channels of each head, paired with their half. x [B, T, heads, d]."""
    h = cos.shape[-1]
    a, b, rest = x[..., :h], x[..., h:2 * h], x[..., 2 * h:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Mlp(nn.Module):
    def __init__(self, H, width):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(H, width, bias=False), nn.Linear(H, width, bias=False)
        self.down_proj = nn.Linear(width, H, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    def __init__(self, E, H, width):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(E, 2 * width, H))
        self.down_proj = nn.Parameter(torch.zeros(E, H, width))

    def forward(self, x, w):
        """x [T, H], w [T, E]: the weight of each expert, mostly 0."""
        E, H, width = self.down_proj.shape
        gate, up = F.linear(x, self.gate_up_proj.reshape(-1, H)).reshape(-1, E, 2, width).unbind(2)
        a = F.silu(gate) * up * w.to(gate.dtype).unsqueeze(-1)
        return F.linear(a.reshape(-1, E * width), self.down_proj.permute(1, 0, 2).reshape(H, E * width))


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        H, self.k = c["hidden_size"], c["num_experts_per_tok"]
        self.gate = Weight(c["num_experts"], H)
        self.experts = Experts(c["num_experts"], H, c["moe_intermediate_size"])
        self.shared_expert = Mlp(H, c["shared_expert_intermediate_size"])
        self.shared_expert_gate = nn.Linear(H, 1, bias=False)

    def forward(self, x, ctx):
        B, T, H = x.shape
        x = x.reshape(-1, H)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.float(), self.gate.weight)
            probs = logits.softmax(-1)
            top, idx = probs.topk(self.k, -1)
            w = torch.zeros_like(probs).scatter(1, idx, top / top.sum(-1, keepdim=True))
        y = self.experts(x, w) + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        with torch.autocast(x.device.type, enabled=False):
            rows = ctx["rows"]                         # [B * T], sums to 1: whose routing counts for the balance
            stats = (rows @ torch.zeros_like(probs).scatter(1, idx, 1.0 / self.k), rows @ probs, rows @ logits.logsumexp(-1).pow(2))
        return y.reshape(B, T, H), stats


class Layer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.linear, self.drop = kind == "linear_attention", 0.0
        if self.linear:
            self.linear_attn = DeltaNet(c)
        else:
            self.self_attn = Attention(c)
        self.mlp = Moe(c)
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, h, ctx):
        x = self.input_layernorm(h)
        y = self.linear_attn(x, ctx) if self.linear else self.self_attn(x, ctx)
        h = h + F.dropout(y.float(), self.drop, self.training)
        y, stats = self.mlp(self.post_attention_layernorm(h), ctx)
        return h + F.dropout(y.float(), self.drop, self.training), stats


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, k) for k in c["layer_types"])
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.model, self.compiled = c, Body(c), None
        self.register_buffer("masks", block_masks(), persistent=False)
        self.register_buffer("eye", torch.eye(CHUNK), persistent=False)
        r = c["rope_parameters"]
        rd = int(c["head_dim"] * r["partial_rotary_factor"])
        self.register_buffer("inv_freq", 1.0 / r["rope_theta"] ** (torch.arange(0, rd, 2).float() / rd), persistent=False)
        self.init()

    @torch.no_grad()
    def init(self):
        n = self.c["num_hidden_layers"]
        for k, p in self.named_parameters():
            if k.endswith("embed_tokens.weight"):
                p.normal_(0, 0.02)
            elif k.endswith("conv1d.weight"):
                p.normal_(0, 0.2)
                p[..., -1] += 0.6
            elif k.endswith("A_log"):
                p.copy_(torch.linspace(1, 12, len(p)).log())
            elif k.endswith("dt_bias"):                # softplus(dt_bias) from 0.003 to 0.1
                dt = torch.linspace(math.log(0.1), math.log(0.003), len(p)).exp()
                p.copy_(dt + torch.log(-torch.expm1(-dt)))
            elif k.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
                p.normal_(0, 0.02)
            elif p.ndim >= 2:
                out = k.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj"))
                p.normal_(0, 0.8 * p.shape[-1] ** -0.5 * ((2 * n) ** -0.5 if out else 1.0))

    def context(self, tokens, doc, rows):
        B, T = tokens.shape
        angle = torch.arange(T, device=tokens.device).float()[:, None] * self.inv_freq
        same = start = mask = None
        if doc is not None:
            K = self.c["linear_conv_kernel_dim"]
            same = [F.pad(doc[:, s:] == doc[:, :-s], (s, 0)).unsqueeze(-1).float() for s in range(1, K)]
            start = F.pad(doc[:, 1:] != doc[:, :-1], (1, 0)).unsqueeze(-1)
            low = torch.ones(T, T, dtype=torch.bool, device=doc.device).tril()
            mask = ((doc[:, :, None] == doc[:, None, :]) & low).unsqueeze(1)
        rows = torch.full((B,), 1.0, device=tokens.device) if rows is None else rows
        rows = (rows / (rows.sum() * T).clamp(min=1.0)).repeat_interleave(T)
        return dict(cos=angle.cos()[:, None], sin=angle.sin()[:, None], same=same, start=start, mask=mask, rows=rows,
                    masks=self.masks, eye=self.eye)

    def hidden(self, tokens, doc=None, rows=None):
        """Normed hidden states [B, T, H] and per layer (share of assignments [E], mean probability [E], z)."""
        ctx, stats = self.context(tokens, doc, rows), []
        h = self.model.embed_tokens(tokens).float()
        run = self.compiled if self.compiled is not None and self.training else self.model.layers
        for layer in run:
            h, s = layer(h, ctx)
            stats.append(s)
        return self.model.norm(h), stats

    def forward(self, tokens, doc=None):
        return F.linear(self.hidden(tokens, doc)[0], self.model.embed_tokens.weight)

    def compile(self):
        """Compiled layers for training; evaluation stays as it is."""
        self.compiled = [torch.compile(l, dynamic=False) for l in self.model.layers]
