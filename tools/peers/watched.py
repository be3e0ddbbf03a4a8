#!/usr/bin/env python3
"""Compares the answers of a server while a page watches it with those while nobody does.

    tools/peers/watched.py MOEFLUX [OPTION ..]     the program, and options for `serve`

Starts `moeflux serve` with the demo model and asks it for answers of 600 tokens in the order A B B A:
alone, with a listener, with a listener, alone. A listener does what the page does with its view of
the machine open: it reads the events of /moeflux/machine and asks /moeflux/experts once a second.
Prints the median rates, and the ratio of each four answers with quartiles. Run it on a quiet machine.
"""

import http.client
import json
import math
import re
import statistics
import subprocess
import sys
import threading
import time

N_TOKENS = 600
N_FOURS = 12
# The tokens that end an answer of the demo model.
NO_END = {str(token): -1000 for token in range(8185, 8192)}


class Server:
    def __init__(self, program, options):
        command = [program, "serve", "--port", "0", "--sessions", "1", "--cache-dir", "none", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r" at http://(\S+)", line):
                self.address = found[1]
                break
        else:
            sys.exit("the server did not start")
        threading.Thread(target=lambda: self.process.stderr.read(), daemon=True).start()

    def connection(self):
        return http.client.HTTPConnection(self.address, timeout=120)

    def rate(self):
        """Returns the tokens per second of an answer."""
        body = {"prompt": "A slice", "max_tokens": N_TOKENS, "temperature": 0, "logit_bias": NO_END}
        connection = self.connection()
        began = time.monotonic()
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = json.loads(connection.getresponse().read())
        took = time.monotonic() - began
        connection.close()
        assert answer["usage"]["completion_tokens"] == N_TOKENS, answer
        return N_TOKENS / took


class Listener:
    """Watches a server until the end of a `with` block."""

    def __init__(self, server):
        self.server = server
        self.is_over = False

    def __enter__(self):
        for task in (self.read_events, self.ask_for_experts):
            threading.Thread(target=task, daemon=True).start()
        time.sleep(0.2)

    def __exit__(self, *_):
        self.is_over = True
        time.sleep(0.3)

    def read_events(self):
        connection = self.server.connection()
        connection.request("GET", "/moeflux/machine")
        events = connection.getresponse()
        while not self.is_over:
            events.readline()
        connection.close()

    def ask_for_experts(self):
        while not self.is_over:
            connection = self.server.connection()
            connection.request("GET", "/moeflux/experts")
            connection.getresponse().read()
            connection.close()
            time.sleep(1)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    server = Server(sys.argv[1], sys.argv[2:])
    alone, watched, ratios = [], [], []
    server.rate()
    for _ in range(N_FOURS):
        logs = []
        for listens in (False, True, True, False):
            if listens:
                with Listener(server):
                    rate = server.rate()
            else:
                rate = server.rate()
            (watched if listens else alone).append(rate)
            logs.append(math.log(rate) if listens else -math.log(rate))
        ratios.append(math.exp(sum(logs) / 2))
    server.process.kill()
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"alone {statistics.median(alone):.1f} tokens/s, watched {statistics.median(watched):.1f}")
    print(f"ratio {middle:.4f}, quartiles {low:.4f} to {high:.4f}, {N_FOURS} times four answers")


if __name__ == "__main__":
    main()
