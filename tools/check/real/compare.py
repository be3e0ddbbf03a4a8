#!/usr/bin/env python3
"""compare.py MOEFLUX --model NAME MODEL.gguf PEER.gguf .. --text FILE ..: what arithmetics of both engines cost.

moeflux computes MODEL and llama.cpp PEER, which are the same function; texts are cut into passages. All logits of
each position are compared with those that moeflux computes in f32 (--precise): the KL divergence, how often the most
probable token is the same, and the perplexity of the texts. Prints a table for each model. Needs numpy and llama-cpp-python.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

N_PASSAGES = 2
N_TOKENS = 510
# Where large activations sit, whichever model it is.
N_FIRST = 2
MOEFLUX = {
    "moeflux, int8": [],
    "moeflux, int8 with `--kv-bits 8`": ["--kv-bits", "8"],
}
Q8_0 = llama_cpp.GGML_TYPE_Q8_0
LLAMA = {
    "llama.cpp": {},
    "llama.cpp, keys and values in Q8_0": {"type_k": Q8_0, "type_v": Q8_0, "flash_attn": True},
}


def of_moeflux(program, model, tokens, options):
    with tempfile.NamedTemporaryFile(suffix=".npy") as out:
        ids = ",".join(map(str, tokens))
        command = [program, "logits", "--model", model, "--tokens", ids, "--out", out.name, "--backend", "cpu"]
        subprocess.run(command + options, check=True, stdout=subprocess.DEVNULL)
        return np.load(out.name)


def of_llama(model, tokens, options):
    context = llama_cpp.Llama(
        model, n_ctx=N_TOKENS + 2, n_batch=N_TOKENS + 2, logits_all=True, n_threads=2, verbose=False, **options
    )
    context.eval(tokens)
    return np.array(context.scores[: len(tokens)])


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


class Cost:
    """Of an arithmetic, position by position, in lists by passage."""

    def __init__(self):
        self.divergences, self.surprises, self.is_same = [], [], []

    def add(self, exact, logits, tokens):
        divergences = []
        for position, row in enumerate(logits):
            found = log_softmax(row)
            expected = log_softmax(exact[position])
            self.is_same.append(found.argmax() == expected.argmax())
            divergences.append((np.exp(expected) * (expected - found)).sum())
            if position + 1 < len(tokens):
                self.surprises.append(-found[tokens[position + 1]])
        self.divergences.append(divergences)

    def row(self, name, exact):
        all_of_it = np.concatenate(self.divergences)
        later = np.concatenate([it[N_FIRST:] for it in self.divergences])
        more = np.exp(np.mean(self.surprises) - np.mean(exact.surprises)) - 1
        figures = [all_of_it.mean(), np.median(all_of_it), later.mean()]
        same = 100 * np.mean(self.is_same)
        cells = [f"{it:.1e}" for it in figures] + [f"{same:.1f} %", f"{100 * more:+.2f} %"]
        return f"| {name} | {' | '.join(cells)} |"


def passages_of(peer, paths):
    """Returns the tokens of each passage: of each text one from its beginning and one from its middle."""
    tokenizer = llama_cpp.Llama(peer, vocab_only=True, verbose=False)
    for path in paths:
        tokens = tokenizer.tokenize(Path(path).read_bytes(), add_bos=False, special=False)
        for passage in range(N_PASSAGES):
            begin = len(tokens) * passage // N_PASSAGES
            yield tokens[begin:begin + N_TOKENS]


def compare(program, name, model, peer, texts):
    exact, costs, n_positions = Cost(), {}, 0
    for passage in passages_of(peer, texts):
        n_positions += len(passage)
        precise = of_moeflux(program, model, passage, ["--precise"])
        exact.add(precise, precise, passage)
        for arithmetic, options in MOEFLUX.items():
            logits = of_moeflux(program, model, passage, options)
            costs.setdefault(arithmetic, Cost()).add(precise, logits, passage)
        for arithmetic, options in LLAMA.items():
            logits = of_llama(peer, passage, options)
            costs.setdefault(arithmetic, Cost()).add(precise, logits, passage)

    print(f"\n{name}: {n_positions} positions, perplexity {np.exp(np.mean(exact.surprises)):.2f} in f32\n")
    print("| arithmetic | mean KL divergence | median | but for the first two positions | same token | perplexity |")
    print("|---|---|---|---|---|---|")
    for arithmetic, cost in costs.items():
        print(cost.row(arithmetic, exact), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moeflux")
    parser.add_argument("--model", nargs=3, action="append", metavar=("NAME", "MODEL", "PEER"), required=True)
    parser.add_argument("--text", action="append", required=True)
    args = parser.parse_args()
    for name, model, peer in args.model:
        compare(args.moeflux, name, model, peer, args.text)


if __name__ == "__main__":
    main()
