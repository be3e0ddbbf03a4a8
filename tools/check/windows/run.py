"""Runs test programs for Windows under Wine, and compares what fails with the list of what cannot pass.
A test that fails is run again, alone.

    run.py BUILT.json CANNOT.txt [PROGRAM..]

BUILT.json is what `cargo test --no-run --message-format json` printed. A program is named by its package and
its target: moeflux-io/lib, moeflux/it.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# A program that hangs is wrong, too.
SECONDS_MAX = 3600
RESULT = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", re.M)


def programs(path):
    """Each test program: its name, the file, and the folder of its package."""
    for line in open(path):
        built = json.loads(line)
        if built.get("reason") != "compiler-artifact" or not built["profile"]["test"] or not built["executable"]:
            continue
        package = Path(built["manifest_path"]).parent
        kind = built["target"]["kind"][0]
        name = kind if kind in ("lib", "bin") else built["target"]["name"]
        yield f"{package.name}/{name}", built["executable"], package


def listed(path):
    """Of each program, the tests that cannot pass."""
    found = {}
    for line in open(path):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, reason = (it.strip() for it in line.split("|", 1))
        program, test = name.split(" ", 1)
        assert reason, f"{name} has no reason"
        found.setdefault(program, set()).add(test)
    return found


def run(executable, folder, *arguments):
    """What each test came to, and the output."""
    # Processes have the same numbers again and again under Wine, and tests name folders by them.
    for left in Path(os.environ["WINEPREFIX"], "drive_c/users").glob("*/Temp/*"):
        shutil.rmtree(left, ignore_errors=True)
    # Linux' libraries are none of Windows', and cargo sets what tests read.
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    environment["CARGO_MANIFEST_DIR"] = str(folder)
    command = ["wine", executable, "--test-threads", str(os.cpu_count()), *arguments]
    with tempfile.TemporaryFile() as file:
        try:
            code = subprocess.run(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT,
                                  timeout=SECONDS_MAX).returncode
        except subprocess.TimeoutExpired:
            subprocess.run(["wineserver", "-k"], check=False)
            code = None
        file.seek(0)
        output = file.read().decode(errors="replace").replace("\r\n", "\n")
    return dict(RESULT.findall(output)), output, code


def main(built, cannot, *wanted):
    cannot, n_wrong, seen = listed(cannot), 0, set()
    for name, executable, folder in programs(built):
        seen.add(name)
        if wanted and name not in wanted:
            continue
        begin = time.monotonic()
        results, output, code = run(executable, folder)
        failed = {test for test, result in results.items() if result == "FAILED"}
        # Memory is counted by process: a test is judged without those that ran beside it.
        beside = {test for test in failed if "ok" in run(executable, folder, "--exact", test)[0].values()}
        failed -= beside
        expected = cannot.get(name, set())
        wrong = [f"failed: {it}" for it in sorted(failed - expected)]
        wrong += [f"passes, but is listed: {it}" for it in sorted(expected - failed)]
        if code is None:
            wrong.append(f"did not end within {SECONDS_MAX} s")
        elif not results and code != 0:
            wrong.append(f"did not run: exit code {code}")
        seconds = time.monotonic() - begin
        print(f"{'WRONG' if wrong else 'ok':<5} {name}: {len(results)} tests, {len(failed)} cannot pass, "
              f"{len(beside)} pass only alone, {seconds:.0f} s", flush=True)
        for line in wrong:
            print(f"      {line}", flush=True)
        if wrong:
            print(output[-20000:], file=sys.stderr)
        n_wrong += len(wrong)
    unknown = set(cannot) - seen
    assert not unknown, f"the list names programs that are not there: {unknown}"
    print(f"{n_wrong} wrong")
    return n_wrong > 0


sys.exit(main(*sys.argv[1:]))
