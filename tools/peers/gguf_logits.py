#!/usr/bin/env python3
"""gguf_logits.py --work WORKDIR --moeflux BIN FILE.gguf...: the next token's log-probabilities of llama.cpp beside moeflux's.

For each file a prompt of 24 token ids goes through moeflux in f32 and in int8, and through llama-server of build_llama.sh, which
rounds activations to 8 bits too. Prints how far both roundings are from the f32: the squared differences over the variance, after
the mean. llama.cpp computes the same function if its figure is of the size of ours. Run it with WORKDIR/ve-build/bin/python.
"""
import argparse, json, subprocess, tempfile, time, urllib.error, urllib.request
from pathlib import Path
import numpy as np

IDS = [300 + 37 * i % 3000 for i in range(24)]
PORT = 18200
PATIENCE_S = 60


def moeflux(binary, file, arithmetic):
    """Logits behind the last token."""
    with tempfile.NamedTemporaryFile(suffix=".npy") as out:
        cmd = [binary, "logits", "--model", file, "--tokens", ",".join(map(str, IDS)), "--out", out.name, "--backend", "cpu", *arithmetic]
        subprocess.run(cmd, check=True, stdout=subprocess.DEVNULL)
        return np.load(out.name)[-1].astype(np.float64)


def llama(binary, file):
    """Log-probabilities behind the last token, by id."""
    url = f"http://127.0.0.1:{PORT}"
    server = subprocess.Popen([binary, "-m", file, "-t", "2", "-c", "256", "--port", str(PORT), "--no-warmup"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(url + "/health").read()
                break
            except urllib.error.URLError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        body = {"prompt": IDS, "n_predict": 1, "n_probs": 1 << 20, "temperature": 0, "cache_prompt": False}
        request = urllib.request.Request(url + "/completion", json.dumps(body).encode(), {"content-type": "application/json"})
        answer = json.load(urllib.request.urlopen(request))
    finally:
        server.kill()
        server.wait()
    return {it["id"]: it["logprob"] for it in answer["completion_probabilities"][0]["top_logprobs"]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", required=True, help="WORKDIR of build_llama.sh")
    ap.add_argument("--moeflux", required=True)
    ap.add_argument("files", nargs="+", help="GGUF files with a vocabulary of at least 3,300 tokens")
    a = ap.parse_args()
    server = str(Path(a.work) / "llama" / "build" / "bin" / "llama-server")
    for file in a.files:
        theirs = llama(server, file)
        ids = sorted(theirs)
        centred = lambda x: x - x.mean()
        exact, ours = (centred(moeflux(a.moeflux, file, arithmetic)[ids]) for arithmetic in (["--precise"], []))
        peer = centred(np.array([theirs[it] for it in ids]))
        off = lambda x: ((x - exact) ** 2).sum() / (exact**2).sum()
        print(f"{Path(file).name}: {len(ids)} tokens; of the f32 moeflux in int8 is off by {off(ours):.1e}, llama.cpp by {off(peer):.1e}")


if __name__ == "__main__":
    main()
