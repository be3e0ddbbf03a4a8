#!/usr/bin/env bash
# Runs requests and prompts that once took gigabytes in a control group, and prints how far each
# case took the process beyond `--memory`. More than 64 MiB is a failure, and so is an answer that
# is neither right nor a refusal of one line. Without names it also runs answers with the least memory
# that `plan` names, in a group of that size.
#
#     tools/check/memory.sh [NAME..]       all cases, or those whose names begin so
#
# Needs python3, Linux and root: memory is that of a control group (v1 or v2), without the page
# cache. MOEFLUX names a program; otherwise a release is built. ONLY=demo or ONLY=vocabulary runs one
# of the two models: that in the box with 150M, and a random one of 151,936 tokens with 400M.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ -z "${MOEFLUX:-}" ]; then
    cargo build --release --quiet --locked
    MOEFLUX=$(realpath "${CARGO_TARGET_DIR:-target}/release/moeflux")
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 tools/check/memory/check.py "$MOEFLUX" "$work" "$@"
[ $# -gt 0 ] || python3 tools/check/memory/least.py "$MOEFLUX" "$work"
