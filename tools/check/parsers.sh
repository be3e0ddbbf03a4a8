#!/usr/bin/env bash
# Gives the texts of crates/moeflux-chat/src/calls/cases/ to the parsers of two other projects, and
# fails if they read something else than moeflux where tools/check/parsers/differences.md has no
# reason.
#
#     tools/check/parsers.sh
#
# Fetches some 400 packages on its first run, and builds those that are needed.
set -euo pipefail
cd "$(dirname "$0")/parsers"

CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-../../../target}/parsers" cargo run --quiet --locked --release
