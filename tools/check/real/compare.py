#!/usr/bin/env python3
"""compare.py MOEFLUX MODEL.gguf PEER.gguf TEXT: what the arithmetics of moeflux and llama.cpp cost.

MODEL and PEER are the same function, TEXT is cut into passages. All logits of each position are compared with
those that moeflux computes in f32 (--precise): the KL divergence, and the perplexity of the text. Prints a table.
Needs numpy and llama-cpp-python.
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
    """Of an arithmetic, position by position."""

    def __init__(self):
        self.divergences, self.surprises = [], []

    def add(self, exact, logits, tokens):
        for position, row in enumerate(logits):
            found = log_softmax(row)
            expected = log_softmax(exact[position])
            self.divergences.append((np.exp(expected) * (expected - found)).sum())
            if position + 1 < len(tokens):
                self.surprises.append(-found[tokens[position + 1]])

    def row(self, name, exact):
        all_of_it = np.array(self.divergences)
        later = np.concatenate([it[N_FIRST:] for it in np.split(all_of_it, N_PASSAGES)])
        more = np.exp(np.mean(self.surprises) - np.mean(exact.surprises)) - 1
        figures = [all_of_it.mean(), np.median(all_of_it), later.mean()]
        cells = [f"{it:.1e}" for it in figures] + [f"{100 * more:+.2f} %"]
        return f"| {name} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("moeflux", "model", "peer", "text"):
        parser.add_argument(name)
    args = parser.parse_args()
    text = Path(args.text).read_bytes()
    tokenizer = llama_cpp.Llama(args.peer, vocab_only=True, verbose=False)
    tokens = tokenizer.tokenize(text, add_bos=False, special=False)
    # From the beginning, and from the middle.
    begins = [len(tokens) * passage // N_PASSAGES for passage in range(N_PASSAGES)]
    passages = [tokens[begin:begin + N_TOKENS] for begin in begins]

    exact, costs = Cost(), {}
    for passage in passages:
        precise = of_moeflux(args.moeflux, args.model, passage, ["--precise"])
        exact.add(precise, precise, passage)
        for name, options in MOEFLUX.items():
            logits = of_moeflux(args.moeflux, args.model, passage, options)
            costs.setdefault(name, Cost()).add(precise, logits, passage)
        for name, options in LLAMA.items():
            logits = of_llama(args.peer, passage, options)
            costs.setdefault(name, Cost()).add(precise, logits, passage)

    print(f"{sum(map(len, passages))} positions, perplexity {np.exp(np.mean(exact.surprises)):.2f} in f32\n")
    print("| arithmetic | mean KL divergence | median | mean but for the first two positions | perplexity |")
    print("|---|---|---|---|---|")
    for name, cost in costs.items():
        print(cost.row(name, exact))


if __name__ == "__main__":
    main()
