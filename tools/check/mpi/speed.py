"""speed.py MOEFLUX TOOLS MODEL [ROUNDS [delays|drives]]: what two ranks of one thread gain on this machine.

Prints two tables. The first: MODEL in memory, with messages that arrive 5, 50 and 300 us late, next to
what `moeflux plan`'s formula makes of one rank's own rate. The second: answers of MODEL streamed, each
rank with a quarter of its size as --memory and a drive of 200 MB/s (a control group of blkio, version 1:
needs root), next to one such rank. Each rank has a core of its own.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from jobs import command

MOEFLUX, TOOLS, MODEL = sys.argv[1:4]
ROUNDS = int(sys.argv[4]) if len(sys.argv) > 4 else 3
PARTS = sys.argv[5:] or ["delays", "drives"]
GROUPS = pathlib.Path("/sys/fs/cgroup/blkio")
DRIVE_BYTES_PER_S = 200_000_000
DELAYS_US = [5, 50, 300]
MPIS = os.environ.get("MOEFLUX_MPIS", "openmpi mpich").split()
BENCH = ["bench", "--model", MODEL, "--threads", "1", "--json", "--prompt-tokens", "0", "--repeat", "5"]


def pinned(out, before=""):
    """A script in which a rank has a core of its own, and becomes moeflux after `before`."""
    script = out / "rank.sh"
    script.write_text(f"{before}\nexec taskset -c ${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-0}}}} {MOEFLUX} "
                      f"{' '.join(BENCH)} \"$@\"\n")
    return ["bash", str(script)]


def bench(start, env, args):
    """What each process that prints something has measured."""
    done = subprocess.run([*start, *args], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(args)}: {done.stdout}{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def spread(values):
    return f"{statistics.median(values):8.2f} [{min(values):.2f} .. {max(values):.2f}]"


def plan(delay_us):
    """Bytes of a token on each of two ranks, and seconds of its exchanges."""
    args = ["plan", MODEL, "--ranks", "2", "--network", f"{delay_us},1000", "--memory", "1024G", "--json"]
    found = json.loads(subprocess.run([MOEFLUX, *args], capture_output=True, text=True,
                                      check=True).stdout)
    exchanges = found["forecast"]["answer"]["high"]["exchange_s_per_token"]
    return found["resident_read_bytes_per_token"], found["routed_bytes_per_token"], exchanges


def delays(mpi, out):
    """Measured rates next to the formula's, in turn."""
    alone, together = [], {delay: [] for delay in DELAYS_US}
    start, env = command(TOOLS, mpi, 2)
    start += pinned(out)
    last = {}
    for _ in range(ROUNDS):
        # Two processes that know nothing of each other: as ranks, they share this machine's memory.
        alone += [it["decode_tokens_per_s"] for it in bench(start, env, ["--ranks", "1"])]
        for delay in DELAYS_US:
            last[delay], = bench(start, env, ["--rank-delay", f"{delay},1000"])
            together[delay].append(last[delay]["decode_tokens_per_s"])
    print(f"{mpi}: one process beside another: {spread(alone)} tokens/s")
    for delay in DELAYS_US:
        resident, routed, exchanges = plan(delay)
        bytes_per_s = (resident + 2 * routed) * statistics.median(alone)
        formula = 1 / ((resident + routed) / bytes_per_s + exchanges)
        share = statistics.median(together[delay]) / formula
        ranks = last[delay]["decode_ranks"]
        print(f"  {delay:3} us late: {spread(together[delay])} tokens/s, formula {formula:.2f}: "
              f"{100 * share:.0f} %; {ranks['exchanges_per_token']:.0f} exchanges a token, "
              f"median {1e6 * ranks['exchange_median_s']:.0f} us, "
              f"99 of 100 within {1e6 * ranks['exchange_p99_s']:.0f} us", flush=True)


def limited():
    """What limits the drive of a process."""
    device = os.stat(MODEL).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    return f"""group={GROUPS}/moeflux-$$
mkdir $group
echo '{number} {DRIVE_BYTES_PER_S}' > $group/blkio.throttle.read_bps_device
echo $$ > $group/cgroup.procs"""


def remove_groups():
    for group in GROUPS.glob("moeflux-*"):
        try:
            group.rmdir()
        except OSError:
            pass


def drives(mpi, out):
    model = pathlib.Path(MODEL)
    files = [model] if model.is_file() else model.iterdir()
    memory = f"{sum(it.stat().st_size for it in files) // 4 >> 20}M"
    script = pinned(out, limited())
    start, env = command(TOOLS, mpi, 2)
    rates = {"one": [], "two": []}
    for _ in range(ROUNDS):
        for name, before in [("one", []), ("two", start)]:
            found, = bench([*before, *script], env, ["--memory", memory, "--gen-tokens", "32", "--repeat", "2"])
            rates[name].append(found["decode_tokens_per_s"])
            print(f"    {name}: {rates[name][-1]:.2f} tokens/s, the drive alone "
                  f"{found['device_gb_per_s']:.2f} GB/s, {found['expert_slots']} of "
                  f"{found['experts']} experts in memory", flush=True)
            remove_groups()
    ratio = statistics.median(rates["two"]) / statistics.median(rates["one"])
    print(f"{mpi}: --memory {memory}, 200 MB/s each: one rank {spread(rates['one'])}, two "
          f"{spread(rates['two'])} tokens/s: {ratio:.2f} times", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for measure in [it for it in [delays, drives] if it.__name__ in PARTS]:
            for mpi in MPIS:
                measure(mpi, pathlib.Path(folder))


if __name__ == "__main__":
    main()
