#!/usr/bin/env bash
# Counts the instructions of the decode kernels and compares them with the recorded ones.
#
# Needs python3 and valgrind; counts on x86-64 only. tools/instructions/check.py says more.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v valgrind > /dev/null || {
    echo 'tools/check/instructions.sh: valgrind is missing: apt-get install valgrind' >&2
    exit 1
}
tools/instructions/check.py
