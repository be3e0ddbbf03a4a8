#!/usr/bin/env bash
# Holds thousands of connections to `moeflux serve` open, in every way that costs nothing, and asks
# a question meanwhile: it must be answered within seconds. With a key, without one, and where the
# server may have few descriptors.
#
#     tools/check/connections.sh
#
# Needs python3 and as many descriptors as `ulimit -Hn` says, at least 3,000. MOEFLUX names a program
# other than the release.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ -z "${MOEFLUX:-}" ]; then
    cargo build --release --quiet --locked --bin moeflux
    MOEFLUX=$(realpath "${CARGO_TARGET_DIR:-target}/release/moeflux")
fi
ulimit -n "$(ulimit -Hn)"
python3 tools/check/connections.py "$MOEFLUX"
