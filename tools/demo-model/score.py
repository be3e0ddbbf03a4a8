#!/usr/bin/env python3
"""score.py DATA RESULT [--original]: scores of a training run again, on the CPU: bits per byte, experts' use, questions, tool calls.

By default of the 4-bit values, with --original of the bf16 ones. train.py calls the functions below at its end.
"""
import argparse, json, math, re
from pathlib import Path
import numpy as np, torch
from torch.nn import functional as F

WINDOW, STRIDE = 1024, 512


class Text:
    """Tokenizer and chat template of DATA/model."""

    def __init__(self, data):
        from tokenizers import Tokenizer
        folder = Path(data) / "model"
        self.tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.end, self.eot = self.tok.token_to_id("<|im_end|>"), self.tok.token_to_id("<|endoftext|>")
        self.template = None
        try:
            from jinja2.ext import loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
            env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
            env.filters["tojson"] = lambda x, indent=None, **_: json.dumps(x, ensure_ascii=False, indent=indent)
            def fail(message):
                raise ValueError(message)
            env.globals["raise_exception"] = fail
            self.template = env.from_string((folder / "chat_template.jinja").read_text())
        except Exception as e:                         # no jinja2: the plain form by hand, without tools
            print("no chat template:", repr(e), flush=True)

    def chat(self, request, tools=None, **more):
        messages = [{"role": "user", "content": request}]
        if self.template is not None:
            return self.template.render(messages=messages, tools=tools, add_generation_prompt=True, **more)
        tail = "<think>\n\n</think>\n\n" if more.get("enable_thinking") is False else ""
        return f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n{tail}"

    def encode(self, s):
        return self.tok.encode(s, add_special_tokens=False).ids

    def decode(self, ids):
        return self.tok.decode(ids, skip_special_tokens=False)


def documents(stream, eot):
    """Token arrays between <|endoftext|> tokens, each with the one that ends it."""
    ends = np.flatnonzero(stream == eot)
    starts = np.concatenate([[0], ends[:-1] + 1])
    return [stream[a:b + 1] for a, b in zip(starts, ends)]


def windows(docs, eot):
    """Rows of WINDOW inputs and targets; each document begins after an <|endoftext|>, each token is scored once, with at least STRIDE tokens before it if there are."""
    for d in docs:
        s = np.concatenate([[eot], d]).astype(np.int64)
        done = 1                                       # targets below this are scored
        at = 0
        while done < len(s):
            part = s[at:at + WINDOW + 1]
            x, y, w = (np.full(WINDOW, v) for v in (eot, eot, 0))
            n = len(part) - 1
            x[:n], y[:n] = part[:-1], part[1:]
            w[done - at - 1:n] = 1
            yield x, y, w
            done, at = at + len(part), at + STRIDE


@torch.no_grad()
def bits_per_byte(model, heldout, eot, n_bytes, device, rows=16):
    """Bits per byte of the held-out pages."""
    model.eval()
    every, total = list(windows(documents(heldout, eot), eot)), 0.0
    for i in range(0, len(every), rows):
        x, y, w = (torch.from_numpy(np.stack(c)).to(device) for c in zip(*every[i:i + rows]))
        h = model.hidden(x)[0]
        loss = F.cross_entropy(F.linear(h, model.model.embed_tokens.weight).flatten(0, 1), y.flatten(), reduction="none")
        total += float((loss.double() * w.flatten()).sum())
    return total / math.log(2) / n_bytes


@torch.no_grad()
def experts_use(model, heldout, eot, device):
    """Share of assignments [layers, experts] on the held-out pages alone, without padding, each document from its start."""
    model.eval()
    use, weight = 0.0, 0
    for d in documents(heldout, eot):
        for j in range(0, len(d), WINDOW):
            x = torch.from_numpy(d[j:j + WINDOW].astype(np.int64))[None].to(device)
            stats = model.hidden(x)[1]
            use = use + torch.stack([s[0] for s in stats]).double().cpu() * x.shape[1]
            weight += x.shape[1]
    return (use / weight).tolist()


def routing(use):
    """Smallest share of one expert and share of the busiest quarter, per layer."""
    out = []
    for u in use:
        u = sorted(u, reverse=True)
        out.append(dict(least=round(u[-1], 5), busiest_quarter=round(sum(u[:len(u) // 4]), 4)))
    return out


@torch.no_grad()
def generate(model, prompts, stops, n, device):
    """Greedy continuations of token lists, all at once, without a cache (rows padded on the right)."""
    model.eval()
    rows, done = [list(p) for p in prompts], [False] * len(prompts)
    starts = [len(p) for p in prompts]
    for _ in range(n):
        live = [i for i in range(len(rows)) if not done[i]]
        if not live:
            break
        width = -(-max(len(rows[i]) for i in live) // 64) * 64
        x = torch.zeros(len(live), width, dtype=torch.long)
        for j, i in enumerate(live):
            x[j, :len(rows[i])] = torch.tensor(rows[i])
        h = model.hidden(x.to(device))[0]
        last = h[torch.arange(len(live), device=device), torch.tensor([len(rows[i]) - 1 for i in live], device=device)]
        for i, t in zip(live, F.linear(last, model.model.embed_tokens.weight).argmax(-1).tolist()):
            if t in stops:
                done[i] = True
            else:
                rows[i].append(t)
    return [r[s:] for r, s in zip(rows, starts)]


def ask(model, text, questions, device, **more):
    prompts = [text.encode(text.chat(q["question"], **more)) for q in questions]
    out = []
    for q, r in zip(questions, generate(model, prompts, {text.end, text.eot}, 160, device)):
        answer = text.decode(r)
        out.append(dict(question=q["question"], answer=answer, right=any(a.lower() in answer.split("</think>")[-1].lower() for a in q["accept"])))
    return out


def call_tools(model, text, cases, device, **more):
    prompts = [text.encode(text.chat(c["request"], c["tools"], **more)) for c in cases]
    out = []
    for c, r in zip(cases, generate(model, prompts, {text.end, text.eot}, 128, device)):
        said, right = text.decode(r), False
        if body := re.search(r"<tool_call>\s*(.*?)\s*</tool_call>", said, re.S):
            try:
                call = json.loads(body[1])
                right = call["name"] == c["name"] and call["arguments"] == c["arguments"]
            except (ValueError, KeyError, TypeError):
                pass
        out.append(dict(request=c["request"], want=dict(name=c["name"], arguments=c["arguments"]), said=said, right=right))
    return out


SAMPLES = ["A vector is", "The borrow checker", "To read a file in Rust,", "# Ownership\n\n"]


def everything(model, data, device, chats=True):
    """All scores of the model as it is."""
    data = Path(data)
    index, heldout = json.loads((data / "index.json").read_text()), np.fromfile(data / "heldout.u16", "<u2")
    text = Text(data)
    bpb = bits_per_byte(model, heldout, text.eot, index["bytes"]["heldout"], device)
    use = experts_use(model, heldout, text.eot, device)
    out = dict(bits_per_byte=round(bpb, 4), experts_use=[[round(x, 5) for x in l] for l in use], routing=routing(use))
    if chats:
        questions, cases = (json.loads((data / f).read_text()) for f in ("questions.json", "toolcalls.json"))
        for name, more in (("", {}), ("_no_think", {"enable_thinking": False})):
            got, tools = ask(model, text, questions, device, **more), call_tools(model, text, cases, device, **more)
            out["questions" + name] = dict(right=sum(r["right"] for r in got), of=len(got), each=got)
            out["tool_calls" + name] = dict(right=sum(r["right"] for r in tools), of=len(tools), each=tools)
        out["samples"] = [s + text.decode(r) for s, r in
                          zip(SAMPLES, generate(model, [text.encode(s) for s in SAMPLES], {text.eot}, 64, device))]
    return out


def short(s):
    """The scores without the texts."""
    out = {k: v for k, v in s.items() if k not in ("experts_use", "samples", "routing")}
    for k in list(out):
        if isinstance(out[k], dict):
            out[k] = f"{out[k]['right']} of {out[k]['of']}"
    out["least_used_expert"] = min(r["least"] for r in s["routing"])
    out["busiest_quarter"] = [r["busiest_quarter"] for r in s["routing"]]
    return out


def main():
    import export, model as M
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("data")
    ap.add_argument("result", type=Path)
    ap.add_argument("--original", action="store_true")
    a = ap.parse_args()
    state = {k: v.float() for k, v in export.read_pieces(a.result).items()}
    m = M.Model(json.loads((a.result / "config.json").read_text())["text_config"]).eval()
    m.load_state_dict(state if a.original else export.dequantised(state))
    s = everything(m, a.data, "cpu")
    print(json.dumps(s, indent=1))
    print(json.dumps(short(s)))


if __name__ == "__main__":
    main()
