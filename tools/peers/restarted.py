#!/usr/bin/env python3
"""What a conversation costs after a restart, in the time to the first token and in bytes written. Standard library only.

    restarted.py turns  MOEFLUX MODEL CACHE [PAIRS] [LIMIT] [ARGS..]
    restarted.py agents MOEFLUX MODEL CACHE [N] [TURNS] [ARGS..]
    restarted.py beside MOEFLUX MODEL CACHE [ROUNDS] [ARGS..]
    restarted.py flat   MOEFLUX MODEL CACHE [N] [SIZE] [ARGS..]

`turns`: a prompt of 16,000 tokens and 20 turns of 500; then PAIRS (5) further turns, each asked twice: of the server that
has the conversation in memory, and after a kill -9 and a restart. LIMIT (0: none) is that of a memory cgroup, which needs
root. `agents`: N (4) agents in turn with prompts of 8,000 tokens that grow by 300 in each of TURNS (25) turns; give the
server memory for some of them in ARGS. `beside`: the rate of an answer right after a prompt of 3,000 tokens, which is being
saved meanwhile, in turn with a server that saves nothing. `flat`: N (10,000) short prompts with a folder of SIZE (64M), beside the same
without it. CACHE is a folder on the drive in question, which is emptied. Prompts are random token ids, answers have one token.
"""
import http.client
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

import limited
from serving import ask, ends_of, post, spread, vocab_of


class Server:
    def __init__(self, moeflux, model, args, group=None):
        # The built-in model has no path.
        model = ["--model", model] if model else []
        command = [moeflux, "serve", "--port", "0", *model, "--backend", "cpu", *args]
        enter = group.enter if group else None
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=enter)
        for line in self.process.stderr:
            if found := re.search(r" at (http://\S+)", line):
                self.url = found[1]
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()
        # The model is loaded before anything is timed.
        self.ask([1, 2, 3])

    def ask(self, tokens):
        """The seconds to the answer's only token, and the number of cached tokens."""
        began = time.perf_counter()
        answer = post(self.url, "/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0})
        return time.perf_counter() - began, answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def rss(self):
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait()


def objects(cache):
    """Bytes of all objects, by kind."""
    found = {}
    for path, _, names in os.walk(os.path.join(cache, "objects")):
        for name in names:
            kind = name.rsplit(".", 1)[-1]
            found.setdefault(kind, []).append(os.path.getsize(os.path.join(path, name)))
    return found


def settle(cache):
    """Waits until nothing more is written, and returns the objects."""
    before, since = objects(cache), time.monotonic()
    while time.monotonic() - since < 1.5:
        time.sleep(0.1)
        if (now := objects(cache)) != before:
            before, since = now, time.monotonic()
    return before


def total(found):
    return sum(map(sum, found.values()))


def turns(moeflux, model, cache, pairs="5", limit="0", *more):
    shutil.rmtree(cache, ignore_errors=True)
    group = limited.Cgroup(limited.size(limit)) if limited.size(limit) else None
    args = ["--cache-dir", cache, "--context", "32768", *more]
    draw, vocab = random.Random(7), vocab_of(model)
    text = [draw.randrange(vocab) for _ in range(16000)]
    server = Server(moeflux, model, args, group)
    first, _ = server.ask(text)
    before = settle(cache)
    for _ in range(20):
        text += [draw.randrange(vocab) for _ in range(500)]
        server.ask(text)
        after = settle(cache)
    state = max(after.get("state", [0]))
    # The segments of the first prompt, per token.
    per_token = sum(before["segment"]) / 16000
    ideal = 20 * (500 * per_token + state)
    written = total(after) - total(before)
    print(f"16,000 tokens {first:.1f} s; {per_token:.0f} bytes per token, {state} per state; 20 turns of 500 tokens: "
          f"{written} bytes written, {written / ideal:.3f} times what is new", flush=True)
    ratios, n_computed, loaded = [], [], []
    for _ in range(int(pairs)):
        text += [draw.randrange(vocab) for _ in range(500)]
        warm, n_warm = server.ask(text)
        settle(cache)
        server.kill()
        limited.drop_cache([cache])
        server = Server(moeflux, model, args, group)
        cold, n_cold = server.ask(text)
        ratios.append(cold / warm)
        n_computed.append(len(text) - n_cold)
        loaded.append(n_cold * per_token + state)
        print(f"  {len(text)} tokens: {warm:.2f} s ({len(text) - n_warm} computed), after a restart {cold:.2f} s "
              f"({len(text) - n_cold} computed, {loaded[-1] / 1e6:.0f} MB loaded)", flush=True)
    server.stop()
    print(f"after a restart {spread(ratios)} times as long; at most {max(n_computed)} tokens computed")


def agents(moeflux, model, cache, n="4", turns="25", *more):
    shutil.rmtree(cache, ignore_errors=True)
    draw, vocab = random.Random(7), vocab_of(model)
    server = Server(moeflux, model, ["--cache-dir", cache, "--context", "32768", *more])
    texts = [[draw.randrange(vocab) for _ in range(8000)] for _ in range(int(n))]
    n_prompt = n_cached = n_possible = 0
    for turn in range(int(turns)):
        for text in texts:
            _, found = server.ask(text)
            n_prompt, n_cached = n_prompt + len(text), n_cached + found
            n_possible += len(text) - 300 if turn else 0
            text += [draw.randrange(vocab) for _ in range(300)]
    dropped = [it for it in metrics(server.url) if "sessions_dropped" in it and not it.startswith("#")]
    server.stop()
    print(f"{n} agents, {turns} turns: {n_cached} of {n_prompt} prompt tokens cached ({n_cached / n_prompt:.3f}), "
          f"{n_cached / n_possible:.3f} of those that had come before")
    print("\n".join(dropped))


def metrics(url):
    address = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode().splitlines()


def beside(moeflux, model, cache, rounds="8", *more):
    shutil.rmtree(cache, ignore_errors=True)
    vocab, ends = vocab_of(model), ends_of(model)
    saving = Server(moeflux, model, ["--cache-dir", cache, "--context", "8192", *more])
    plain = Server(moeflux, model, ["--cache-dir", "none", "--context", "8192", *more])
    draw, ratios = random.Random(7), []
    for _ in range(int(rounds)):
        rates = []
        text = [draw.randrange(vocab) for _ in range(3000)]
        for server in (saving, plain):
            server.ask(text)
            times, _, _ = ask(server.url, text[:20], 100, ends)
            rates.append((len(times) - 1) / (times[-1] - times[0]))
        ratios.append(rates[0] / rates[1])
        settle(cache)
    saving.stop()
    plain.stop()
    print(f"answers while a prompt of 3,000 tokens is saved, against none saved: {spread(ratios)}; "
          f"{total(objects(cache)) / int(rounds) / 1e6:.1f} MB each; last rates {rates[0]:.2f} and {rates[1]:.2f} tokens/s")


def flat(moeflux, model, cache, n="10000", size="64M", *more):
    shutil.rmtree(cache, ignore_errors=True)
    vocab = vocab_of(model)
    saving = Server(moeflux, model, ["--cache-dir", cache, "--cache-size", size, "--context", "2048", *more])
    plain = Server(moeflux, model, ["--cache-dir", "none", "--context", "2048", *more])
    draw, times, sizes, memory = random.Random(7), ([], []), [], []
    for idx in range(int(n)):
        text = [draw.randrange(vocab) for _ in range(100)]
        for server, found in zip((saving, plain), times):
            found.append(server.ask(text)[0])
        if idx % (int(n) // 10) == 0 or idx == int(n) - 1:
            sizes.append(total(objects(cache)))
            memory.append(saving.rss())
    saving.stop()
    plain.stop()
    quantiles = [(statistics.median(it), statistics.quantiles(it, n=100)[98]) for it in times]
    (median, p99), (plain_median, plain_p99) = quantiles
    print(f"{n} prompts of 100 tokens: median {median * 1e3:.2f} ms and {plain_median * 1e3:.2f} without ({median / plain_median:.3f}), "
          f"99th percentile {p99 * 1e3:.2f} and {plain_p99 * 1e3:.2f} ({p99 / plain_p99:.3f})")
    print(f"bytes of the folder at each tenth: {sizes}; resident: {[it >> 20 for it in memory]} MiB")


if __name__ == "__main__":
    modes = {"turns": turns, "agents": agents, "beside": beside, "flat": flat}
    if len(sys.argv) < 5 or sys.argv[1] not in modes:
        raise SystemExit(__doc__)
    modes[sys.argv[1]](*sys.argv[2:])
