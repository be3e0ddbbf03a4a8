#!/usr/bin/env python3
"""toolgen.py DATA [DIALOGUES]: random tool dialogues of toolcalls.py as token streams, DATA/tools.u16 and DATA/tools.mask.u8.

Runs on the training machine: 400,000 dialogues are more than can travel. Needs DATA/words.json, DATA/model/tokenizer.json. Seeds are fixed.
"""
import json, os, sys, time
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from multiprocessing import Pool
from pathlib import Path
import numpy as np
from tokenizers import Tokenizer
import toolcalls

CHUNK, N_DIALOGUES, SEED = 4_000, 400_000, 1_000


def made(job):
    data, seed, n = job
    toolcalls.use_words(json.loads((data / "words.json").read_text()))
    tok = Tokenizer.from_file(str(data / "model/tokenizer.json"))
    think, end, eot = (tok.token_to_id(t) for t in ("<think>", "<|im_end|>", "<|endoftext|>"))
    ids, mask = [], []
    for e in tok.encode_batch(toolcalls.some(n, seed), add_special_tokens=False):
        on, row = 0, e.ids
        for t in row:      # as tokenizer.py's mask: from <think> to <|im_end|>
            on = 1 if t == think else on
            mask.append(on)
            on = 0 if t == end else on
        ids += row + [eot]
        mask.append(0)
    return np.array(ids, "<u2"), np.array(mask, "u1")


def main():
    t, data = time.time(), Path(sys.argv[1])
    n = int(sys.argv[2]) if len(sys.argv) > 2 else N_DIALOGUES
    jobs = [(data, SEED + i, min(CHUNK, n - at)) for i, at in enumerate(range(0, n, CHUNK))]
    with Pool(min(16, os.cpu_count())) as pool:
        parts = pool.map(made, jobs, chunksize=1)
    ids, mask = (np.concatenate(p) for p in zip(*parts))
    ids.tofile(data / "tools.u16")
    mask.tofile(data / "tools.mask.u8")
    print(f"{n} tool dialogues, {len(ids)} tokens, {int(mask.sum())} counted, {time.time() - t:.0f} s", flush=True)


if __name__ == "__main__":
    main()
