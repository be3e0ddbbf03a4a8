#!/usr/bin/env python3
"""Writes frames as one small PNG or as an animated WebP; page_pictures.mjs calls it.

    pack_frames.py PICTURE < FRAMES

FRAMES is JSON: the paths of PNG files, and how long each is shown. Few colours are enough for a
page of plain areas and text. There is no dithering, which would make the areas large. Equal frames
in sequence become one.
"""

import json
import pathlib
import sys

from PIL import Image

# As cargo xtask tidy has it for every file.
N_BYTES_MAX = 100_000
N_COLOURS = {".png": 200, ".webp": 48}
# The palette of a film is that of this many frames, spread over it.
N_SAMPLES = 8


def palette_of(frames, n_colours):
    """A palette for all frames; a median cut would give rare accents to the many greys."""
    step = max(1, len(frames) // N_SAMPLES)
    samples = frames[::-step][:N_SAMPLES]
    width, height = samples[0].size
    sheet = Image.new("RGB", (width, height * len(samples)))
    for index, sample in enumerate(samples):
        sheet.paste(sample, (0, index * height))
    return sheet.quantize(n_colours, method=Image.Quantize.MAXCOVERAGE, kmeans=2)


def without_repeats(frames, times_ms):
    """Frames that differ from the one before, and their times."""
    kept, kept_ms = [], []
    for frame, time_ms in zip(frames, times_ms):
        if kept and frame.tobytes() == kept[-1].tobytes():
            kept_ms[-1] += time_ms
        else:
            kept.append(frame)
            kept_ms.append(time_ms)
    return kept, kept_ms


def main():
    target = pathlib.Path(sys.argv[1])
    told = json.load(sys.stdin)
    frames = [Image.open(path).convert("RGB") for path in told["frames"]]
    palette = palette_of(frames, N_COLOURS[target.suffix])
    packed = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    if target.suffix == ".webp":
        packed, times_ms = without_repeats(packed, told["times_ms"])
        first, *others = [frame.convert("RGB") for frame in packed]
        first.save(target, save_all=True, append_images=others, duration=times_ms, loop=0,
                   lossless=True, quality=80, method=4, minimize_size=True)
    else:
        packed[0].save(target, optimize=True)
    n_bytes = target.stat().st_size
    print(f"{target.name}: {len(packed)} frames, {n_bytes} bytes")
    if n_bytes > N_BYTES_MAX:
        raise SystemExit(f"{target.name} has {n_bytes} bytes, at most {N_BYTES_MAX}")


if __name__ == "__main__":
    main()
