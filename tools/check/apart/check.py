#!/usr/bin/env python3
"""check.py MOEFLUX [replay|keys|readers ...]: attacks servers of the demo model. Standard library only.

replay   second questions behind sampled answers, with and without replay: the same prompts but for
         blank space and the order of keys in calls, and the same log-probabilities without calls
keys     what a client learns of a client with another key, in each dialect and phase of a request
readers  clients that do not read, or take a byte now and then: others are answered all the same
"""
import collections
import http.client
import itertools
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

QUESTIONS = [
    "What does Vec::push do?", "What is a slice?", "Is Rc thread-safe?", "What is a closure?",
    "What does Option::map do?", "How do I read a file?", "What is a lifetime?", "fn main",
    "What does String::len return?", "When is a value dropped?", "What is Box?", "u8 is",
    "What does clone do?", "What is a trait object?",
]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "required": ["city", "days"], "additionalProperties": False,
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}}}}}]


class Server:
    """A server of the demo model, on a free port."""

    def __init__(self, binary, *options):
        command = [binary, "serve", "--port", "0", "--log", "off", "--cache-dir", "none", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://[^ ]+", line):
                self.address = urllib.parse.urlparse(found[0])
                return
        sys.exit(f"{command} does not serve")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def open(self, path, body, key=None, timeout=120):
        connection = http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=timeout)
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        connection.request("POST", path, json.dumps(body), headers)
        return connection, connection.getresponse()

    def post(self, path, body, key=None):
        connection, response = self.open(path, body, key)
        text = response.read()
        connection.close()
        if response.status != 200:
            sys.exit(f"{path}: {response.status} {text.decode()}")
        return json.loads(text)


class Cases:
    """Counts cases, and tells those that are wrong."""

    def __init__(self, name):
        self.name, self.n, self.wrong = name, 0, []

    def check(self, case, is_right, found):
        self.n += 1
        if not is_right:
            self.wrong.append(case)
            print(f"{self.name}: WRONG: {case}: {found}")

    def end(self, more=""):
        print(f"{self.name}: {self.n} cases, {len(self.wrong)} wrong{more}", flush=True)
        return bool(self.wrong)


def second_body(question, message, extra):
    messages = [{"role": "user", "content": question}, message]
    calls = message.get("tool_calls") or []
    messages += [{"role": "tool", "tool_call_id": it["id"], "content": "Rain."} for it in calls]
    if not calls:
        messages.append({"role": "user", "content": "Can you say more?"})
    return {"messages": messages, "max_tokens": 12, "temperature": 0, "seed": 1, "logprobs": True,
            "top_logprobs": 5} | extra


def respelled(message):
    """The same turn as a client may tell it: other keys first, and other blank space."""
    told = json.loads(json.dumps(message))
    for call in told.get("tool_calls") or []:
        arguments = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(dict(reversed(arguments.items())), indent=1)
    return told


def without_blank(text):
    return collections.Counter(re.sub(r"\s", "", text))


def replay(binary):
    cases, n_replayed, n_others = Cases("replay"), 0, 0
    with Server(binary) as server, Server(binary, "--no-replay") as plain:
        kinds = [{}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "required"}]
        temperatures = [0, 0.7, 1.5]
        for (number, question), temperature, extra in itertools.product(enumerate(QUESTIONS), temperatures, kinds):
            first = {"messages": [{"role": "user", "content": question}], "max_tokens": 120,
                     "temperature": temperature, "seed": number} | extra
            message = server.post("/v1/chat/completions", first)["choices"][0]["message"]
            body = second_body(question, respelled(message), {"tools": TOOLS} if extra else {})
            found, expected = (it.post("/tokenize", {k: body[k] for k in ("messages", "tools") if k in body})["tokens"]
                               for it in (server, plain))
            texts = [plain.post("/detokenize", {"tokens": it})["content"] for it in (found, expected)]
            answer, other = (it.post("/v1/chat/completions", body) for it in (server, plain))
            n_replayed += answer["usage"]["prompt_tokens_details"]["replayed_turns"]
            n_others += found != expected
            case = f"{question!r} at {temperature}, {len(message.get('tool_calls') or [])} calls"
            if message.get("tool_calls"):
                cases.check(case, without_blank(texts[0]) == without_blank(texts[1]), texts)
            else:
                scores = [it["choices"][0]["logprobs"] for it in (answer, other)]
                cases.check(case, found == expected and scores[0] == scores[1], texts)
    return cases.end(f"; {n_replayed} replayed, {n_others} with another spelling")


def asked(dialect, text, stream, n_tokens):
    body = {"stream": stream, "temperature": 1, "seed": 5}
    messages = [{"role": "user", "content": text}]
    return {
        "chat": ("/v1/chat/completions", body | {"messages": messages, "max_tokens": n_tokens}),
        "completions": ("/v1/completions", body | {"prompt": text * 2, "max_tokens": n_tokens}),
        "responses": ("/v1/responses", {"stream": stream, "input": text, "max_output_tokens": n_tokens}),
        "messages": ("/v1/messages", body | {"messages": messages, "max_tokens": n_tokens}),
    }[dialect]


def n_cached(dialect, answer):
    usage = answer["usage"]
    if dialect == "messages":
        return usage.get("cache_read_input_tokens", 0)
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return details["cached_tokens"]


def keys(binary):
    cases = Cases("keys")
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
        file.write("sk-a\nsk-b\nsk-c\n")
        file.flush()
        with Server(binary, "--api-key-file", file.name) as server:
            dialects = ["chat", "completions", "responses", "messages"]
            phases = ["behind it", "beside it", "behind one that was left"]
            grid = itertools.product(dialects, phases, [False, True], range(3))
            for number, (dialect, phase, stream, length) in enumerate(grid):
                # Each case has a prompt of its own.
                text = f"Question {number}: {QUESTIONS[number % len(QUESTIONS)]} " + "Say why. " * (4 * length + 2)
                path, body = asked(dialect, text, stream or phase != "behind it", 40)
                connection, response = server.open(path, body, "sk-a")
                if phase == "behind it":
                    response.read()
                elif phase == "behind one that was left":
                    response.read(20)
                    connection.close()
                found = n_cached(dialect, server.post(*asked(dialect, text, False, 2), "sk-b"))
                own = n_cached(dialect, server.post(*asked(dialect, text, False, 2), "sk-b"))
                case = f"{dialect}, {phase}, stream {stream}, {length}"
                cases.check(case, found == 0 and own > 0, f"{found} tokens of another key, {own} of its own")
                if phase == "beside it":
                    response.read()
                connection.close()
    return cases.end()


class Slow:
    """A client that asks for much and takes little."""

    def __init__(self, server, dialect, manner):
        path, body = asked(dialect, "Tell a long story about slices.", True, 3000)
        if dialect in ("chat", "completions"):
            body |= {"logprobs": True, "top_logprobs": 20} if dialect == "chat" else {"logprobs": 20}
        if dialect == "completions":
            body |= {"n": 4}
        text = json.dumps(body)
        self.manner, self.n_taken, self.is_over = manner, 0, False
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.connect((server.address.hostname, server.address.port))
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        self.socket.sendall((head + text).encode())
        if manner == "half closed":
            self.socket.shutdown(socket.SHUT_WR)
        if manner != "nothing":
            threading.Thread(target=self.take, daemon=True).start()

    def take(self):
        try:
            if self.manner in ("head", "half closed"):
                self.socket.recv(300)
                return
            while not self.is_over:
                if not self.socket.recv(1):
                    return
                self.n_taken += 1
                time.sleep(0.5)
        except OSError:
            return

    def close(self):
        self.is_over = True
        self.socket.close()


def readers(binary):
    cases = Cases("readers")
    quick = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is a slice?"}],
                                      "max_tokens": 24, "temperature": 0})
    slowest = 0
    with Server(binary, "--sessions", "4") as server:
        server.post(*quick)
        began = time.monotonic()
        for _ in range(3):
            server.post(*quick)
        alone = (time.monotonic() - began) / 3
        manners = ["nothing", "head", "byte by byte", "half closed"]
        grid = itertools.product(["chat", "completions", "responses", "messages"], manners, [2, 4, 8, 16])
        for dialect, manner, number in grid:
            slow = [Slow(server, dialect, manner) for _ in range(number)]
            time.sleep(3)
            began = time.monotonic()
            for _ in range(2):
                server.post(*quick)
            took = (time.monotonic() - began) / 2
            slowest = max(slowest, took / alone)
            # Those that still fill the buffers of their connections share the steps.
            cases.check(f"{number} clients, {dialect}, {manner}", took < 20 * alone + 5, f"{took:.1f} s, alone {alone:.1f} s")
            for it in slow:
                it.close()
        # Bytes that lie unread end a connection, also if a few are taken.
        slow = [Slow(server, "completions", manner) for manner in ("nothing", "byte by byte")]
        began = time.monotonic()
        time.sleep(5)
        while time.monotonic() - began < 120 and running(server) > 0:
            time.sleep(1)
        took = time.monotonic() - began
        cases.check("unread bytes end their connections", 55 < took < 115, f"{took:.0f} s")
    return cases.end(f"; alone {alone:.2f} s, at most {slowest:.1f} times that beside others")


def running(server):
    connection = http.client.HTTPConnection(server.address.hostname, server.address.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return float(re.search(r"^vllm:num_requests_running\S* ([0-9.]+)", text, re.M)[1])


def main():
    attacks = {"replay": replay, "keys": keys, "readers": readers}
    wanted = sys.argv[2:] or list(attacks)
    wrong = [name for name in wanted if attacks[name](sys.argv[1])]
    sys.exit(1 if wrong else 0)


main()
