"""Runs the cases of cases.py. See memory.sh.

    check.py PROGRAM FOLDER [NAME..]
"""

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import cases
from group import Group

MIB = 1 << 20
BEYOND_MAX = 64 * MIB
# A leak ends the process here: a case that fails by a little is measured, not killed.
LIMIT_BEYOND = 1024 * MIB
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151_936,
    "hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 512, "num_experts": 128,
    "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 64,
    "num_key_value_heads": 1, "max_position_embeddings": 65_536, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": True,
    "eos_token_id": 256, "bos_token_id": 256,
}


class Model:
    """The experts of the second one take all that its memory leaves them."""

    def __init__(self, name, arguments, memory_mib):
        self.name, self.arguments, self.memory_mib = name, arguments, memory_mib

    def options(self):
        return [*self.arguments, "--memory", f"{self.memory_mib}M"]


class Server:
    def __init__(self, program, model, work):
        self.log = Path(work) / "serve.log"
        command = [program, "serve", "--port", "0", "--context", "4096", "--cache-dir", "none"]
        command += model.options()
        limit = model.memory_mib * MIB + LIMIT_BEYOND
        with self.log.open("w") as log:
            self.group = Group(command, limit, stderr=log)
        for _ in range(1200):
            found = [line for line in self.log.read_text().splitlines() if " at http://" in line]
            if found:
                break
            if self.group.process.poll() is not None:
                sys.exit(f"{model.name}: {self.log.read_text()}")
            time.sleep(0.1)
        address = found[0].split(" at http://")[1].split()[0]
        host, port = address.rsplit(":", 1)
        self.address = (host, int(port))

    def open(self, path, body):
        """A connection on which the request was sent."""
        body = body if isinstance(body, bytes) else (
            body.encode() if isinstance(body, str) else json.dumps(body).encode())
        stream = socket.create_connection(self.address, timeout=300)
        head = (f"POST {path} HTTP/1.1\r\nHost: {self.address[0]}:{self.address[1]}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n")
        try:
            stream.sendall(head.encode() + body)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return stream

    def ask(self, path, body):
        """The status and the body of the response."""
        stream = self.open(path, body)
        parts = []
        try:
            while part := stream.recv(1 << 16):
                parts.append(part)
        except ConnectionResetError:
            pass
        stream.close()
        head, _, rest = b"".join(parts).partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]) if head else 0, rest


def refusal(status, body):
    """What is wrong with a refusal."""
    for line in body.decode(errors="replace").splitlines():
        if line.startswith("{"):
            error = json.loads(line)["error"]
            message = error["message"] if isinstance(error, dict) else str(error)
            if "\n" in message or "/tmp" in message or len(message) > 600:
                return f"not one plain line: {message[:200]}"
            return None if message else "no message"
    return f"{status} without an error: {body[:200]}"


def special(server, name):
    """Cases that do more than ask."""
    big = cases.text(cases.words(900_000))
    if name in ("gone", "gone-eight"):
        # Clients that leave while their text becomes tokens: then others are served at once.
        streams = [server.open(*big) for _ in range(8 if name.endswith("eight") else 1)]
        time.sleep(0.2)
        for stream in streams:
            stream.close()
        began = time.time()
        status, _ = server.ask(*cases.text("a"))
        took = time.time() - began
        return [] if status == 200 and took < 30 else [f"then {status} after {took:.1f} s"]
    if name == "slow-bodies":
        streams = []
        for _ in range(200):
            stream = socket.create_connection(server.address)
            stream.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                           b"application/json\r\nContent-Length: 400000\r\n\r\n{" + b" " * 100_000)
            streams.append(stream)
        time.sleep(1)
        for stream in streams:
            stream.close()
        return []
    if name == "unread":
        body = cases.chat(cases.user("a"), stream=True, logprobs=True, top_logprobs=20,
                          max_tokens=300, temperature=2)
        streams = [server.open(*body) for _ in range(60)]
        time.sleep(20)
        for stream in streams:
            stream.close()
        return []
    raise ValueError(name)


def run_case(server, make, expected):
    """What is wrong with the answers."""
    if isinstance(make, str):
        return special(server, make)
    problems = []

    def ask(request):
        status, body = server.ask(*request)
        seen.append(status)
        if status not in expected:
            problems.append(f"status {status}: {body[:200]!r}")
        elif status != 200:
            problem = refusal(status, body)
            problems.extend([problem] if problem else [])

    seen = []
    threads = [threading.Thread(target=ask, args=(request,)) for request in make()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems or seen


def main():
    program, work, *names = sys.argv[1:]
    is_wanted = lambda name: not names or any(name.startswith(it) for it in names)
    config = Path(work) / "config.json"
    config.write_text(json.dumps(CONFIG))
    vocabulary = Path(work) / "vocabulary"
    synth = [program, "synth", "--config", config, "--out", vocabulary, "--bits", "8"]
    subprocess.run(synth, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    models = [Model("demo", [], 150), Model("vocabulary", ["--model", str(vocabulary)], 400)]
    models = [model for model in models if os.environ.get("ONLY", "") in model.name]
    failed = n_cases = 0
    print(f"{'case':34} {'beyond MiB':>10} {'s':>6}  answers")

    def report(name, peak, memory, began, problems, seen=""):
        nonlocal failed, n_cases
        n_cases += 1
        beyond = (peak - memory) / MIB
        if peak > memory + BEYOND_MAX:
            problems = [*problems, f"more than {BEYOND_MAX // MIB} MiB beyond"]
        failed += bool(problems)
        told = "FAILED: " + "; ".join(problems) if problems else seen
        print(f"{name:34} {beyond:10.1f} {time.time() - began:6.1f}  {told}", flush=True)

    for model in models:
        wanted = [it for it in cases.KNOWN + cases.MORE if is_wanted(it[0])]
        server = None
        # Also where this ends early: its thread would go on.
        atexit.register(lambda: server and server.group.end())
        for name, make, expected in wanted:
            if server is None:
                server = Server(program, model, work)
            server.group.begin()
            began = time.time()
            result = run_case(server, make, expected)
            time.sleep(0.1)
            is_list_of_numbers = all(isinstance(it, int) for it in result)
            seen = " ".join(map(str, sorted(set(result)))) if is_list_of_numbers else ""
            problems = [] if is_list_of_numbers else result
            if server.group.process.poll() is not None:
                problems = [*problems, f"the server ended: {server.log.read_text()[-300:]}"]
            report(f"{model.name} {name}", server.group.peak(), model.memory_mib * MIB, began,
                   problems, seen)
            if server.group.process.poll() is not None:
                server.group.end()
                server = None
        if server is not None:
            server.group.end()
            server = None
        for name, arguments, make in cases.COMMANDS:
            if not is_wanted(name):
                continue
            file = Path(work) / "text"
            file.write_text(make())
            began = time.time()
            options = ["--model", *model.arguments[1:]] if model.arguments else []
            memory = max(model.memory_mib, 200)
            command = [program, *arguments, str(file), *options, "--memory", f"{memory}M"]
            group = Group(command, memory * MIB + LIMIT_BEYOND, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE)
            _, error = group.process.communicate()
            lines = error.decode(errors="replace").strip().splitlines()
            told = lines[-1][:120] if lines else ""
            problems = [] if group.process.returncode in (0, 1, 2) else [
                f"exit code {group.process.returncode}: {told}"]
            report(f"{model.name} {name}", group.peak(), memory * MIB, began, problems,
                   f"exit code {group.process.returncode} {told}")
            group.end()
    print(f"{n_cases} cases, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
