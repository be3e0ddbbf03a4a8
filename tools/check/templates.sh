#!/usr/bin/env bash
# Renders each hostile template in a process of its own, with limits on time and memory.
#
#     tools/check/templates.sh [PROFILE]       (release; or dev, or test)
#
# Needs python3 and Linux. Prints a line per case: seconds of the processor, the most memory in MB,
# how it ended; fails if one takes 2 seconds or 256 MB, is killed, or prints more than one line.
set -euo pipefail
cd "$(dirname "$0")/../.."

profile="${1:-release}"
cargo build --quiet --locked -p moeflux-testing --example render_template --profile "$profile"
target="${CARGO_TARGET_DIR:-target}"
folder="$profile"
case "$profile" in dev | test) folder=debug ;; esac

python3 - "$target/$folder/examples/render_template" <<'PYTHON'
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

SECONDS, MB = 2, 256
# Address space: a stack of 32 MB and what the allocator reserves for threads come on top.
SPACE = (MB + 256) << 20
cases = json.loads(pathlib.Path("crates/moeflux/src/text/template/hostile/cases.json").read_text())


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))


def peak_and_time(run):
    # A process of its own: the numbers are of all children that ended.
    code = ("import resource, subprocess, sys; p = subprocess.run(sys.argv[1:]); "
            "u = resource.getrusage(resource.RUSAGE_CHILDREN); "
            "print(p.returncode, u.ru_utime + u.ru_stime, u.ru_maxrss / 1024)")
    done = subprocess.run([sys.executable, "-c", code, *run], capture_output=True, text=True,
                          timeout=60, preexec_fn=limited, check=False)
    return done.stdout.splitlines()


n_bad = 0
with tempfile.TemporaryDirectory() as folder:
    for name, template, _ in cases:
        text = re.sub(r"@\[(\d+)\|(.*?)\]@", lambda m: m[2] * int(m[1]), template, flags=re.S)
        path = pathlib.Path(folder, f"{name}.jinja")
        path.write_text(text, newline="")
        lines = peak_and_time([sys.argv[1], str(path)])
        said = lines[0] if lines else ""
        status, seconds, peak = lines[-1].split() if len(lines) == 2 else ("?", "99", "999")
        is_good = status == "0" and float(seconds) < SECONDS and float(peak) < MB
        n_bad += not is_good
        said = said.replace(f"{folder}/", "")
        print(f"{'ok ' if is_good else 'BAD'} {float(seconds):5.2f} s {float(peak):5.0f} MB  {name}: {said[:120]}")
print(f"{len(cases)} templates, {n_bad} beyond {SECONDS} s or {MB} MB")
sys.exit(n_bad > 0)
PYTHON
