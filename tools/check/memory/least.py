"""Runs an answer with the least memory that `moeflux plan` names, in a control group of that size.

    least.py PROGRAM FOLDER

Models of 512 and of 151,936 tokens, the latter also with a merge for each, as published tokenizers
have them. A run that fails or is killed is a failure, and so is a least that is more than 20 MiB
larger than need be: where it says so, smaller ones are tried.
"""

import json
import subprocess
import sys
from pathlib import Path

from check import CONFIG, MIB
from group import Group

TOO_MUCH = 20 * MIB


def merged(tokenizer, n_tokens):
    """A tokenizer of so many tokens, all but the bytes made by merges."""
    vocab = {text: n for text, n in tokenizer["model"]["vocab"].items() if n < 256}
    letters = list(vocab)
    made, merges = list(letters), []
    while len(vocab) < n_tokens:
        left, right = made[len(merges) // 256], letters[len(merges) % 256]
        merges.append([left, right])
        vocab[left + right] = len(vocab)
        made.append(left + right)
    return {**tokenizer, "added_tokens": [], "model": {**tokenizer["model"], "vocab": vocab, "merges": merges}}


def model(program, work, name, n_tokens, has_merges):
    folder = Path(work) / name
    config = Path(work) / f"{name}.json"
    config.write_text(json.dumps({**CONFIG, "vocab_size": n_tokens, "eos_token_id": 255, "bos_token_id": 255}))
    synth = [program, "synth", "--config", config, "--out", folder, "--bits", "8"]
    subprocess.run(synth, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if has_merges:
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(merged(json.loads(path.read_text()), n_tokens)))
    return folder


def answer(program, folder, memory):
    """Its exit code, what it said last, and its peak."""
    command = [program, "generate", "x", "--model", folder, "--backend", "cpu", "-n", "4", "--memory", str(memory)]
    group = Group(command, memory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, error = group.process.communicate()
    peak = group.peak()
    group.end()
    return group.process.returncode, error.decode(errors="replace").strip()[-200:], peak


def main():
    program, work = sys.argv[1:]
    n_failed = 0
    for name, n_tokens, has_merges in [("small", 512, False), ("large", 151_936, False), ("merged", 151_936, True)]:
        folder = model(program, work, name, n_tokens, has_merges)
        plan = subprocess.run([program, "plan", folder, "--json"], check=True, capture_output=True, text=True)
        least = json.loads(plan.stdout)["least_bytes"]
        code, said, peak = answer(program, folder, least)
        is_tight = answer(program, folder, least - TOO_MUCH)[0] != 0
        problem = said if code else "" if is_tight else f"{TOO_MUCH // MIB} MiB less are enough"
        n_failed += bool(problem)
        told = f"FAILED: {problem}" if problem else ""
        print(f"least {name:8} {least / MIB:8.1f} MiB, peak {peak / MIB:8.1f}  {told}", flush=True)
    sys.exit(bool(n_failed))


if __name__ == "__main__":
    main()
