"""The conversations of loops.py with a server that is restarted before every request.

    python3 restarts.py MOEFLUX MODEL FORMAT TOOLS

Clients talk to a proxy. Before each request it ends `moeflux serve`, in turn by SIGTERM and by SIGKILL, and starts it again
over the same folder of saved conversations. loops.py checks what clients get to the letter, and the model compares what
comes back to it with its script. At the end it is said how much of the prompts came from the folder.
"""
import http.client
import http.server
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class Backend:
    """A server that is restarted before every request."""

    def __init__(self, moeflux, model, cache):
        self.command = [moeflux, "serve", "--port", "0", "--model", model, "--cache-dir", cache]
        self.process, self.port, self.lock = None, None, threading.Lock()
        self.n_starts = self.n_prompt = self.n_cached = 0

    def restart(self):
        if self.process:
            self.process.send_signal([signal.SIGTERM, signal.SIGKILL][self.n_starts % 2])
            self.process.wait()
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        self.n_starts += 1
        for line in self.process.stderr:
            if found := re.search(r" at http://[^:]+:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=lambda err=self.process.stderr: [None for _ in err], daemon=True).start()

    def ask(self, method, path, headers, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.getheaders(), response.read()

    def pass_on(self, *request):
        with self.lock:
            self.restart()
            answer = self.ask(*request)
            page = self.ask("GET", "/metrics", {}, None)[2].decode()
            count = lambda name: int(float(re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.M)[1]))
            self.n_prompt += count("vllm:prompt_tokens_total")
            self.n_cached += count("vllm:prefix_cache_hits_total")
            return answer


def handler_of(backend):
    class Handler(http.server.BaseHTTPRequestHandler):
        def pass_on(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            status, answered, content = backend.pass_on(self.command, self.path, headers, body)
            self.send_response(status)
            for name, value in answered:
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = pass_on

        def log_message(self, *_):
            pass

    return Handler


def main(moeflux, model, loop_format, tools):
    with tempfile.TemporaryDirectory() as cache:
        backend = Backend(moeflux, model, cache)
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(backend))
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_port}"
        loops = str(Path(__file__).with_name("loops.py"))
        status = subprocess.run([sys.executable, loops, url, loop_format, tools]).returncode
        backend.process.kill()
        part = backend.n_cached / max(1, backend.n_prompt)
        print(f"{loop_format}: {backend.n_starts} restarts; {backend.n_cached} of {backend.n_prompt} prompt tokens came "
              f"from the folder ({part:.2f})")
        # Each conversation begins with a prompt that is new; the others continue one.
        sys.exit(status or (part < 0.5))


main(*sys.argv[1:])
