"""Compares ids and decoded texts of one family's pipeline with those of PyPI's tokenizers.

    compare_tokens.py PROGRAM DIR

PROGRAM is the test program `tokenizers` of crate moeflux, DIR a folder with a tokenizer.json.
"""

import json
import random
import subprocess
import sys

from tokenizers import Tokenizer

SHORT = [
    "", " ", "Hello, world!", "It's 12  spaces,\n\n \tand 語 ÉÀ! ", "I'LL SAY  'tis\r\n\r\n x",
    "<|im_start|>user\nWhat is 3.14159 * 1000000?<|im_end|>\n", "<s>a</s> b<unk>c",
    "camelCase HTTPServer XMLñandÉcole", "日本語のテキストとカタカナ、漢字。한국어 текст",
    "e\u0301\u0327 नमस्ते ภาษาไทย \ufb01", "😀👍🏽 👨‍👩‍👧 $€£ /*//**/#define _x_",
    "\t\t        if x:\n                return y   \n\n\n", "\u00a0\u3000  \u0085\u2028end",
]


def texts() -> list[str]:
    draw = random.Random(5)
    letters = "".join(SHORT)
    made = ["".join(draw.choices(letters, k=draw.randrange(80))) for _ in range(1000)]
    return SHORT + made + [" " * 5000 + "x", "a" * 5000, "1" * 5000, "\n" * 5000, "語" * 5000]


def main() -> None:
    program, folder = sys.argv[1:]
    theirs = Tokenizer.from_file(f"{folder}/tokenizer.json")
    lines = "".join(json.dumps(text) + "\n" for text in texts())
    answer = subprocess.run([program, "--encode", folder], input=lines, text=True, capture_output=True)
    if answer.returncode != 0:
        sys.exit(f"the program failed: {answer.stderr[:200]}")
    ours = [json.loads(line) for line in answer.stdout.rstrip("\n").split("\n")]
    n_tokens = 0
    for text, got in zip(texts(), ours, strict=True):
        ids = theirs.encode(text, add_special_tokens=False).ids
        n_tokens += len(ids)
        if got["ids"] != ids:
            sys.exit(f"{text[:60]!r}: {got['ids'][:20]}, not {ids[:20]}")
        if got["text"] != theirs.decode(ids, skip_special_tokens=False):
            sys.exit(f"{text[:60]!r} is decoded as {got['text'][:60]!r}")
    print(f"{len(ours)} texts, {n_tokens} tokens")


main()
