#!/usr/bin/env python3
"""Draws the pictures of docs/pictures/ from the figures of benches/record/data/.

    tools/readme/plots.py            writes them
    tools/readme/plots.py --check    checks the data, and that the pictures are what they give

Each picture is one file for light and dark pages, by the reader's preference. The same data give
the same bytes. A range is drawn from the lowest to the highest run; that of a ratio from the lowest
run over the peer's highest one to the highest over the peer's lowest.
"""

import html
import json
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "benches/record/data"
PICTURES = ROOT / "docs/pictures"

TEXTS = {"date", "commit", "machine", "command", "model", "weights", "metric", "variant", "kernel", "case",
         "isa", "backend", "memory", "gpu_memory", "peer", "peer_setting", "note"}
NUMBERS = {"n_threads", "prompt_tokens", "gen_tokens", "context_tokens", "sessions", "kv_bits", "value", "low",
           "high", "rounds", "plan_low", "plan_high", "peer_value", "peer_low", "peer_high", "ratio",
           "ratio_low", "ratio_high"}
LISTS = {"runs", "peer_runs", "ratio_runs"}

WIDTH = 760
# As in the charts of `moeflux replay`: each colour has a contrast of at least 3 with either page.
STYLE = ("rect.page{fill:#fff}text{fill:#343a40}.halo{fill:#fff}"
         "@media(prefers-color-scheme:dark)"
         "{rect.page{fill:#16181b}text{fill:#dee2e6}.halo{fill:#16181b}}")
MOEFLUX, PEER, GREY = "#0c8599", "#d9480f", "#868e96"


def records(topic):
    """The figures of a topic."""
    return [json.loads(line) for line in (DATA / f"{topic}.jsonl").read_text().splitlines()]


def only(topic, **where):
    """The one figure that has these fields; None stands for a field that it must not have."""
    found = [it for it in records(topic) if all(it.get(key) == wanted for key, wanted in where.items())]
    if len(found) != 1:
        raise SystemExit(f"plots.py: {len(found)} figures of {topic} have {where}")
    return found[0]


def spread(record, prefix=""):
    """(lowest, middle, highest) of a figure, or of its peer."""
    runs = record.get(prefix + "runs")
    if runs:
        return min(runs), statistics.median(runs), max(runs)
    value = record[prefix + "value"]
    return record.get(prefix + "low", value), value, record.get(prefix + "high", value)


def check_data():
    """Each line is an object of known fields of the right kind, which the README explains."""
    explained = (DATA.parent / "README.md").read_text()
    for key in sorted(TEXTS | NUMBERS | LISTS):
        if f"`{key}`" not in explained:
            raise SystemExit(f"benches/record/README.md: the field {key} is not explained")
    for path in sorted(DATA.glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            record = json.loads(line)
            for key, value in record.items():
                is_number = type(value) in (int, float)
                is_list = isinstance(value, list) and all(type(it) in (int, float) for it in value)
                fits = (key in TEXTS and isinstance(value, str) or key in NUMBERS and is_number
                        or key in LISTS and is_list or key == "held" and isinstance(value, bool)
                        or key == "goal" and (is_number or isinstance(value, str)))
                if not fits:
                    raise SystemExit(f"{path}:{number}: the field {key} is not known, or of another kind")
            if "metric" not in record:
                raise SystemExit(f"{path}:{number}: no metric")


class Picture:
    """An SVG that grows."""

    def __init__(self, height, title, subtitle):
        self.height = height
        self.title = title
        self.parts = []
        self.text(20, 28, title, weight="600", size=16)
        self.text(20, 48, subtitle)

    def text(self, x, y, said, anchor="start", weight=None, size=None, turned=False):
        look = f' font-weight="{weight}"' if weight else ""
        look += f' font-size="{size}"' if size else ""
        look += f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        said = html.escape(said, quote=False)
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{look}>{said}</text>')

    def label(self, x, y, said, anchor):
        """A text over a hidden piece of the lines behind it."""
        width = 7.6 * len(said) + 4
        begin = {"start": x - 2, "middle": x - width / 2, "end": x - width + 2}[anchor]
        self.parts.append(f'<rect class="halo" x="{begin:.1f}" y="{y - 11:.1f}" width="{width:.1f}" height="14"/>')
        self.text(x, y, said, anchor)

    def line(self, x0, y0, x1, y1, colour=GREY, width=1.0, opacity=0.35, dash=None):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{colour}" '
                          f'stroke-width="{width:g}" stroke-opacity="{opacity:g}"{dashed}/>')

    def range(self, x0, y0, x1, y1, colour):
        """The range of a figure, behind its mark."""
        self.parts.append(f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{colour}" stroke-width="5" '
                          'stroke-opacity="0.55" stroke-linecap="round"/>')

    def mark(self, x, y, colour, shape="circle", is_hollow=False):
        fill = 'class="halo" ' if is_hollow else f'fill="{colour}" '
        stroke = f'stroke="{colour}" stroke-width="2"'
        if shape == "circle":
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {fill}{stroke}/>')
        else:
            self.parts.append(f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {fill}{stroke}/>')

    def curve(self, points, colour, dash=None):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2.5"{dashed}/>')

    def legend(self, y, entries):
        """Entries of (text, colour, shape, is hollow) in a row."""
        x = 26.0
        for said, colour, shape, is_hollow in entries:
            self.mark(x, y - 4.5, colour, shape, is_hollow)
            self.text(x + 12, y, said)
            x += 44 + 6.9 * len(said)

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
                'font-family="system-ui, sans-serif" font-size="13" role="img" '
                f'aria-label="{html.escape(self.title)}">\n<style>{STYLE}</style>\n'
                f'<rect class="page" width="{WIDTH}" height="{self.height}"/>\n' + "\n".join(self.parts)
                + "\n</svg>\n")


def number(value):
    """A number as an axis shows it."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:g}"


def beside_llama():
    """Ratios of moeflux to llama.cpp, a row per machine and sort of weights."""
    q35 = {"model": "q35moe-2g", "n_threads": 2}
    affine = "4-bit affine"
    rows = [
        ("AMD EPYC (Zen 5), AVX-512 VNNI", affine, "cpu", {"commit": "dac9a52", "variant": None, "isa": None, **q35}),
        ("AMD EPYC (Zen 4), AVX-512 VNNI", affine, "cpu", {"commit": "619474c", "variant": None, **q35}),
        ("AMD EPYC, AVX2", affine, "cpu", {"commit": "e5c4513", **q35}),
        ("Intel Xeon, AMX", affine, "cpu", {"commit": "00204e8", "date": "2026-11-21", "variant": None, "rounds": 2,
                                            **q35}),
        ("Intel Xeon, AVX-512 VNNI", affine, "cpu", {"commit": "2a8ad80", "isa": None, **q35}),
        ("Intel Xeon limited to AVX2", affine, "cpu", {"commit": "8ebf03d", "isa": "avx2", **q35}),
        *(("Intel Xeon, AMX", weights, "gguf",
           {"commit": "dea629d", "memory": None, "backend": None, "weights": weights, **q35})
          for weights in ("Q4_K_M", "Q6_K", "IQ4_XS", "IQ2_XXS")),
        ("AMD EPYC (Zen 4), AVX-512 VNNI", "gpt-oss in MXFP4", "gguf",
         {"commit": "c5c4732", "memory": None, "peer_setting": "repacked"}),
    ]
    parts = [("answers of 64 tokens", "decode_tokens_per_s", {"gen_tokens": 64}, MOEFLUX, "circle"),
             ("prompts of 512 tokens", "prefill_tokens_per_s", {"prompt_tokens": 512}, PEER, "square")]
    left, right, top, step, most = 250.0, 660.0, 116.0, 46.0, 5.5
    bottom = top + step * len(rows)
    picture = Picture(int(bottom) + 62, "Speed of moeflux divided by that of llama.cpp",
                      "Two threads, the same machine in turn, all weights in memory; models of 0.9 to 2.9 GB")

    def x_of(ratio):
        return left + (right - left) * ratio / most

    picture.legend(76, [(said, colour, shape, False) for said, _, _, colour, shape in parts])
    for tick in range(6):
        picture.line(x_of(tick), top - 8, x_of(tick), bottom, width=2 if tick == 1 else 1,
                     opacity=0.9 if tick == 1 else 0.35)
        picture.text(x_of(tick), bottom + 20, f"{tick}×", "middle")
    picture.text(x_of(1), top - 14, "as fast as llama.cpp", "middle")
    picture.text((left + right) / 2, bottom + 44, "times the tokens per second of llama.cpp", "middle")
    for row_idx, (machine, weights, topic, where) in enumerate(rows):
        y = top + step * row_idx + 14
        picture.text(left - 14, y + 1, machine, "end")
        picture.text(left - 14, y + 17, weights, "end", size=11)
        for part_idx, (_, metric, tokens, colour, shape) in enumerate(parts):
            record = only(topic, metric=metric, **tokens, **where)
            low, _, high = spread(record)
            peer_low, _, peer_high = spread(record, "peer_")
            part_y = y + 16 * part_idx
            picture.range(x_of(low / peer_high), part_y, x_of(high / peer_low), part_y, colour)
            picture.mark(x_of(record["ratio"]), part_y, colour, shape)
            picture.text(right + 40, part_y + 4.5, f"{record['ratio']:.2f}×", "start")
    return picture.svg()


def less_memory():
    """Answers with all weights in memory and within a limit, a row per machine and sort of weights."""
    q35 = {"model": "q35moe-2g", "n_threads": 2}
    rows = [
        ("Intel Xeon, AMX", "4-bit affine, 2.0 GB",
         only("cpu", commit="00204e8", metric="decode_tokens_per_s", gen_tokens=64, rounds=2, **q35),
         only("streaming", commit="00204e8", metric="decode_tokens_per_s", gen_tokens=64, case="in place",
              peer_setting="Q4_K, read-ahead of 128 KB", **q35)),
        ("Intel Xeon, AVX-512 VNNI", "4-bit affine, 2.0 GB",
         only("cpu", commit="2a8ad80", metric="decode_tokens_per_s", gen_tokens=64, isa=None, **q35),
         only("streaming", commit="2a8ad80", metric="decode_tokens_per_s", gen_tokens=64, case="in place", **q35)),
        ("AMD EPYC, AVX2", "4-bit affine, 2.0 GB",
         only("cpu", commit="e5c4513", metric="decode_tokens_per_s", **q35),
         only("streaming", commit="e5c4513", metric="decode_tokens_per_s", variant=None, **q35)),
        *(("Intel Xeon, AMX", f"{weights}, {size}",
           only("gguf", commit="dea629d", metric="decode_tokens_per_s", weights=weights, memory=None, backend=None,
                **q35),
           only("gguf", commit="dea629d", metric="decode_tokens_per_s", weights=weights, memory="1024M", **q35))
          for weights, size in (("Q4_K_M", "2.14 GB"), ("Q6_K", "2.90 GB"), ("IQ4_XS", "1.89 GB"))),
        ("AMD EPYC (Zen 4)", "gpt-oss in MXFP4, 1.84 GB",
         only("gguf", commit="c5c4732", metric="decode_tokens_per_s", memory=None, peer_setting="repacked"),
         only("gguf", commit="c5c4732", metric="decode_tokens_per_s", memory="1024M")),
    ]
    left, right, top, step = 220.0, 720.0, 112.0, 50.0
    bottom = top + step * len(rows)
    picture = Picture(int(bottom) + 62, "What less memory costs: answers, tokens per second",
                      "Two threads; all weights in memory, and the whole process within 1,024 MB")

    def x_of(rate):
        return left + (right - left) * math.log(rate / 2.5) / math.log(120 / 2.5)

    picture.legend(76, [("moeflux in memory", MOEFLUX, "circle", True), ("within 1,024 MB", MOEFLUX, "circle", False),
                        ("llama.cpp in memory", PEER, "square", True), ("within 1,024 MB", PEER, "square", False)])
    for tick in (3, 5, 10, 20, 50, 100):
        picture.line(x_of(tick), top - 10, x_of(tick), bottom)
        picture.text(x_of(tick), bottom + 20, number(tick), "middle")
    picture.text((left + right) / 2, bottom + 44, "tokens per second (logarithmic)", "middle")
    for row_idx, (machine, weights, whole, limited) in enumerate(rows):
        y = top + step * row_idx + 14
        picture.text(left - 14, y + 1, machine, "end")
        picture.text(left - 14, y + 17, weights, "end", size=11)
        for prefix, colour, shape, part_y in (("", MOEFLUX, "circle", y), ("peer_", PEER, "square", y + 17)):
            here, there = spread(limited, prefix), spread(whole, prefix)
            picture.line(x_of(here[1]), part_y, x_of(there[1]), part_y, colour, 1.5, 0.8, "2 4")
            for record, is_hollow in ((here, False), (there, True)):
                picture.range(x_of(record[0]), part_y, x_of(record[2]), part_y, colour)
                picture.mark(x_of(record[1]), part_y, colour, shape, is_hollow)
    return picture.svg()


def card_memory():
    """Answers of one model by how much of a card's memory its experts have."""
    model = {"model": "qwen3.6-35b-a3b"}
    picture = Picture(420, "One model with less and less of a card's memory: answers, tokens per second",
                      "Qwen3.6-35B-A3B in 4 bits on an H200; experts without room there are read from the host's "
                      "memory")
    left, right, top, bottom = 70.0, 700.0, 100.0, 340.0

    def place(gigabytes, rate):
        return left + (right - left) * gigabytes / 20, bottom - (bottom - top) * rate / 300

    for tick in range(0, 301, 50):
        picture.line(left, place(0, tick)[1], right, place(0, tick)[1])
        picture.text(left - 10, place(0, tick)[1] + 4.5, number(tick), "end")
    for tick in range(0, 21, 5):
        picture.line(place(tick, 0)[0], bottom, place(tick, 0)[0], bottom + 6, opacity=0.9)
        picture.text(place(tick, 0)[0], bottom + 22, number(tick), "middle")
    picture.text((left + right) / 2, bottom + 48, "GB of experts in the card's memory (all of them: 18.1)", "middle")
    picture.text(24, (top + bottom) / 2, "tokens per second", "middle", turned=True)

    room = {"no experts on the card": 0.0}
    for it in records("gpu"):
        if it["metric"] == "experts_on_card_gb":
            room[it["case"]] = it["value"]
    older = [it for it in records("gpu") if it.get("commit") == "1b160ac" and it["metric"] == "decode_tokens_per_s"]
    newer = [(18.1, only("gpu", commit="11bb97f", metric="decode_tokens_per_s", context_tokens=2048, **model)),
             (room["25 % of the experts on the card"],
              only("gpu", commit="11bb97f", metric="decode_tokens_per_s", gen_tokens=256, **model))]
    series = [("commit 11bb97f, 2026-11-22", newer, MOEFLUX, "circle", None),
              ("commit 1b160ac, 2026-11-21", [(room[it["case"]], it) for it in older], GREY, "square", "6 4")]
    picture.legend(76, [(said, colour, shape, False) for said, _, colour, shape, _ in series])
    for _, figures, colour, shape, dash in series:
        figures = sorted(figures, key=lambda it: it[0])
        picture.curve([place(x, spread(record)[1]) for x, record in figures], colour, dash)
        for x, record in figures:
            low, middle, high = spread(record)
            picture.range(*place(x, low), *place(x, high), colour)
            picture.mark(*place(x, middle), colour, shape)
            is_above = colour == MOEFLUX
            shown = f"{middle:.1f}"
            said_x, said_y = place(x, middle)
            picture.label(said_x + (10 if x == 0 else 0), said_y + (-12 if is_above else 22), shown,
                          "start" if x == 0 else "middle")
    return picture.svg()


def context():
    """What a token of an answer costs behind more and more of them, on two machines."""
    q35 = {"metric": "decode_tokens_per_s", "n_threads": 2}
    machines = [("AMD EPYC (Zen 5)", "dac9a52"), ("Intel Xeon, AVX-512 VNNI", "2a8ad80")]
    picture = Picture(430, "What a token costs behind a long context: milliseconds per token of an answer",
                      "Two threads, q35moe-2g in 4 bits; contexts of 0, 8,192 and 32,768 tokens")
    top, bottom, most, longest = 124.0, 350.0, 140.0, 32768
    picture.legend(76, [("moeflux", MOEFLUX, "circle", False),
                        ("llama.cpp, the faster of its settings", PEER, "square", False)])
    picture.text(24, (top + bottom) / 2, "milliseconds per token", "middle", turned=True)
    for panel_idx, (machine, commit) in enumerate(machines):
        left = 76.0 + 350 * panel_idx
        right = left + 290

        def place(tokens, cost_ms, left=left, right=right):
            return left + (right - left) * tokens / longest, bottom - (bottom - top) * cost_ms / most

        picture.text((left + right) / 2, top - 16, machine, "middle", weight="600")
        for tick in range(0, 141, 20):
            picture.line(left, place(0, tick)[1], right, place(0, tick)[1])
            picture.text(left - 10, place(0, tick)[1] + 4.5, number(tick), "end")
        for tick in (0, 8192, 16384, 24576, 32768):
            picture.line(place(tick, 0)[0], bottom, place(tick, 0)[0], bottom + 6, opacity=0.9)
            picture.text(place(tick, 0)[0], bottom + 22, number(tick), "middle")
        picture.text((left + right) / 2, bottom + 48, "tokens of context", "middle")
        figures = [(0, [only("cpu", commit=commit, model="q35moe-2g", gen_tokens=64, context_tokens=None, isa=None,
                             variant=None, **q35)])]
        for tokens in (8192, 32768):
            figures.append((tokens, [it for it in records("cpu")
                                     if it.get("commit") == commit and it.get("context_tokens") == tokens
                                     and it["metric"] == "decode_tokens_per_s"]))
        for prefix, colour, shape in (("peer_", PEER, "square"), ("", MOEFLUX, "circle")):
            points = []
            for tokens, found in figures:
                rates = [spread(it, prefix) for it in found if prefix + "value" in it or prefix + "runs" in it]
                low, middle, high = max(rates, key=lambda it: it[1])
                picture.range(*place(tokens, 1000 / high), *place(tokens, 1000 / low), colour)
                points.append((*place(tokens, 1000 / middle), 1000 / middle))
            picture.curve([point[:2] for point in points], colour)
            for x, y, cost_ms in points:
                picture.mark(x, y, colour, shape)
            x, y, cost_ms = points[-1]
            picture.label(x - 14, y - 9, f"{cost_ms:.0f} ms", "end")
    return picture.svg()


PLOTS = {"beside-llama": beside_llama, "less-memory": less_memory, "card-memory": card_memory, "context": context}


def main():
    check_data()
    is_check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not is_check:
        raise SystemExit(__doc__)
    PICTURES.mkdir(exist_ok=True)
    for name, draw in PLOTS.items():
        path, drawn = PICTURES / f"{name}.svg", draw()
        if not is_check:
            path.write_text(drawn)
        elif not path.exists() or path.read_text() != drawn:
            raise SystemExit(f"{path}: not what the data give; run tools/readme/plots.py")
    unknown = {path.stem for path in PICTURES.glob("*.svg")} - set(PLOTS)
    if unknown:
        raise SystemExit(f"{PICTURES}: nothing draws {sorted(unknown)}")


main()
