"""Holds connections to `moeflux serve` open and asks it a question meanwhile.

    python3 connections.py MOEFLUX

Each case is a way to hold a connection, a server, and either all connections at once or new ones
without end. The longest wait for an answer is printed; more than PATIENCE_S is a failure.
"""
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE_S = 5.0
N_HELD = 1_400
KEY = "sk-of-this-check"
POST = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n"

WAYS = {
    "nothing": b"",
    "a byte": b"G",
    "blank lines": b"\r\n" * 50,
    "half a line": b"POST /v1/cha",
    "half a head": b"GET / HTTP/1.1\r\nhost: loc",
    "a head without its end": GET,
    "a long head": GET + b"x: " + b"y" * 30_000,
    "many headers": GET + b"".join(b"x-%d: y\r\n" % n for n in range(100)),
    "TLS": bytes([0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]) + bytes(32),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "an open path": b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "an open path and half a body": b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{",
    "half a body": POST + b"content-length: 999\r\n\r\n{\"messages\": [",
    "half a chunk": POST + b"transfer-encoding: chunked\r\n\r\n3e7\r\n{\"messages\"",
    "a body that waits for leave": POST + b"content-length: 999\r\nexpect: 100-continue\r\n\r\n",
    "a wrong key and half a body": POST + b"x-api-key: wrong\r\ncontent-length: 999\r\n\r\n{",
    "a wrong host": b"GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n",
    "the closed half of a head": GET,
    "unread responses": (b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n") * 300,
}
HALF_CLOSED = "the closed half of a head"
# 300 requests of each new connection, without end, are work and no place that is held: the core that
# serves is shared by all of them.
NOT_AGAIN = "unread responses"
# Bodies without a length, eight of which take all the room that a server has for bodies: where no key
# is wanted, others wait for that room, and not for a place.
NOT_WITHOUT_KEYS = "half a chunk"


class Server:
    def __init__(self, program, name, n_descriptors, has_key):
        self.name, self.has_key = name, has_key
        self.log = tempfile.NamedTemporaryFile("w+", prefix="moeflux-connections-")
        arguments = [program, "serve", "--port", "0", "--context", "1024", "--log", "off", "--cache-dir", "none"]
        if has_key:
            self.keys = tempfile.NamedTemporaryFile("w", prefix="moeflux-key-")
            self.keys.write(KEY + "\n")
            self.keys.flush()
            arguments += ["--api-key-file", self.keys.name]
        limit = f"ulimit -n {n_descriptors} && exec \"$@\""
        self.process = subprocess.Popen(["bash", "-c", limit, "-"] + arguments, stderr=self.log)
        for _ in range(600):
            found = re.search(r"^serving .* at http://([^: ]*):(\d+)", open(self.log.name).read(), re.MULTILINE)
            if found:
                self.address = (found[1], int(found[2]))
                break
            time.sleep(0.1)
        else:
            raise SystemExit(open(self.log.name).read())
        self.ask()

    def connect(self):
        return socket.create_connection(self.address, timeout=30)

    def ask(self):
        """Seconds until a question is answered."""
        began = time.monotonic()
        body = json.dumps({"max_tokens": 1, "messages": [{"role": "user", "content": "?"}]}).encode()
        key = b"authorization: Bearer %s\r\n" % KEY.encode() if self.has_key else b""
        with self.connect() as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
                           b"content-type: application/json\r\n%scontent-length: %d\r\n\r\n%s"
                           % (key, len(body), body))
            answer = b""
            while piece := client.recv(65_536):
                answer += piece
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise OSError(f"answered {answer[:60]!r}")
        return time.monotonic() - began

    def n_open(self):
        """Descriptors of the process."""
        return len(subprocess.run(["ls", f"/proc/{self.process.pid}/fd"], capture_output=True).stdout.split())

    def end(self):
        self.process.kill()
        self.process.wait()


def hold(server, way):
    client = server.connect()
    try:
        client.setblocking(False)
        client.send(WAYS[way])
        if way == HALF_CLOSED:
            client.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    return client


def at_once(server, way):
    held = []
    try:
        for _ in range(N_HELD):
            held.append(hold(server, way))
        return max(server.ask() for _ in range(3))
    finally:
        for client in held:
            client.close()


def again_and_again(server, way):
    is_over = threading.Event()

    def work():
        held = []
        while not is_over.is_set():
            try:
                held.append(hold(server, way))
                if len(held) > N_HELD // 2:
                    held.pop(0).close()
            except OSError:
                pass
        for client in held:
            client.close()

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        time.sleep(0.5)
        return max(server.ask() for _ in range(5))
    finally:
        is_over.set()
        for worker in workers:
            worker.join()


def main():
    program = sys.argv[1]
    n_cases, failures = 0, []
    for name, n_descriptors, has_key in [("with a key", 4_096, True), ("without keys", 4_096, False),
                                         ("with 200 descriptors", 200, True)]:
        server = Server(program, name, n_descriptors, has_key)
        for way in WAYS:
            if way == NOT_WITHOUT_KEYS and not has_key:
                continue
            for attack in (at_once,) if way == NOT_AGAIN else (at_once, again_and_again):
                label = f"{name}: {way}, {attack.__name__}"
                n_cases += 1
                try:
                    waited = attack(server, way)
                    is_right, told = waited <= PATIENCE_S, f"{waited:.2f} s"
                except OSError as error:
                    is_right, told = False, str(error)
                print(f"{'ok     ' if is_right else 'WRONG  '} {label}: {told}", flush=True)
                if not is_right:
                    failures.append(label)
        print(f"{name}: {server.n_open()} descriptors at the end")
        server.end()
    print(f"{n_cases} cases, {len(failures)} wrong")
    sys.exit(bool(failures))


main()
