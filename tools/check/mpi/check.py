"""check.py MOEFLUX TOOLS RUNS: four ranks of both MPIs beside one process. See ../mpi.sh."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from jobs import RANK, command

MOEFLUX, TOOLS, RUNS = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
GOLDEN = pathlib.Path("golden")
REFUSALS = ["cannot be divided among", "inputs as rows"]


def run(mpi, n_ranks, args, **kwargs):
    start, env = command(TOOLS, mpi, n_ranks)
    env |= kwargs.pop("env", {})
    done = subprocess.run(start + args, env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def expect(is_so, what):
    if not is_so:
        sys.exit(f"FAILED: {what}")


def ours(output):
    """What moeflux says, without what MPI says around it."""
    return [line for line in output.splitlines() if line.startswith("error: ")]


def goldens(out):
    """All goldens in both arithmetics: the bytes of one process."""
    n_same, n_refused = 0, 0
    cases = sorted(it for it in GOLDEN.iterdir() if (it / "tokens.json").exists())
    for case in cases:
        tokens = ",".join(str(it) for it in json.loads((case / "tokens.json").read_text()))
        for extra in ([], ["--precise"]):
            args = ["logits", "--model", str(case), "--tokens", tokens, "--threads", "1"]
            args += ["--slots", "6", *extra]
            alone = subprocess.run([MOEFLUX, *args, "--out", out / "alone.npy"], check=False)
            for mpi in RANK:
                together = out / "together.npy"
                together.unlink(missing_ok=True)
                code, output = run(mpi, 4, [MOEFLUX, *args, "--out", str(together)])
                if any(it in output for it in REFUSALS):
                    expect(code != 0 and len(ours(output)) == 1, f"{case.name}, {mpi}: {output}")
                    n_refused += 1
                    continue
                expect(code == 0 and alone.returncode == 0, f"{case.name}, {mpi}: {code} {output}")
                same = together.read_bytes() == (out / "alone.npy").read_bytes()
                expect(same, f"{case.name}, {mpi}: other bytes")
                n_same += 1
    print(f"{n_same} files of logits of 4 ranks are those of one process, "
          f"{n_refused} divisions were refused")


def per_rank(out, mpi, cases, usual):
    """A script that runs moeflux with other arguments on some ranks."""
    lines = [f'[ "${RANK[mpi]}" = {rank} ] && exec {MOEFLUX} {args}' for rank, args in cases]
    script = out / "rank.sh"
    script.write_text("\n".join([*lines, f"exec {MOEFLUX} {usual}"]) + "\n")
    return ["bash", str(script)]


def refusals(out):
    model = GOLDEN / "mlx-qwen3_moe-q4-g32-bf16"
    other = GOLDEN / "qwen3_moe-bf16"
    npy = out / "refused.npy"
    usual = f"logits --model {model} --tokens 1,2,3 --out {npy}"
    plain = [MOEFLUX, *usual.split()]
    alone = out / "alone.npy"
    subprocess.run([MOEFLUX, *usual.replace(str(npy), str(alone)).split()], check=True)
    for mpi in RANK:
        isas = [(1, f"{usual} --isa scalar"), (2, f"{usual} --isa avx2 --threads 1")]
        code, output = run(mpi, 4, per_rank(out, mpi, isas, usual))
        expect(code == 0 and npy.read_bytes() == alone.read_bytes(), f"instruction sets: {output}")
        cases = [
            ([(2, usual.replace(str(model), str(other)))], "rank 2 (", "model differs"),
            ([(1, usual + " --precise")], "rank 1 (", "arithmetic differs: f32"),
            ([(3, usual.replace(str(model), "/nowhere"))], "rank 3 (", "there is no such folder"),
        ]
        for ranks, who, what in cases:
            began = time.monotonic()
            code, output = run(mpi, 4, per_rank(out, mpi, ranks, usual))
            lines = ours(output)
            expect(code != 0 and len(lines) == 1, f"{mpi}, {what}: {code} {output}")
            expect(who in lines[0] and what in lines[0], f"{mpi}: {lines}")
            expect(time.monotonic() - began < 10, f"{mpi}, {what}: {time.monotonic() - began} s")
        foreign = {"openmpi": "mpich/lib/libmpi_abi.so.1", "mpich": "openmpi/lib/libmpi.so.40"}
        code, output = run(mpi, 4, plain, env={"MOEFLUX_MPI": str(TOOLS / foreign[mpi])})
        expect(code != 0 and "belongs to another MPI" in output, f"{mpi}: {output}")
        code, output = run(mpi, 2, [*plain, "--ranks", "4"])
        expect(code != 0 and "the launcher started 2 processes" in output, f"{mpi}: {output}")
    print("other models, arithmetics, folders, launchers and numbers of ranks are refused by name; "
          "other instruction sets are not")


def beside(out):
    """A launcher that is no part of the search path: its library is found all the same."""
    npy, alone = out / "beside.npy", out / "alone.npy"
    args = [MOEFLUX, *f"logits --model {GOLDEN / 'qwen3_moe-bf16'} --tokens 1,2,3".split()]
    subprocess.run([*args, "--out", str(alone)], check=True)
    for mpi in RANK:
        for shell in ([], ["sh", "-c", '"$0" "$@"; exit $?']):
            npy.unlink(missing_ok=True)
            search_path = {"PATH": os.environ["PATH"]}
            code, output = run(mpi, 2, [*shell, *args, "--out", str(npy)], env=search_path)
            same = code == 0 and npy.read_bytes() == alone.read_bytes()
            expect(same, f"{mpi}, beside the launcher: {code} {output}")
    print("the library of a launcher outside of the search path is found beside it")


def ranks_of(mark, mpi):
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
            is_ours = os.readlink(entry / "exe") == os.path.realpath(MOEFLUX)
        except OSError:
            continue
        variables = dict(it.split(b"=", 1) for it in environ if b"=" in it)
        if is_ours and variables.get(b"MOEFLUX_CHECK") == mark.encode():
            found[int(variables[RANK[mpi].encode()])] = int(entry.name)
    return found


def begin(mpi, mark, model):
    """A job of four ranks that computes for long, once it does."""
    start, env = command(TOOLS, mpi, 4)
    env["MOEFLUX_CHECK"] = mark
    args = ["bench", "--prompt-tokens", "32", "--gen-tokens", "200", "--repeat", "500", *model]
    args += ["--threads", "1", "--slots", "40", "--rank-timeout", "2"]
    job = subprocess.Popen(start + [MOEFLUX, *args], env=env, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, start_new_session=True)
    while len(ranks := ranks_of(mark, mpi)) < 4:
        if job.poll() is not None:
            sys.exit(f"FAILED: {mark}: ended before it began: {job.stdout.read()}")
        time.sleep(0.02)
    # MPI and the model have begun by then.
    time.sleep(random.Random(mark).uniform(2.0, 4.0))
    return job, ranks


def end_one(mpi, how, seed):
    """Ends a rank of a job in the middle: seconds until all are gone, and what was said."""
    mark = f"{mpi}-{how}-{seed}-{os.getpid()}"
    job, ranks = begin(mpi, mark, [])
    try:
        rank = random.Random(seed).randrange(4)
        os.kill(ranks[rank], {"kill": signal.SIGKILL, "stop": signal.SIGSTOP,
                              "end": signal.SIGTERM}[how])
        began = time.monotonic()
        output, _ = job.communicate(timeout=60)
        took = time.monotonic() - began
        while ranks_of(mark, mpi):
            expect(time.monotonic() - began < 60, f"{mark}: ranks are left")
            time.sleep(0.05)
        expect(job.returncode != 0, f"{mark}: rc 0 after rank {rank}: {output}")
        return max(took, time.monotonic() - began), rank, output
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)


def weight(model, name):
    """Some bytes of a tensor, as its file has them."""
    content = (model / "model.safetensors").read_bytes()
    n_header = int.from_bytes(content[:8], "little")
    first, last = json.loads(content[8:8 + n_header])[name]["data_offsets"]
    middle = 8 + n_header + (first + last) // 2
    return content[middle:middle + 32]


def flip(pid, wanted):
    """Changes a bit wherever a process holds these bytes; how often that was."""
    n_found = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, access = line.split()[:2]
            first, last = (int(it, 16) for it in span.split("-"))
            if access[:2] != "rw" or last - first > 1 << 30:
                continue
            try:
                memory.seek(first)
                at = memory.read(last - first).find(wanted)
            except OSError:
                continue
            if at >= 0:
                memory.seek(first + at)
                memory.write(bytes([wanted[0] ^ 0x88]))
                n_found += 1
    return n_found


def corruption():
    """A byte of a weight that all ranks hold changes in the memory of rank 1."""
    model = GOLDEN / "mlx-qwen3_moe-q4-g32-bf16"
    wanted = weight(model, "model.layers.0.self_attn.q_proj.weight")
    for mpi in RANK:
        job, ranks = begin(mpi, f"{mpi}-flip-{os.getpid()}", ["--model", str(model)])
        try:
            expect(flip(ranks[1], wanted) > 0, f"{mpi}: rank 1 does not hold the weight")
            output, _ = job.communicate(timeout=60)
            lines = ours(output)
            expect(job.returncode != 0 and len(lines) == 1, f"{mpi}: {output}")
            expect("rank 1 (" in lines[0] and "computed different values" in lines[0], lines[0])
            print(f"{mpi}: a bit of a weight in the memory of rank 1: {lines[0]}", flush=True)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


def ends():
    limits = {"stop": 7.0, "kill": 2.0, "end": 2.0}
    for mpi in RANK:
        for how, limit in limits.items():
            times = []
            for seed in range(RUNS):
                took, rank, output = end_one(mpi, how, seed)
                times.append(took)
                if how == "stop":
                    expect(f"rank {rank} (" in output and "did not respond within 2 s" in output,
                           f"{mpi}, rank {rank} stopped: {output}")
            times.sort()
            print(f"{mpi}: {RUNS} jobs with a rank that is sent {how}: all ranks gone after "
                  f"{times[len(times) // 2]:.2f} s [{times[0]:.2f} .. {times[-1]:.2f}]", flush=True)
            expect(times[-1] <= limit, f"{mpi}, {how}: {times[-1]:.2f} s are more than {limit}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        goldens(out)
        refusals(out)
        beside(out)
    corruption()
    ends()


if __name__ == "__main__":
    main()
