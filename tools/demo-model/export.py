#!/usr/bin/env python3
"""export.py RESULT OUT [--check]: the MLX 4-bit checkpoint from the bf16 pieces, on the CPU; needs torch only.

RESULT  folder with weights-*.safetensors (bf16, names as published), config.json and, to compare, model.safetensors as the training run wrote it
OUT     gets model.safetensors and config.json
--check also: every tensor against mlx.core.quantize, logits of mlx-lm against transformers on the checkpoint (tools/oracle, ORACLE_WORK)
"""
import argparse, hashlib, json, os, re, struct, subprocess, sys
from pathlib import Path
import numpy as np, torch

GROUP = 64
PIECE = 15 << 20
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "U32": torch.uint32}
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")


# --- safetensors by hand -------------------------------------------------------------------------------------------------

def save(path, tensors, kind):
    """Widest type first, then by name: every tensor lies at a multiple of its own width, and the bytes are reproducible."""
    names = {v: k for k, v in TYPES.items()}
    order = sorted(tensors, key=lambda k: (-tensors[k].element_size(), k))
    head, at = {"__metadata__": {"format": kind}}, 0
    for k in order:
        n = tensors[k].numel() * tensors[k].element_size()
        head[k] = {"dtype": names[tensors[k].dtype], "shape": list(tensors[k].shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for k in order:
            f.write(raw(tensors[k]))


def raw(t):
    t = t.detach().cpu().contiguous()
    return (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()


def load(path):
    data = Path(path).read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for k, v in json.loads(data[8:8 + n]).items():
        if k != "__metadata__":
            a, b = v["data_offsets"]
            part = torch.frombuffer(bytearray(data[8 + n + a:8 + n + b]), dtype=torch.uint8)
            out[k] = part.view(TYPES[v["dtype"]]).view(v["shape"])
    return out


# --- quantisation, bit-equal to mlx.core.quantize ------------------------------------------------------------------------

def quantise(w, bits):
    """Rows of 64 in f32 (bf16 values): (codes, scale, bias), scale and bias rounded to bf16 after the codes were chosen."""
    bins = torch.full((), float(2 ** bits - 1), device=w.device)        # a tensor: a Python number is turned into a reciprocal on GPUs
    hi, lo = w.amax(-1, keepdim=True), w.amin(-1, keepdim=True)
    low = lo.abs() > hi.abs()
    s = torch.maximum((hi - lo) / bins.expand_as(hi), torch.full_like(hi, 1e-7))
    s = torch.where(low, s, -s)
    edge = torch.where(low, lo, hi)
    q0 = torch.round(edge / s)
    some = q0 != 0
    s = torch.where(some, edge / torch.where(some, q0, torch.ones_like(q0)), s)
    b = torch.where(some, edge, torch.zeros_like(edge))
    codes = torch.minimum(torch.round((w - b) / s).clamp(min=0), bins)
    return codes, s.to(torch.bfloat16), b.to(torch.bfloat16)


def bits_of(name):
    """Bits of a parameter in the checkpoint, by its name in the model; None: kept as it is."""
    if name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
        return 8
    return 4 if name.endswith(("_proj.weight", "experts.gate_up_proj", "experts.down_proj", "embed_tokens.weight", "in_proj_qkv.weight",
                               "in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight")) else None


def stored(w):
    return w.to(torch.bfloat16).float()


def rounded(w, bits):
    """The values that the checkpoint holds for the values w, in f32."""
    q, s, b = quantise(stored(w).reshape(-1, GROUP), bits)
    return (q * s.float() + b.float()).view(w.shape)


def dequantised(state):
    """A state dict with every value as the 4-bit checkpoint holds it."""
    out = {}
    for k, v in state.items():
        v = v.detach().float()
        if bits_of(k):
            out[k] = rounded(v, bits_of(k))
        elif k.endswith("A_log"):
            out[k] = v.clone()
        elif k.endswith(NORMS):
            out[k] = stored(1.0 + stored(v)) - 1.0
        else:
            out[k] = stored(v)
    return out


def pack(codes, bits):
    """Codes [..., n] to u32, the first in the lowest bits."""
    per = 32 // bits
    c = codes.to(torch.int64).reshape(*codes.shape[:-1], -1, per)
    word = (c << torch.arange(0, 32, bits, device=c.device)).sum(-1)
    return torch.from_numpy(word.cpu().numpy().astype(np.uint32))


# --- the checkpoints -----------------------------------------------------------------------------------------------------

def bf16_state(state):
    """The model's parameters as published: bf16 but A_log, under model.language_model."""
    return {k.replace("model.", "model.language_model.", 1): v.detach().cpu().to(torch.float32 if k.endswith("A_log") else torch.bfloat16).contiguous()
            for k, v in state.items()}


def write_pieces(out, state):
    tensors, parts, size = bf16_state(state), [{}], 0
    for k in sorted(tensors):
        n = tensors[k].numel() * tensors[k].element_size()
        if size + n > PIECE and parts[-1]:
            parts.append({})
            size = 0
        parts[-1][k] = tensors[k]
        size += n
    for i, p in enumerate(parts):
        save(Path(out) / f"weights-{i}.safetensors", p, "pt")


def read_pieces(folder):
    state = {}
    for f in sorted(Path(folder).glob("weights-*.safetensors")):
        state.update(load(f))
    return {k.replace("model.language_model.", "model.", 1): v for k, v in state.items()}


def mlx_tensors(state):
    """The published bf16 tensors (names of the model) as mlx-lm writes them."""
    out = {}
    for k, v in state.items():
        name = "language_model." + k
        bits = bits_of(k)
        if k.endswith("A_log"):
            out[name] = v.float()
        elif bits:
            v = v.to(torch.bfloat16).float()
            parts = {name.removesuffix(".weight"): v}
            if m := re.match(r"(.*\.mlp\.)experts\.(gate_up_proj|down_proj)$", name):
                base = m[1] + "switch_mlp."
                gate, up = v.chunk(2, 1)
                parts = {base + "down_proj": v} if m[2] == "down_proj" else {base + "gate_proj": gate, base + "up_proj": up}
            for n, x in parts.items():
                q, s, b = quantise(x.reshape(*x.shape[:-1], -1, GROUP), bits)
                out[n + ".weight"] = pack(q.reshape(x.shape), bits)
                out[n + ".scales"], out[n + ".biases"] = s.squeeze(-1).cpu(), b.squeeze(-1).cpu()
        elif k.endswith("conv1d.weight"):
            out[name] = v.to(torch.bfloat16).transpose(1, 2)              # [C, 1, K] to [C, K, 1]
        elif k.endswith(NORMS):
            out[name] = (v.to(torch.bfloat16).float() + 1.0).to(torch.bfloat16)
        else:
            out[name] = v.to(torch.bfloat16)
    return {k: v.detach().cpu().contiguous() for k, v in out.items()}


def mlx_config(text):
    q = dict(group_size=GROUP, bits=4, mode="affine")
    for i in range(text["num_hidden_layers"]):
        for n in ("gate", "shared_expert_gate"):
            q[f"language_model.model.layers.{i}.mlp.{n}"] = dict(group_size=GROUP, bits=8)
    return dict(architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", eos_token_id=text["eos_token_id"],
                quantization=q, quantization_config=q, text_config=text, tie_word_embeddings=text["tie_word_embeddings"])


def write_mlx(out, state, text):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    save(out / "model.safetensors", mlx_tensors(state), "mlx")
    (out / "config.json").write_text(json.dumps(mlx_config(text), indent=2) + "\n")


# --- the checks ----------------------------------------------------------------------------------------------------------

AGAINST_MLX = """
import sys, mlx.core as mx
mx.set_default_device(mx.cpu)
src, made = {}, mx.load(sys.argv[1])
for f in sys.argv[2:]:
    src.update(mx.load(f))
n = 0
for k, v in src.items():
    k = k.replace("model.language_model.", "language_model.model.")
    if ".mlp.experts." in k:
        b = k.split("experts.")[0] + "switch_mlp."
        half = v.shape[1] // 2
        parts = {b + "down_proj": v} if k.endswith("down_proj") else {b + "gate_proj": v[:, :half], b + "up_proj": v[:, half:]}
    else:
        parts = {k.removesuffix(".weight"): v}
    for name, x in parts.items():
        if name + ".scales" in made:
            bits = 8 if name.endswith(("mlp.gate", "shared_expert_gate")) else 4
            want = mx.quantize(x, 64, bits)
            for t, y in zip(("weight", "scales", "biases"), want):
                assert made[name + "." + t].dtype == y.dtype and mx.array_equal(made[name + "." + t], y).item(), (name, t)
            n += 1
print(f"{n} quantised tensors equal to mlx.core.quantize bit for bit")
"""

LOGITS = """
import sys, json
sys.path.insert(0, sys.argv[1])
import mlxlib, numpy as np
from pathlib import Path
c = Path(sys.argv[2])
np.save(c / "logits.npy", mlxlib.logits(mlxlib.to_f32(mlxlib.load_mlx(c)), json.loads((c / "tokens.json").read_text())))
"""


def check(result, out, tokens):
    import tempfile, shutil
    oracle = Path(__file__).resolve().parents[1] / "oracle"
    work = Path(os.environ["ORACLE_WORK"])
    mlx = str(work / "ve-mlx" / "bin" / "python")
    subprocess.run([mlx, "-c", AGAINST_MLX, str(out / "model.safetensors"), *map(str, sorted(result.glob("weights-*.safetensors")))], check=True)
    with tempfile.TemporaryDirectory() as tmp:
        for f in ("model.safetensors", "config.json"):
            shutil.copy(out / f, tmp)
        Path(tmp, "tokens.json").write_text(json.dumps(tokens))
        subprocess.run([mlx, "-c", LOGITS, str(oracle), tmp], check=True)
        env = {k: v for k, v in os.environ.items() if k != "ORACLE_ENTERED"}
        subprocess.run([str(work / "ve-torch" / "bin" / "python"), str(oracle / "second_opinion.py"), tmp], check=True, env=env)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("result", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--tokens", help="token ids for --check, as a JSON list (default: a fixed pseudo-random line)")
    a = ap.parse_args()
    torch.set_num_threads(1)
    text = json.loads((a.result / "config.json").read_text())["text_config"]
    write_mlx(a.out, read_pieces(a.result), text)
    mine = (a.out / "model.safetensors").read_bytes()
    print(f"{a.out / 'model.safetensors'}: {len(mine)} bytes, sha256 {hashlib.sha256(mine).hexdigest()}")
    there = a.result / "model.safetensors"
    if there.exists() and there.resolve() != (a.out / "model.safetensors").resolve():
        same = there.read_bytes() == mine
        print("the same bytes as the training run wrote" if same else "DIFFERS from the file of the training run")
        if not same:
            sys.exit(1)
    if a.check:
        g = np.random.default_rng(1)
        check(a.result, a.out, json.loads(a.tokens) if a.tokens else [int(x) for x in g.integers(0, text["vocab_size"], 48)])


if __name__ == "__main__":
    main()
