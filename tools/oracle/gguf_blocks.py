#!/usr/bin/env python3
"""gguf_blocks.py FILE: blocks of every GGUF type that runs here, and a hash of the weights that `gguf.quants` (PyPI `gguf`) makes of each.

One line a block: its type, its bytes, the FNV-1a 64 of its weights as little-endian f32, each NaN as 0x7fc00000. Blocks are random and extreme:
scales that are zero, negative, the least and the largest f16, infinite or not a number; codes that are all 0, all 1, and all entries of a codebook.
MXFP4 with the exponent 255 is left out: its scale is not a number, and the package takes it for 2^127.
gguf_blocks.py --grids: the codebooks as crates/moeflux-kernels/src/matrix/blocks/grids.rs has them.
"""
import sys
import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

# Where each type has its f16 scales, how many random blocks it gets, and where its codebook indices lie: (bytes of them, entries)
TYPES = {
    "Q4_0": ((0,), 8), "Q4_1": ((0, 2), 8), "Q5_0": ((0,), 8), "Q5_1": ((0, 2), 8), "Q8_0": ((0,), 8),
    "Q2_K": ((80, 82), 6), "Q3_K": ((108,), 6), "Q4_K": ((0, 2), 6), "Q5_K": ((0, 2), 6), "Q6_K": ((208,), 6),
    "IQ2_XXS": ((0,), 6), "IQ2_XS": ((0,), 6), "IQ2_S": ((0,), 6), "IQ3_XXS": ((0,), 6), "IQ3_S": ((0,), 6),
    "IQ4_NL": ((0,), 8), "IQ4_XS": ((0,), 6), "MXFP4": ((), 8),
}
# Zeros, the least, a denormal, the largest, infinity, not a number; and signs.
EXTREMES = (0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00)


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return h


def with_scales(block, places, scales):
    for at, scale in zip(places, scales):
        block[at:at + 2] = np.array([scale], "<u2").view(np.uint8)
    return block


def ordinary(random):
    """An f16 as files have them."""
    return int(np.array([random.normal() * 0.02], np.float16).view(np.uint16)[0])


def entries(name, size, random):
    """Blocks whose codebook indices are all there are, one after the other."""
    if name == "IQ2_XXS":
        for first in range(0, 256, 32):
            block = random.integers(0, 256, size, np.uint8)
            block[2:].reshape(8, 8)[:, :4] = np.arange(first, first + 32).reshape(8, 4)
            yield block
    if name == "IQ2_XS":
        for first in range(0, 512, 32):
            block = random.integers(0, 256, size, np.uint8)
            words = np.arange(first, first + 32) | random.integers(0, 128, 32) << 9
            block[2:66] = words.astype("<u2").view(np.uint8)
            yield block
    if name == "IQ2_S":
        for first in range(0, 1024, 32):
            block = random.integers(0, 256, size, np.uint8)
            block[2:34] = np.arange(first, first + 32) & 255
            block[66:74] = 0x55 * (first >> 8)
            yield block
    if name == "IQ3_XXS":
        for first in range(0, 256, 64):
            block = random.integers(0, 256, size, np.uint8)
            block[2:66] = np.arange(first, first + 64)
            yield block
    if name == "IQ3_S":
        for first in range(0, 512, 64):
            block = random.integers(0, 256, size, np.uint8)
            block[2:66] = np.arange(first, first + 64) & 255
            block[66:74] = 255 * (first >> 8)
            yield block


def blocks(name, random):
    _, size = GGML_QUANT_SIZES[T[name]]
    places, n_random = TYPES[name]
    for _ in range(n_random):
        yield with_scales(random.integers(0, 256, size, np.uint8), places, [ordinary(random) for _ in places])
    for byte in (0x00, 0xff, 0x0f, 0xf0, 0x55, 0xaa):
        yield with_scales(np.full(size, byte, np.uint8), places, [ordinary(random) for _ in places])
    for block in entries(name, size, random):
        yield with_scales(block, places, [ordinary(random) for _ in places])
    for i, scale in enumerate(EXTREMES if places else ()):
        scales = [scale, EXTREMES[(i * 3 + 1) % len(EXTREMES)]]
        yield with_scales(random.integers(0, 256, size, np.uint8), places, scales)
    for e in (0, 1, 2, 3, 126, 127, 128, 254) if name == "MXFP4" else ():
        block = random.integers(0, 256, size, np.uint8)
        block[0] = e
        yield block


def usable(name, block):
    return name != "MXFP4" or block[0] != 255


def main(path):
    random = np.random.default_rng(20261124)
    with open(path, "w") as out, np.errstate(all="ignore"):
        for name in TYPES:
            for block in blocks(name, random):
                if usable(name, block):
                    values = quants.dequantize(block.reshape(1, -1), T[name]).reshape(-1).astype("<f4")
                    values[np.isnan(values)] = np.array([0x7fc00000], "<u4").view("<f4")[0]
                    print(name, block.tobytes().hex(), f"{fnv(values.tobytes()):016x}", file=out)


def print_grids():
    for name, bits in (("IQ2_XXS", 2), ("IQ2_XS", 2), ("IQ2_S", 2), ("IQ3_XXS", 3), ("IQ3_S", 3)):
        kind = getattr(quants, name)
        kind.init_grid()
        order = {float(value): i for i, value in enumerate(kind.grid_map)}
        rows = kind.grid.reshape(kind.grid_shape)
        packed = [sum(order[float(value)] << bits * k for k, value in enumerate(row)) for row in rows]
        print(f"pub(super) const {name}: [u16; {len(packed)}] = [")
        for first in range(0, len(packed), 12):
            print("    " + " ".join(f"0x{it:04x}," for it in packed[first:first + 12]))
        print("];\n")


if __name__ == "__main__":
    print_grids() if sys.argv[1] == "--grids" else main(sys.argv[1])
