#!/usr/bin/env python3
"""Whether answers are the same after a kill -9 and a restart as without. Standard library only.

    restarts_exact.py MOEFLUX MODEL CACHE [TURNS] [ARGS..]

Asks two servers the same conversations, turn by turn: one has them in memory, the other is killed before each turn and
finds them in the folder CACHE, which is emptied. Compares tokens and log-probabilities; prints what was cached. ARGS go to both
servers: --backend gpu, for example. MODEL `demo` is the built-in one.
"""
import json
import shutil
import sys
import time

from restarted import Server, objects, settle
from serving import post

N_CONVERSATIONS = 3


def answer(server, messages):
    """The answer with its log-probabilities, and the number of cached tokens."""
    request = {"messages": messages, "max_tokens": 40, "temperature": 1, "seed": 7, "logprobs": True, "top_logprobs": 4}
    found = post(server.url, "/v1/chat/completions", request)
    return found["choices"][0], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def main(moeflux, model, cache, n_turns="5", *args):
    shutil.rmtree(cache, ignore_errors=True)
    model = None if model == "demo" else model
    kept = Server(moeflux, model, ["--cache-dir", "none", *args])
    conversations = [[{"role": "system", "content": f"You are assistant {c}. " * 40}] for c in range(N_CONVERSATIONS)]
    n_cached = [0, 0]
    for turn in range(int(n_turns)):
        for messages in conversations:
            messages.append({"role": "user", "content": f"This is question {turn} about vectors. " * 20})
            restarted = Server(moeflux, model, ["--cache-dir", cache, *args])
            before = objects(cache)
            expected, in_memory = answer(kept, messages)
            found, on_drive = answer(restarted, messages)
            if found != expected:
                raise SystemExit(f"turn {turn}, {messages[0]}:\n{json.dumps(found)}\n{json.dumps(expected)}")
            for _ in range(600):
                if objects(cache) != before:
                    break
                time.sleep(0.05)
            else:
                raise SystemExit(f"turn {turn}: nothing was saved")
            settle(cache)
            restarted.kill()
            n_cached = [n_cached[0] + in_memory, n_cached[1] + on_drive]
            messages.append(found["message"])
    kept.stop()
    n_answers = int(n_turns) * N_CONVERSATIONS
    print(f"{n_answers} answers are the same; {n_cached[0]} tokens found in memory, {n_cached[1]} in the folder")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
