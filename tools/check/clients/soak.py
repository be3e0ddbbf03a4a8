#!/usr/bin/env python3
"""soak.py MOEFLUX [N]: N mixed requests (10,000) to a server of the demo model. Standard library only.

Prints the server's memory after a tenth of them and after all, and fails if it has grown by more
than 2 %. Some requests are streamed, some are left early, some are wrong. Without --no-replay the
server would keep answers, of these some 150 bytes each, until they take 32 MB.
"""
import http.client
import json
import random
import re
import subprocess
import sys
import threading
import urllib.parse

QUESTIONS = ["What does Vec::push do?", "What is a slice?", "fn main", "Is Rc thread-safe?", "u8 is"]
N_CLIENTS = 8


def rss_kb(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1])


def request(draw):
    text = draw.choice(QUESTIONS) + " please" * draw.randrange(40)
    stream = draw.random() < 0.5
    common = {"stream": stream, "temperature": draw.choice([0, 1, 2]), "max_tokens": draw.randrange(1, 24)}
    messages = [{"role": "user", "content": text}]
    kind = draw.randrange(5)
    if kind == 0:
        return "/v1/completions", common | {"prompt": text, "echo": draw.random() < 0.3, "logprobs": draw.choice([None, 2])}
    if kind == 1:
        return "/v1/messages", common | {"messages": messages}
    if kind == 2:
        del common["max_tokens"]
        return "/v1/responses", common | {"input": text, "max_output_tokens": 16}
    if kind == 3:
        return "/v1/chat/completions", common | {"messages": messages, "n": draw.randrange(-1, 3)}
    return "/v1/chat/completions", common | {"messages": messages}


def client(address, seed, n, statuses):
    draw = random.Random(seed)
    for _ in range(n):
        path, body = request(draw)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if draw.random() < 0.1:
            response.read(30)
        else:
            response.read()
        statuses[response.status] = statuses.get(response.status, 0) + 1
        connection.close()


def main():
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    command = [sys.argv[1], "serve", "--port", "0", "--log", "off", "--no-replay", "--cache-dir", "none"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = urllib.parse.urlparse(re.search(r" at (http://\S+)", process.stderr.readline())[1])
        statuses, sizes = {}, []
        for first, last in [(0, n // 10), (n // 10, n)]:
            each = (last - first) // N_CLIENTS
            threads = [threading.Thread(target=client, args=(address, first + seed, each, statuses))
                       for seed in range(N_CLIENTS)]
            [it.start() for it in threads]
            [it.join() for it in threads]
            sizes.append(rss_kb(process.pid))
            print(f"after {last} requests: {sizes[-1] / 1024:.1f} MB, by status {statuses}", flush=True)
    finally:
        process.terminate()
        process.wait()
    return sizes[1] > 1.02 * sizes[0]


if __name__ == "__main__":
    sys.exit(main())
