#!/usr/bin/env python3
"""train.py DATA OUT [--minutes 8.5]: trains the demo model, scores it in f32 and in 4 bits, exports it.

First part: a quarter of the rows are pages, the rest chats, two thirds of them tool dialogues of toolgen.py; constant learning rate for half of the time.
Second part: the share of pages falls to a tenth, so that they are read about 30 times in all, the learning rate falls to zero; in its second half the forward
pass sees the weights as the 4-bit checkpoint would hold them (straight-through gradients). Seeds are fixed; how many steps fit is not.
OUT: weights-*.safetensors (bf16), model.safetensors + config.json (MLX 4-bit), result.json, extras.tar (log, csv, pictures), DONE or FAILED.
"""
import argparse, csv, json, math, os, sys, tarfile, time, traceback
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np, torch
from torch.nn import functional as F
import export, model as M, score

T = 1024
CHATS_FIRST, CHATS_LAST, TOOLS = 0.75, 0.9, 0.66      # chats of all rows; tool dialogues of the chats


class Pages:
    """Rows of T + 1 tokens at random shifts, each epoch in another order. A document begins with the <|endoftext|> before it."""

    def __init__(self, stream, eot, device, rng):
        self.s = torch.from_numpy(stream.astype(np.int32)).to(device)
        self.doc = torch.cumsum((self.s == eot).int(), 0).int()
        self.rng, self.order, self.epochs = rng, [], 0.0
        self.span = torch.arange(T + 1, device=device)

    def take(self, n):
        while len(self.order) < n:
            shift = int(self.rng.integers(0, T))
            starts = np.arange(shift, len(self.s) - T - 1, T)
            if not len(starts):
                starts = np.zeros(1, int)
            self.rng.shuffle(starts)
            self.order = np.concatenate([np.asarray(self.order, int), starts])
        part, self.order = self.order[:n], self.order[n:]
        self.epochs += n * T / len(self.s)
        at = (torch.from_numpy(part).to(self.s.device)[:, None] + self.span).clamp(max=len(self.s) - 1)
        x, doc = self.s[at].long(), self.doc[at].long()
        return x, doc, torch.ones_like(x)


class Chats:
    """Rows of whole chats, packed anew each epoch; none sees another."""

    def __init__(self, stream, mask, eot, device, rng):
        ends = np.flatnonzero(stream == eot) + 1
        starts = np.concatenate([[0], ends[:-1]])
        self.docs = [(a, min(b, a + T + 1)) for a, b in zip(starts, ends)]
        self.s, self.m, self.eot, self.device, self.rng = stream, mask, eot, device, rng
        self.rows, self.at, self.epochs = None, 0, 0

    def pack(self):
        order, rows, fill = self.rng.permutation(len(self.docs)), [[]], 0
        for i in order:
            a, b = self.docs[i]
            if fill + b - a > T + 1:
                rows.append([])
                fill = 0
            rows[-1].append((a, b))
            fill += b - a
        x = np.full((len(rows), T + 1), self.eot, np.int64)
        doc, m = np.full(x.shape, 1 << 20, np.int64), np.zeros(x.shape, np.int64)
        for r, parts in enumerate(rows):
            at = 0
            for n, (a, b) in enumerate(parts):
                x[r, at:at + b - a], m[r, at:at + b - a], doc[r, at:at + b - a] = self.s[a:b], self.m[a:b], n
                at += b - a
        self.rows = [torch.from_numpy(v).to(self.device) for v in (x, doc, m)]
        self.at, self.epochs = 0, self.epochs + 1

    def take(self, n):
        got = []
        while n:
            if self.rows is None or self.at == len(self.rows[0]):
                self.pack()
            k = min(n, len(self.rows[0]) - self.at)
            got.append([v[self.at:self.at + k] for v in self.rows])
            self.at, n = self.at + k, n - k
        return [torch.cat(v) for v in zip(*got)]


class Fake:
    """Shows the forward pass the values of the 4-bit checkpoint: swap() before it, back() before the optimiser's step."""

    def __init__(self, model):
        named = list(model.named_parameters())
        self.groups = [(b, [p for k, p in named if export.bits_of(k) == b]) for b in (4, 8)]
        self.rest = [p for k, p in named if export.bits_of(k) is None and not k.endswith("A_log")]
        self.all = [p.data for _, ps in self.groups for p in ps] + [p.data for p in self.rest]
        self.kept = [torch.empty_like(p) for p in self.all]

    @torch.no_grad()
    def swap(self):
        torch._foreach_copy_(self.kept, self.all)
        for bits, ps in self.groups:
            flat = export.rounded(torch.cat([p.data.view(-1) for p in ps]), bits)
            torch._foreach_copy_([p.data for p in ps], [x.view(p.shape) for x, p in zip(flat.split([p.numel() for p in ps]), ps)])
        for p in self.rest:
            p.data.copy_(export.stored(p.data))

    @torch.no_grad()
    def back(self):
        torch._foreach_copy_(self.all, self.kept)


class Balance:
    """Per layer: a pull towards the busiest quarter of the experts while it has less than 48 to 54 % of the assignments, a balancing term above 58 %, a pull for experts under 1 %."""

    def __init__(self, layers, experts, device):
        full = lambda v: torch.full((layers,), v, device=device)
        self.skew, self.even, self.floor = full(5e-3), full(1e-5), full(2e-3)
        self.load = torch.full((layers, experts), 1.0 / experts, device=device)

    def loss(self, stats):
        f, p, z = (torch.stack([s[i] for s in stats]) for i in range(3))
        E = f.shape[1]
        with torch.no_grad():
            self.load.lerp_(f.detach(), 0.03)
            top, order = self.load.sort(-1, descending=True)
            quarter, least = top[:, :E // 4].sum(-1), top[:, -1]
            move = lambda c, up, down, low, high: c.mul_(torch.where(up, 1.02, torch.where(down, 0.97, 1.0))).clamp_(low, high)
            move(self.skew, quarter < 0.48, quarter > 0.54, 1e-4, 0.2)
            move(self.even, quarter > 0.58, quarter < 0.56, 1e-5, 2e-2)
            move(self.floor, least < 0.007, least > 0.012, 2e-3, 5e-2)
            busiest = torch.zeros_like(p).scatter(1, order[:, :E // 4], 1.0)
            starving = (self.load < 0.010).float()
        skew = (self.skew * -((p * busiest).sum(-1) + 1e-6).log()).sum()
        even = (self.even * E * (f.detach() * p).sum(-1)).sum()
        floor = (self.floor * (starving * -(p + 1e-6).log()).sum(-1)).sum()
        return skew + even + floor + 1e-5 * z.sum()


def optimiser(model, lr, decay):
    mats = [p for k, p in model.named_parameters() if p.ndim >= 2 and "conv1d" not in k]
    rest = [p for k, p in model.named_parameters() if not (p.ndim >= 2 and "conv1d" not in k)]
    groups = [dict(params=mats, weight_decay=decay), dict(params=rest, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-10, fused=mats[0].is_cuda)


class Run:
    def __init__(self, a):
        self.a, self.t0 = a, time.time()
        self.dev = "cuda" if torch.cuda.is_available() else "cpu"
        data = Path(a.data)
        self.index = json.loads((data / "index.json").read_text())
        self.text = score.Text(data)
        read = lambda f, t="<u2": np.fromfile(data / f, t)
        pages, chats, mask, self.heldout = read("pages.u16"), read("chats.u16"), read("chats.mask.u8", "u1"), read("heldout.u16")
        assert len(chats) == len(mask), (len(chats), len(mask))
        try:
            tools, tools_mask = read("tools.u16"), read("tools.mask.u8", "u1")
            assert len(tools) == len(tools_mask), (len(tools), len(tools_mask))
        except OSError as e:                           # toolgen.py has not run: only the tool dialogues among the chats
            print("no tool stream:", repr(e), flush=True)
            tools, tools_mask = chats, mask
        eot, rng = self.text.eot, np.random.default_rng(a.seed)
        vocab = max(self.text.tok.get_vocab_size(), int(max(pages.max(), chats.max(), self.heldout.max())) + 1)
        self.c = M.config(vocab, self.text.end, **json.loads(a.config))
        torch.manual_seed(a.seed)
        self.model = M.Model(self.c).to(self.dev)
        self.pages, self.chats = Pages(pages, eot, self.dev, rng), Chats(chats, mask, eot, self.dev, rng)
        self.tools = Chats(tools, tools_mask, eot, self.dev, rng)
        self.fake = Fake(self.model)
        self.balance = Balance(self.c["num_hidden_layers"], self.c["num_experts"], self.dev)
        self.opt = optimiser(self.model, a.lr, a.decay)
        self.ema, self.log = None, []
        n = sum(p.numel() for p in self.model.parameters())
        print(f"{self.dev}, torch {torch.__version__}, {n} parameters, vocabulary {vocab}, pages {len(pages)} tokens, chats {len(chats)} tokens "
              f"({int(mask.sum())} counted, {len(self.chats.docs)} documents), tools {len(tools)} tokens ({len(self.tools.docs)} documents), held out {len(self.heldout)}", flush=True)

    def batch(self, chat_share):
        n = max(1, min(self.a.rows - 1, round(self.a.rows * chat_share)))
        px, pd, pm = self.pages.take(self.a.rows - n)
        k = min(n - 1, round(n * TOOLS)) if n > 1 else 0
        got = [self.chats.take(n - k)] + ([self.tools.take(k)] if k else [])
        cx, cd, cm = (torch.cat(v) for v in zip(*got))
        x, doc, m = torch.cat([px, cx]), torch.cat([pd, cd]), torch.cat([pm, cm])
        rows = torch.cat([torch.ones(len(px)), torch.zeros(len(cx))]).to(self.dev)
        return x, doc, m, rows, n

    def loss(self, chat_share):
        x, doc, m, rows, n = self.batch(chat_share)
        with torch.autocast(self.dev, dtype=torch.bfloat16, enabled=self.dev == "cuda"):
            h, stats = self.model.hidden(x[:, :-1], doc[:, :-1], rows)
            logits = F.linear(h, self.model.model.embed_tokens.weight)
        w = m[:, 1:].float()
        each = F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten(), reduction="none").view(w.shape) * w
        bal = self.balance.loss(stats)
        p = len(x) - n
        with torch.no_grad():
            show = torch.stack([each[:p].sum() / w[:p].sum(), each[p:].sum() / w[p:].sum().clamp(min=1), bal])
        return each.sum() / w.sum() + bal, show

    def step(self, lr, chat_share, quantised):
        self.model.train()
        for g in self.opt.param_groups:
            g["lr"] = lr
        if quantised:
            self.fake.swap()
        try:
            loss, show = self.loss(chat_share)
            loss.backward()
        finally:
            if quantised:
                self.fake.back()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return show

    def average(self):
        now = [p.data for p in self.model.parameters()]
        if self.ema is None:
            self.ema = [p.clone() for p in now]
        else:
            torch._foreach_lerp_(self.ema, now, 1 - self.a.ema)

    def heldout_bits(self):
        self.model.eval()
        return score.bits_per_byte(self.model, self.heldout, self.text.eot, self.index["bytes"]["heldout"], self.dev)

    def try_compile(self):
        """Compiled layers if that works within two minutes; plain ones otherwise."""
        import signal
        def late(*_):
            raise TimeoutError("compiling took too long")
        state = {k: v.clone() for k, v in self.model.state_dict().items()}
        t = time.time()
        signal.signal(signal.SIGALRM, late)
        signal.alarm(150)
        try:
            try:
                import torch._dynamo
                for k in ("recompile_limit", "cache_size_limit"):
                    if hasattr(torch._dynamo.config, k):
                        setattr(torch._dynamo.config, k, 64)
            except Exception as e:
                print("dynamo config:", repr(e), flush=True)
            self.model.compile()
            self.model.train()
            loss, show = self.loss(0.5)
            loss.backward()
            if not all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in self.model.parameters()):
                raise ValueError("gradients are not finite")
            print(f"compiled in {time.time() - t:.0f} s", flush=True)
        except BaseException as e:
            print("not compiled:", repr(e)[:600], flush=True)
            self.model.compiled = None
        finally:
            signal.alarm(0)
            self.opt.zero_grad(set_to_none=True)
            self.model.load_state_dict(state)

    def train(self):
        a = self.a
        for layer in self.model.model.layers:
            layer.drop = a.drop
        if self.dev == "cuda":
            torch.set_float32_matmul_precision("high")
        if a.compile:
            self.try_compile()
        budget = a.minutes * 60
        start, second, step, best, worse, next_eval, last = time.time(), None, 0, 9e9, 0, 0.0, None
        length, seen, mark, mark_step = a.second * budget, [], time.time(), 0
        begin = start - self.t0                        # loading and compiling count
        while True:
            now = time.time() - start + begin
            if second is None and (now > budget - length or worse >= a.patience):
                second = now
                print(f"second part begins at step {step}, {now:.0f} s", flush=True)
            r = 0.0 if second is None else (now - second) / length
            if r >= 1 or (a.steps and step >= a.steps):
                break
            lr = a.lr * min(1.0, (step + 1) / 200) * (1.0 if second is None else max(0.01, 1 - r))
            share = CHATS_FIRST + (CHATS_LAST - CHATS_FIRST) * min(1.0, 3 * r)
            quantised = r >= 0.5
            seen.append(self.step(lr, share, quantised))
            step += 1
            if r > 0.7:
                self.average()
            if step in (3, 20) or time.time() - mark > 10:
                page, chat, bal = torch.stack(seen).mean(0).tolist()
                speed = a.rows * T * (step - mark_step) / (time.time() - mark)
                mark, mark_step, seen = time.time(), step, []
                bits = ""
                if now >= next_eval:
                    bits = self.heldout_bits()
                    worse = 0 if bits < best - 1e-3 else worse + 1
                    best, next_eval = min(best, bits), now + a.every
                    mark = time.time()
                top = self.balance.load.sort(-1, descending=True)[0]
                row = dict(step=step, seconds=round(now, 1), lr=round(lr, 6), chats=round(share, 3), quantised=int(quantised), page_loss=round(page, 4),
                           chat_loss=round(chat, 4), balance=round(bal, 5), heldout_bits_per_byte=bits and round(bits, 4), tokens_per_s=round(speed),
                           page_epochs=round(self.pages.epochs, 2), chat_epochs=self.chats.epochs, tool_epochs=self.tools.epochs,
                           busiest_quarter=round(float(top[:, :top.shape[1] // 4].sum(-1).min()), 3), least=round(float(top[:, -1].min()), 4))
                self.log.append(row)
                print(json.dumps(row), flush=True)
                if not math.isfinite(page):
                    raise ValueError("the loss is not finite")
        self.steps, self.trained_s = step, time.time() - self.t0

    def finish(self):
        """Chooses between the last weights and their average by the 4-bit held-out bits, scores, exports."""
        out = Path(self.a.out)
        torch.set_float32_matmul_precision("highest")
        self.model.compiled = None
        self.model.eval()
        names = [k for k, _ in self.model.named_parameters()]
        last = {k: p.detach().clone() for k, p in self.model.named_parameters()}
        choices = {"last": last}
        if self.ema is not None:
            choices["average"] = dict(zip(names, self.ema))
        bits = {}
        for k, s in choices.items():
            self.model.load_state_dict(export.dequantised(s))
            bits[k] = self.heldout_bits()
        pick = min(bits, key=bits.get)
        state = choices[pick]
        export.write_pieces(out, state)
        export.write_mlx(out, {k: v.cpu() for k, v in state.items()}, self.c)
        result = dict(chosen=pick, choices={k: round(v, 4) for k, v in bits.items()}, steps=self.steps, train_seconds=round(self.trained_s),
                      device=torch.cuda.get_device_name() if self.dev == "cuda" else "cpu", torch=torch.__version__,
                      parameters=sum(p.numel() for p in state.values()), page_epochs=round(self.pages.epochs, 1), chat_epochs=self.chats.epochs, tool_epochs=self.tools.epochs,
                      compiled=self.was_compiled, arguments=vars(self.a), checkpoint_bytes=(out / "model.safetensors").stat().st_size)
        save = lambda: (out / "result.json").write_text(json.dumps(result, indent=1, default=str) + "\n")
        save()
        for name, s in (("four_bit", export.dequantised(state)), ("f32", state)):
            self.model.load_state_dict(s)
            result[name] = score.everything(self.model, self.a.data, self.dev)
            save()
            print(name, json.dumps(score.short(result[name])), flush=True)
        result["quantisation_loss_percent"] = round(100 * (result["four_bit"]["bits_per_byte"] / result["f32"]["bits_per_byte"] - 1), 2)
        result["total_seconds"] = round(time.time() - self.t0)
        save()
        self.pictures(out, result)

    def pictures(self, out, result):
        extras = out / "extras"
        extras.mkdir(exist_ok=True)
        with open(extras / "loss.csv", "w", newline="") as f:
            w = csv.DictWriter(f, list(self.log[0]), lineterminator="\n") if self.log else None
            if w:
                w.writeheader()
                w.writerows(self.log)
        with open(extras / "experts.csv", "w", newline="") as f:
            w = csv.writer(f, lineterminator="\n")
            w.writerow(["layer"] + [f"expert_{i}" for i in range(self.c["num_experts"])])
            w.writerows([i] + l for i, l in enumerate(result["four_bit"]["experts_use"]))
        try:
            draw(extras, extras / "loss.csv", extras / "experts.csv")
        except Exception as e:
            print("no pictures:", repr(e), flush=True)
        with tarfile.open(out / "extras.tar", "w") as t:
            for f in sorted(extras.iterdir()):
                t.add(f, f.name)


def draw(folder, loss, experts):
    """loss.png and experts.png from the two CSV files."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    rows = list(csv.DictReader(open(loss)))
    x = [float(r["seconds"]) for r in rows]
    fig, ax = plt.subplots(figsize=(8, 4), dpi=100)
    ax.plot(x, [float(r["page_loss"]) for r in rows], label="pages, loss per token (nats)")
    ax.plot(x, [float(r["chat_loss"]) for r in rows], label="chats, loss per token (nats)")
    held = [(float(r["seconds"]), float(r["heldout_bits_per_byte"])) for r in rows if r["heldout_bits_per_byte"]]
    ax.plot(*zip(*held), "o-", ms=3, label="held-out pages, bits per byte")
    for key, word in (("quantised", "4-bit forward pass"),):
        at = [t for t, r in zip(x, rows) if r[key] == "1"]
        if at:
            ax.axvline(at[0], color="grey", lw=0.8)
            ax.text(at[0], ax.get_ylim()[1] * 0.93, " " + word, fontsize=8)
    ax.set_xlabel("seconds")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    ax.legend()
    fig.tight_layout()
    fig.savefig(Path(folder) / "loss.png")
    use = [[float(v) for v in r[1:]] for r in list(csv.reader(open(experts)))[1:]]
    fig, axes = plt.subplots(2, -(-len(use) // 2), figsize=(10, 4), dpi=100, sharey=True, squeeze=False)
    for i, (ax, u) in enumerate(zip(axes.flat, use)):
        ax.bar(range(len(u)), sorted((100 * v for v in u), reverse=True))
        ax.axhline(100 / len(u), color="grey", lw=0.8)
        ax.set_title(f"layer {i}", fontsize=9)
    fig.supxlabel("experts, busiest first")
    fig.supylabel("% of assignments")
    fig.tight_layout()
    fig.savefig(Path(folder) / "experts.png")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("data")
    ap.add_argument("out")
    ap.add_argument("--minutes", type=float, default=8.5, help="wall time of the training, start and compiling included; scores need about two more")
    ap.add_argument("--rows", type=int, default=48, help="sequences of 1024 per step")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--decay", type=float, default=0.3, help="weight decay of matrices")
    ap.add_argument("--drop", type=float, default=0.15)
    ap.add_argument("--ema", type=float, default=0.995)
    ap.add_argument("--every", type=float, default=25, help="seconds between held-out losses")
    ap.add_argument("--patience", type=int, default=1000, help="held-out losses without progress before the second part begins")
    ap.add_argument("--second", type=float, default=0.5, help="share of --minutes for the second part")
    ap.add_argument("--steps", type=int, default=0, help="stop after so many steps (tests)")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    ap.add_argument("--config", default="{}", help="JSON over the text config (tests)")
    a = ap.parse_args()
    out = Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    try:
        run = Run(a)
        run.train()
        run.was_compiled = run.model.compiled is not None
        run.finish()
        (out / "DONE").write_text("done\n")
        print(f"done in {time.time() - run.t0:.0f} s", flush=True)
    except BaseException:
        traceback.print_exc()
        (out / "FAILED").write_text(traceback.format_exc())
        sys.exit(1)


if __name__ == "__main__":
    main()
