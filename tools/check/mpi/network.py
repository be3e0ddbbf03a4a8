"""network.py MOEFLUX TOOLS: two ranks on two network namespaces of this machine, of both MPIs.

The same logits over a wire as in one process; exchanges as slow as a rate limit says; a link that is
taken down while a model computes ends all ranks with a line that names one. Needs root, ip and tc.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from jobs import RANK, command

MOEFLUX, TOOLS = sys.argv[1:3]
MODEL = pathlib.Path("golden/mlx-qwen3_moe-q4-g32-bf16")
SPACES = ["moeflux-a", "moeflux-b"]
ADDRESSES = ["10.231.77.1", "10.231.77.2"]
LINK = "mfx0"


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def expect(is_so, what):
    if not is_so:
        sys.exit(f"FAILED: {what}")


def build(out):
    """The spaces with a wire between them, and what starts a process in the other one."""
    for space in SPACES:
        ip("netns", "add", space)
    ip("link", "add", "mfxa", "type", "veth", "peer", "name", "mfxb")
    for end, space, address in zip(["mfxa", "mfxb"], SPACES, ADDRESSES):
        ip("link", "set", end, "netns", space, "name", LINK)
        ip("-n", space, "addr", "add", f"{address}/24", "dev", LINK)
        ip("-n", space, "link", "set", LINK, "up")
        ip("-n", space, "link", "set", "lo", "up")
    agent = out / "agent.sh"
    agent.write_text(f"""#!/bin/bash
# As ssh: options, a host, a command.
while [ $# -gt 0 ] && [ "$1" != {ADDRESSES[1]} ]; do shift; done
shift
exec ip netns exec {SPACES[1]} bash -c "$*"
""")
    agent.chmod(0o755)
    return agent


def remove():
    for space in SPACES:
        found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
        for pid in found.stdout.split():
            try:
                os.kill(int(pid), 9)
            except ProcessLookupError:
                pass
        subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL)


def limit(rate):
    for space in SPACES:
        subprocess.run(["ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", LINK, "root",
                        "tbf", "rate", rate, "burst", "64kb", "latency", "100ms"], check=True)


def start_of(mpi, agent):
    """The beginning of a command line of two ranks, one in each space."""
    first, env = command(TOOLS, mpi, 2)
    launcher = ["ip", "netns", "exec", SPACES[0], first[0]]
    hosts = agent.parent / "hosts"
    if mpi == "mpich":
        env |= {"FI_TCP_IFACE": LINK, "UCX_NET_DEVICES": LINK, "UCX_TLS": "tcp,self"}
        args = ["-launcher", "ssh", "-launcher-exec", str(agent), "-iface", LINK, "-n", "2", "-f", str(hosts),
                "-ppn", "1"]
        hosts.write_text("\n".join(ADDRESSES) + "\n")
    else:
        hosts.write_text("".join(f"{it} slots=1\n" for it in ADDRESSES))
        args = ["--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_if_include", LINK,
                 "-n", "2", "--hostfile", str(hosts), "--map-by", "ppr:1:node", "--bind-to", "none",
                "--mca", "pml", "ob1", "--mca",
                 "btl", "tcp,self", "--mca", "btl_tcp_if_include", LINK]
    return [*launcher, *args], env


def logits(mpi, agent, out):
    tokens = ",".join(str(it) for it in json.loads((MODEL / "tokens.json").read_text()))
    args = ["logits", "--model", str(MODEL.absolute()), "--tokens", tokens, "--threads", "1"]
    alone, together = out / "alone.npy", out / "together.npy"
    subprocess.run([MOEFLUX, *args, "--out", alone], check=True)
    together.unlink(missing_ok=True)
    start, env = start_of(mpi, agent)
    done = subprocess.run([*start, MOEFLUX, *args, "--out", str(together)], env=env,
                          capture_output=True, text=True, timeout=120)
    expect(done.returncode == 0, f"{mpi}: {done.stdout}{done.stderr}")
    expect(together.read_bytes() == alone.read_bytes(), f"{mpi}: other bytes")


def exchanges(mpi, agent):
    """What doctor says of the network."""
    start, env = start_of(mpi, agent)
    args = ["doctor", "--json", "--trials", "none", "--file-size", "16M", "/tmp"]
    done = subprocess.run([*start, MOEFLUX, *args], env=env, capture_output=True, text=True, timeout=300)
    expect(done.returncode == 0, f"{mpi}: {done.stdout}{done.stderr}")
    found = json.loads(done.stdout[done.stdout.index("{"):])
    return found["ranks"]


def ranks():
    """Processes that run moeflux in the spaces, but for those that have ended."""
    mine = os.path.realpath(MOEFLUX)
    found = []
    for space in SPACES:
        pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout
        for pid in pids.split():
            try:
                found += [pid] if os.readlink(f"/proc/{pid}/exe") == mine else []
            except OSError:
                pass
    return found


def cut(mpi, agent, out):
    """Takes the link down while a model computes: says when all ranks are gone, and what was said.

    Open MPI's mpirun goes on waiting for a host that it cannot reach: it is ended here.
    """
    start, env = start_of(mpi, agent)
    args = ["bench", "--prompt-tokens", "32", "--gen-tokens", "200", "--repeat", "500", "--threads", "1",
            "--rank-timeout", "2"]
    said = out / "said"
    with said.open("w") as log:
        job = subprocess.Popen([*start, MOEFLUX, *args], env=env, stdout=log, stderr=log,
                               start_new_session=True)
    time.sleep(5)
    expect(job.poll() is None and len(ranks()) == 2, f"{mpi}: ended before the link: {said.read_text()}")
    ip("-n", SPACES[1], "link", "set", LINK, "down")
    began = time.monotonic()
    while ranks():
        expect(time.monotonic() - began < 60, f"{mpi}: ranks are left")
        time.sleep(0.05)
    took = time.monotonic() - began
    try:
        launcher = f"its launcher ended with {job.wait(timeout=5)}"
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, 9)
        launcher = "its launcher was still waiting"
    ip("-n", SPACES[1], "link", "set", LINK, "up")
    lines = [line for line in said.read_text().splitlines() if line.startswith("error: ")]
    expect(len(lines) == 1, f"{mpi}: {said.read_text()}")
    expect(re.search(r"rank \d \(.*did not respond within 2 s", lines[0]), f"{mpi}: {lines}")
    expect(took <= 7, f"{mpi}: {took} s")
    print(f"{mpi}: all ranks are gone {took:.2f} s after the link, {launcher}: {lines[0]}", flush=True)


def main():
    remove()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        try:
            agent = build(out)
            for mpi in RANK:
                logits(mpi, agent, out)
                print(f"{mpi}: logits over a wire are those of one process", flush=True)
                for rate in ["10gbit", "100mbit"]:
                    limit(rate)
                    found = exchanges(mpi, agent)
                    sizes = {it["bytes"]: it["median_s"] for it in found["exchanges"]}
                    print(f"{mpi}, {rate}: exchanges of 4 KiB take {1e6 * sizes[4096]:.0f} us, of 1 MiB "
                          f"{1e3 * sizes[1 << 20]:.2f} ms: --network {found['network']}", flush=True)
                    logits(mpi, agent, out)
                limit("10gbit")
                cut(mpi, agent, out)
        finally:
            remove()


if __name__ == "__main__":
    main()
