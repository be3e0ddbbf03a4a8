#!/usr/bin/env python3
"""check.py [--renew]: instructions per weight of the decode kernels, compared with benches/record/instructions.txt.

Runs the example `count` of moeflux-kernels under callgrind, twice per kernel with different numbers of products: the difference is
the kernel's own. Counts do not depend on the machine or its load, only on the source and the compiler.
More than 5 % above a bound fails. More than 5 % below is reported: renew the bound, so that the gain is guarded too.
With another compiler than rust-toolchain.toml's, differences are reported and nothing fails. valgrind 3.19 knows no AVX-512, so that
only kernels up to AVX2 can be counted; elsewhere than on x86-64 nothing is.
"""
import argparse, json, platform, re, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = ROOT / "benches" / "record" / "instructions.txt"
SLACK = 0.05
N_WEIGHTS = 64 * 2048           # of the example's matrix
FEW, MANY = 2, 12               # products of the two runs


def is_pinned():
    """Whether this compiler is the one that the bounds were counted with."""
    pinned = re.search(r'channel = "([\d.]+)"', (ROOT / "rust-toolchain.toml").read_text())[1]
    return f"rustc {pinned} " in subprocess.run(["rustc", "--version"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def build():
    """The example's path."""
    cmd = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "moeflux-kernels", "--example", "count", "--message-format", "json"]
    out = subprocess.run(cmd, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if out.returncode:
        sys.exit(f"error: {' '.join(cmd)} failed")
    made = [json.loads(line) for line in out.stdout.splitlines()]
    return next(m["executable"] for m in made if m.get("executable") and m["target"]["name"] == "count")


def instructions(exe, kernel, n):
    """Of a whole run with n products."""
    cmd = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", exe, *kernel, str(n)]
    out = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = re.search(r"Collected : (\d+)", out.stdout)
    if out.returncode or not found:
        sys.exit(f"error: {' '.join(cmd)}: status {out.returncode}\n{out.stdout[-1500:]}")
    return int(found[1])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--renew", action="store_true", help="write what is counted now as the new bounds")
    renew = ap.parse_args().renew
    if platform.machine() not in ("x86_64", "AMD64"):
        return print(f"instructions are counted on x86-64 only, and this is {platform.machine()}")
    exe, lines, failed = build(), [], False
    for line in BOUNDS.read_text().splitlines():
        words = line.split("#")[0].split()
        if not words:
            lines.append(line)
            continue
        *kernel, bound = words
        now = (instructions(exe, kernel, MANY) - instructions(exe, kernel, FEW)) / ((MANY - FEW) * N_WEIGHTS)
        change = now / float(bound) - 1
        verdict = "ok" if abs(change) <= SLACK else "MORE than the bound" if change > 0 else "fewer than the bound: renew it"
        failed |= change > SLACK
        lines.append(f"{' '.join(kernel)} {now:.4f}")
        print(f"{' '.join(kernel):20s} {now:.4f} instructions per weight, bound {bound} ({change:+.1%}): {verdict}")
    if renew:
        BOUNDS.write_text("\n".join(lines) + "\n")
    elif failed and is_pinned():
        sys.exit("error: a kernel became longer; if that is wanted (faster in time, or right at last), tools/instructions/check.py --renew")


if __name__ == "__main__":
    main()
