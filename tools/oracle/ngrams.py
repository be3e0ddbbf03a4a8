#!/usr/bin/env python3
"""ngrams.py FILE: cases of n-gram hashes as transformers' qwen4_exp computes them, as JSON.

Each case is a shape, its constants, and tokens with the rows of the table that they need, one list for each token. Tokens come in one piece and,
through the cache of transformers, in pieces of random sizes; both must agree. Some tokens are end tokens, some of them first, last or in a row.
"""
import json
import random
import sys

import torch
from transformers.cache_utils import DynamicCache
from transformers.models.qwen4_exp import modeling_qwen4_exp as modeling
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

N_TOKENS = 24


class Rows(torch.nn.Module):
    """Stands in for the table: returns row numbers, and knows how many rows there would be."""

    def __init__(self, n_rows, n_cols):
        super().__init__()
        self.n_rows = n_rows
        self.weight = torch.zeros(0)

    def forward(self, ids):
        return ids.unsqueeze(-1)


def shape_of(number, rng):
    published = dict(vocab=248320, n_tokens_max=3, n_heads_each=8, n_rows_min=20_000_000, divisor=128, seed=1234, module_idx=0, end=248046)
    if number == 0:
        return published
    vocab = rng.choice([17, 101, 151936, 248320, 1 << 20])
    return dict(
        vocab=vocab, n_tokens_max=rng.choice([2, 3, 3, 4, 5]), n_heads_each=rng.choice([1, 2, 4, 8]),
        n_rows_min=rng.choice([1, 2, 7, 100, 101, 65536, 20_000_000]), divisor=rng.choice([1, 8, 128]),
        seed=rng.choice([0, 1, 1234, -5, (1 << 63) - 1, rng.randrange(1 << 40)]), module_idx=rng.choice([0, 0, 1, 3]), end=rng.randrange(vocab))


def case(number, rng):
    shape = shape_of(number, rng)
    n_heads = (shape["n_tokens_max"] - 1) * shape["n_heads_each"]
    config = Qwen4ExpTextConfig(
        vocab_size=shape["vocab"], ngram_size=shape["n_tokens_max"], heads_per_ngram=shape["n_heads_each"],
        ngram_vocab_size_base=shape["n_rows_min"], make_ngram_vocab_size_divisible_by=shape["divisor"], seed=shape["seed"],
        eos_token_id=[shape["end"], (shape["end"] + 1) % shape["vocab"]], num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"], ple_layer_ids=[1], ple_embed_dim=n_heads)
    hashed = modeling.Qwen4ExpTextNGramEmbedding(config, n_heads, 0, shape["module_idx"])
    tokens = [rng.randrange(shape["vocab"]) if rng.random() < 0.8 else shape["end"] for _ in range(N_TOKENS)]
    rows = hashed(torch.tensor([tokens]), None).reshape(N_TOKENS, n_heads)
    cache, parts, begin = DynamicCache(config=config), [], 0
    while begin < N_TOKENS:
        end = min(N_TOKENS, begin + rng.randrange(1, 6))
        parts.append(hashed(torch.tensor([tokens[begin:end]]), cache).reshape(end - begin, n_heads))
        begin = end
    assert torch.equal(rows, torch.cat(parts)), f"case {number}: pieces differ"
    return dict(
        shape=shape, multipliers=hashed.layer_multipliers.tolist(), n_rows_of_heads=hashed.ngram_heads_vocab_sizes.tolist(),
        first_rows=hashed.ngram_heads_offsets.tolist(), n_rows=hashed.ngram_embedding.n_rows, tokens=tokens, rows=rows.tolist())


def main():
    modeling.nn.Embedding = Rows
    rng = random.Random(47)
    cases = [case(number, rng) for number in range(25)]
    with open(sys.argv[1], "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(it) for it in cases) + "\n]\n")


main()
