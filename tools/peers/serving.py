#!/usr/bin/env python3
"""How much of an engine's speed is left behind HTTP, and how answers share it. Standard library only.

    serving.py one    MOEFLUX MODEL [ROUNDS]    one client against `moeflux bench`, in turn
    serving.py first  MOEFLUX MODEL [ROUNDS]    time to the first token of a prompt of 16
    serving.py all    URL N [TOKENS]            N clients at once: tokens per second of all
    serving.py beside MOEFLUX MODEL [ARGS..]    an answer while a prompt of 4,096 is read
    serving.py short  MOEFLUX MODEL [N] [ROUNDS] [ARGS..]
                                                a prompt of 30 tokens beside N of 2,000
    serving.py agent  MOEFLUX MODEL [N] [TURNS] [ARGS..]
                                                N agents in turn: prompts of 19,000 tokens that grow each turn
    serving.py streamed MOEFLUX MODEL LLAMA_SERVER GGUF [LIMIT] [N] [ROUNDS]
                                                N clients of both servers in turn, each in a memory cgroup

Prompts are random token ids, answers are greedy. Arguments
behind those of `beside`, `short` and `agent` go to `moeflux serve`. `streamed` needs root; give the GGUF's disk a
read-ahead of 128 KB (loop_readahead.sh).
"""
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

import limited


class Server:
    def __init__(self, moeflux, model, *more):
        command = [moeflux, "serve", "--port", "0", "--cache-dir", "none", "--model", model, *more]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r" at (http://\S+)", line)
            if found:
                self.url = found[1]
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def prompt(seed, n_tokens, vocab):
    draw = random.Random(seed)
    return [draw.randrange(vocab) for _ in range(n_tokens)]


def ask(url, tokens, n_answer, ends):
    """The times of the first and of each further token, from the request on."""
    address = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=3600)
    body = {"prompt": tokens, "max_tokens": n_answer, "temperature": 0, "stream": True}
    if ends:
        body["logit_bias"] = {str(it): -1000 for it in ends}
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    times, n_tokens = [], None
    for line in response:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if event.get("usage"):
                n_tokens = event["usage"]["completion_tokens"]
            if event.get("choices") and event["choices"][0].get("finish_reason") is None:
                times.append(time.perf_counter() - began)
    return times, n_tokens, time.perf_counter() - began


def spread(values):
    return f"{statistics.median(values):.4g} [{min(values):.4g} .. {max(values):.4g}]"


def vocab_of(model):
    config = json.load(open(model + "/config.json"))
    return config.get("vocab_size") or config["text_config"]["vocab_size"]


def ends_of(model):
    """Tokens that would end an answer."""
    ids = []
    for name in ["config.json", "generation_config.json"]:
        try:
            found = json.load(open(f"{model}/{name}")).get("eos_token_id") or []
        except FileNotFoundError:
            continue
        ids += found if isinstance(found, list) else [found]
    return ids


def bench(moeflux, model, *more):
    command = [moeflux, "bench", "--model", model, "--backend", "cpu", "--json", *more]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def one(moeflux, model, rounds="8"):
    """The client is curl: this program would take the engine's cores."""
    vocab, ratios, rates, alone = vocab_of(model), [], [], []
    count = lambda text, name: float(re.search(rf"^{name}{{\S* (\S+)", text, re.M)[1])
    with Server(moeflux, model) as server:
        for seed in range(int(rounds) + 1):
            found = bench(moeflux, model, "--prompt-tokens", "16", "--gen-tokens", "256", "--repeat", "1")
            body = json.dumps({"prompt": prompt(seed, 16, vocab), "max_tokens": 256, "temperature": 0, "stream": True})
            before = http_get(server.url, "/metrics")
            subprocess.run(["curl", "-sN", server.url + "/v1/completions", "-H", "content-type: application/json",
                            "-d", body], stdout=subprocess.DEVNULL, check=True)
            after = http_get(server.url, "/metrics")
            name = "vllm:inter_token_latency_seconds_"
            n, seconds = (count(after, name + it) - count(before, name + it) for it in ["count", "sum"])
            if seed > 0 and n > 200:
                alone.append(found["decode_tokens_per_s"])
                rates.append(n / seconds)
                ratios.append(rates[-1] / alone[-1])
    print(f"server {spread(rates)} tokens/s, bench {spread(alone)}, ratio {spread(ratios)}")


def first(moeflux, model, rounds="20"):
    vocab, through, engine = vocab_of(model), [], []
    with Server(moeflux, model) as server:
        for seed in range(int(rounds)):
            times, _, _ = ask(server.url, prompt(seed, 16, vocab), 2, [])
            through.append(times[0] * 1e3)
            text = http_get(server.url, "/metrics")
            total = float(re.search(r"vllm:request_prefill_time_seconds_sum\S* (\S+)", text)[1])
            engine.append(total * 1e3)
    engine = [b - a for a, b in zip([0.0] + engine, engine)]
    beyond = [a - b for a, b in zip(through, engine)]
    print(f"first token {spread(through)} ms, of it in the engine {spread(engine)}, beyond {spread(beyond)}")


def http_get(url, path):
    address = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def everybody(url, n, n_tokens="128"):
    n, n_tokens, times = int(n), int(n_tokens), []
    run = lambda seed: times.append(ask(url, prompt(seed, 16, 1000), n_tokens, [])[0])
    began = time.perf_counter()
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(n)]
    [it.start() for it in threads]
    [it.join() for it in threads]
    n_events = sum(len(it) for it in times)
    print(json.dumps({"sessions": n, "tokens_per_s": n_events / (time.perf_counter() - began),
                      "first": [it[0] for it in times]}))


def beside(moeflux, model, *more):
    vocab, ends = vocab_of(model), ends_of(model)
    with Server(moeflux, model, "--context", "8192", "--drain", "1s", *more) as server:
        ask(server.url, prompt(0, 16, vocab), 32, ends)
        times, _, _ = ask(server.url, prompt(1, 16, vocab), 200, ends)
        answer_alone = (len(times) - 1) / (times[-1] - times[0])
        times, _, _ = ask(server.url, prompt(2, 4096, vocab), 1, [])
        prompt_alone = 4096 / times[0]
        found, n_most = {}, 4096
        run = lambda: found.update(answer=ask(server.url, prompt(3, 16, vocab), n_most, ends)[0])
        thread = threading.Thread(target=run, daemon=True)
        begin = time.perf_counter()
        thread.start()
        time.sleep(1)
        prompt_begin = time.perf_counter() - begin
        times, _, _ = ask(server.url, prompt(4, 4096, vocab), 1, [])
        prompt_end = prompt_begin + times[0]
        prompt_beside = 4096 / times[0]
        # What has come so far is enough.
        server.process.terminate()
        thread.join()
        inside = [it for it in found["answer"] if prompt_begin <= it <= prompt_end]
        answer_beside = len(inside) / (prompt_end - prompt_begin)
        gaps = [b - a for a, b in zip(inside, inside[1:])]
        shares = answer_beside / answer_alone, prompt_beside / prompt_alone
        print(f"answer {answer_alone:.1f} alone, {answer_beside:.1f} beside: {shares[0]:.3f}; prompt "
              f"{prompt_alone:.1f} alone, {prompt_beside:.1f} beside: {shares[1]:.3f}; sum {sum(shares):.3f}; "
              f"longest gap {max(gaps, default=0) * 1e3:.0f} ms over {len(inside)} tokens")


def short(moeflux, model, n="1", rounds="5", *more):
    """Times to the first token: of a short prompt alone and beside long ones, and of those."""
    n, vocab, seeds = int(n), vocab_of(model), iter(range(1, 1 << 20))
    found = {"short": [], "beside": [], "long": [], "longest": [], "longest beside": []}
    with Server(moeflux, model, "--context", "4096", *more) as server:
        # The only token ends the answer. Events before it keep connections alive.
        first = lambda n_tokens, seed: ask(server.url, prompt(seed, n_tokens, vocab), 1, [])[2]
        first(30, next(seeds))

        def longs(n_shorts):
            times, threads = [], []
            for seed in [next(seeds) for _ in range(n)]:
                run = lambda seed=seed: times.append(first(2000, seed))
                threads.append(threading.Thread(target=run))
                threads[-1].start()
            for _ in range(n_shorts):
                time.sleep(0.3 * found["long"][-1])
                found["beside"].append(first(30, next(seeds)))
            [it.join() for it in threads]
            return max(times)

        for _ in range(int(rounds)):
            found["short"].append(first(30, next(seeds)))
            found["long"].append(first(2000, next(seeds)))
            found["longest"].append(longs(0))
            found["longest beside"].append(longs(1))
    medians = {name: statistics.median(times) for name, times in found.items()}
    print("; ".join(f"{name} {spread(times)} s" for name, times in found.items())
          + f"; short beside / alone {medians['beside'] / medians['short']:.2f}"
          + f"; long with a short one / without {medians['longest beside'] / medians['longest']:.3f}")


def agent(moeflux, model, n="1", turns="20", *more):
    """How much of the prompts of agents is read again: each turn has the one before it, its answer and something new."""
    vocab, ends = vocab_of(model), ends_of(model)
    with Server(moeflux, model, "--context", "32768", "--drain", "1s", *more) as server:
        said = [prompt(1 + it, 19000, vocab) for it in range(int(n))]
        first, later, cached, again, before = [], [], [], [], {}
        for turn in range(int(turns)):
            for it in range(len(said)):
                began = time.perf_counter()
                body = {"prompt": said[it], "max_tokens": 50, "temperature": 0, "logit_bias": {str(it): -100 for it in ends}}
                answer = post(server.url, "/v1/completions", body)
                seconds, usage = time.perf_counter() - began, answer["usage"]
                # An agent sends text: where other tokens make the same text, they are read again.
                said[it] += post(server.url, "/tokenize", {"prompt": answer["choices"][0]["text"]})["tokens"]
                said[it] += prompt(1000 * turn + it + 100, 100, vocab)
                n_prompt, n_cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
                (later if turn else first).append(seconds)
                if turn:
                    cached.append(n_cached / n_prompt)
                    again.append(max(0, before[it] - n_cached))
                before[it] = n_prompt
    print(f"{n} agents, {turns} turns, last prompts of {n_prompt} tokens: cached {spread(cached)}; read again of the "
          f"prompt before {spread(again)} tokens; first turn {spread(first)} s, later {spread(later)} s")


def streamed(moeflux, model, llama_server, gguf, limit="1024M", n="4", rounds="3"):
    ends, n = ends_of(model), int(n)
    ours = [moeflux, "serve", "--port", "8471", "--model", model, "--backend", "cpu", "--threads", "2",
            "--memory", limit, "--context", "1024", "--cache-dir", "none"]
    # Repacking would copy the weights to memory; contexts, batches and the cache of prompts are as small as they can be.
    theirs = [llama_server, "--port", "8471", "-m", gguf, "-t", "2", "-tb", "2", "-np", str(n), "-c", str(512 * n),
              "-b", "512", "-ub", "512", "--no-repack", "--no-warmup", "--cache-ram", "0"]
    found = {"moeflux": [], "llama-server": []}
    for seed in range(int(rounds)):
        for name, command, path in [("moeflux", ours, model), ("llama-server", theirs, gguf)]:
            rate, peak = limited_rate(command, path, limit, n, ends, seed)
            found[name].append(rate)
            print(f"{name}: {rate:.2f} tokens/s, high-water mark {peak >> 20} MB", flush=True)
    ratio = statistics.median(found["moeflux"]) / statistics.median(found["llama-server"])
    print("; ".join(f"{name} {spread(rates)}" for name, rates in found.items()) + f"; ratio {ratio:.2f}")


def limited_rate(command, path, limit, n, ends, seed):
    """Tokens per second of N clients' second answers: the first ones warm what a cache can hold."""
    limited.drop_cache([path])
    group = limited.Cgroup(limited.size(limit))
    process = subprocess.Popen(command, preexec_fn=group.enter, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("127.0.0.1", 8471)
        together(n, lambda it: whole_answer(8471, prompt(seed * 100 + it, 16, 4000), 16, ends))
        began = time.perf_counter()
        counts = together(n, lambda it: whole_answer(8471, prompt(seed * 100 + 50 + it, 16, 4000), 64, ends))
        return sum(counts) / (time.perf_counter() - began), group.peak()
    finally:
        process.kill()
        process.wait()
        group.close()


def whole_answer(port, tokens, n_answer, ends):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    body = {"prompt": tokens, "max_tokens": n_answer, "temperature": 0,
            "logit_bias": {str(it): -100 for it in ends}}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    return answer["usage"]["completion_tokens"]


def post(url, path, body):
    address = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=3600)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise SystemExit(text.decode())
    return json.loads(text)


def together(n, run):
    found = [None] * n
    threads = [threading.Thread(target=lambda it=it: found.__setitem__(it, run(it))) for it in range(n)]
    [it.start() for it in threads]
    [it.join() for it in threads]
    return found


def wait_for(host, port):
    """Until the server says that it is ready: llama-server listens before it has loaded its model."""
    for _ in range(1200):
        try:
            connection = http.client.HTTPConnection(host, port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"nothing answers at {host}:{port}")


if __name__ == "__main__":
    kinds = {"one": one, "first": first, "all": everybody, "beside": beside, "short": short, "agent": agent,
             "streamed": streamed}
    if len(sys.argv) < 4 or sys.argv[1] not in kinds:
        raise SystemExit(__doc__)
    kinds[sys.argv[1]](*sys.argv[2:])
