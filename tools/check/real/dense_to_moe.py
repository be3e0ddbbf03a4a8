#!/usr/bin/env python3
"""dense_to_moe.py DENSE.gguf MOE.gguf: writes a dense qwen2 model as a qwen2moe that is the same function.

A SwiGLU layer is a sum over its inner columns. Cut into 8 experts that are all chosen (a router of zeros gives
each 1/8) and one shared expert (a gate of zeros gives 1/2), it is the same sum if the down matrices are multiplied
by 8 and by 2. Both are powers of two and multiply the f16 factors of the blocks exactly: no weight changes
otherwise. Blocks are cut at multiples of 256 columns.
"""

import sys

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFWriter

N_EXPERTS = 8
N_SHARED = 2  # the factor of the shared expert's down matrix
BLOCK = 256
# Bytes of a block, and where in it the f16 factors are.
BLOCKS = {Kind.Q4_K: (144, [0, 2]), Kind.Q5_K: (176, [0, 2]), Kind.Q6_K: (210, [208])}
HEADER_KEYS = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"}


def times(blocks, kind, factor):
    """Blocks [rows, blocks, bytes] of weights that are so many times as large."""
    blocks = blocks.copy()
    for at in BLOCKS[kind][1]:
        before = blocks[:, :, at:at + 2].copy().view(np.float16).astype(np.float32)
        after = (before * factor).astype(np.float16)
        assert np.all(after.astype(np.float32) == before * factor), "a factor does not fit into an f16"
        blocks[:, :, at:at + 2] = after.view(np.uint8)
    return blocks


class Converter:
    def __init__(self, source, out):
        self.reader = GGUFReader(source)
        architecture = self.reader.fields["general.architecture"].contents()
        if architecture != "qwen2":
            sys.exit(f"dense_to_moe.py: {source} is of the architecture {architecture}, not qwen2")
        down = {it.tensor_type for it in self.reader.tensors if it.name.endswith(".ffn_down.weight")}
        if other := down - BLOCKS.keys():
            names = ", ".join(sorted(it.name for it in other))
            sys.exit(f"dense_to_moe.py: {source} has down matrices in {names}; Q4_K, Q5_K and Q6_K can be cut")
        value = lambda key: self.reader.fields["qwen2." + key].contents()
        self.n_layers, self.width = value("block_count"), value("embedding_length")
        self.n_blocks = value("feed_forward_length") // BLOCK
        # Of an expert; the shared expert has what is left.
        self.n_own = (self.n_blocks - 1) // N_EXPERTS
        self.writer = GGUFWriter(out, "qwen2moe")

    def run(self):
        self.keys()
        for tensor in self.reader.tensors:
            parts = tensor.name.split(".")
            role = parts[2] if len(parts) > 2 else ""
            if role in ("ffn_gate", "ffn_up"):
                self.rows(f"blk.{parts[1]}.{role}", tensor)
            elif role == "ffn_down":
                self.columns(f"blk.{parts[1]}.{role}", tensor)
            else:
                self.writer.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
        for layer in range(self.n_layers):
            zeros = lambda *shape: np.zeros(shape, np.float32)
            self.writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", zeros(N_EXPERTS, self.width))
            self.writer.add_tensor(f"blk.{layer}.ffn_gate_inp_shexp.weight", zeros(self.width))
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    def keys(self):
        for key, field in self.reader.fields.items():
            if key not in HEADER_KEYS:
                inner = field.types[-1] if len(field.types) > 1 else None
                name = key.replace("qwen2.", "qwen2moe.")
                self.writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
        self.writer.add_expert_count(N_EXPERTS)
        self.writer.add_expert_used_count(N_EXPERTS)
        self.writer.add_expert_feed_forward_length(self.n_own * BLOCK)
        shared = self.n_blocks - self.n_own * N_EXPERTS
        self.writer.add_expert_shared_feed_forward_length(shared * BLOCK)

    def rows(self, name, tensor):
        """Gate or up: an inner column is a row."""
        n_rows = self.n_own * BLOCK
        rows = np.asarray(tensor.data).view(np.uint8).reshape(self.n_blocks * BLOCK, -1)
        experts = np.stack([rows[it * n_rows:(it + 1) * n_rows] for it in range(N_EXPERTS)])
        self.put(name, experts, rows[N_EXPERTS * n_rows:], tensor.tensor_type)

    def columns(self, name, tensor):
        kind = tensor.tensor_type
        blocks = np.asarray(tensor.data).view(np.uint8).reshape(self.width, self.n_blocks, BLOCKS[kind][0])
        flat = lambda part, factor: times(part, kind, factor).reshape(self.width, -1)
        cut = lambda it: blocks[:, it * self.n_own:(it + 1) * self.n_own]
        experts = np.stack([flat(cut(it), N_EXPERTS) for it in range(N_EXPERTS)])
        shared = flat(blocks[:, N_EXPERTS * self.n_own:], N_SHARED)
        self.put(name, experts, shared, kind)

    def put(self, name, experts, shared, kind):
        for end, part in (("_exps", experts), ("_shexp", shared)):
            self.writer.add_tensor(f"{name}{end}.weight", np.ascontiguousarray(part), raw_dtype=kind)


if __name__ == "__main__":
    Converter(*sys.argv[1:]).run()
