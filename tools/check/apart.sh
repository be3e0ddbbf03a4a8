#!/usr/bin/env bash
# Attacks a server of the demo model as clients that should not reach each other: what is replayed,
# what other keys learn, and what readers who take nothing cost the others. Some 200 cases.
#
#     tools/check/apart.sh [replay|keys|readers ...]
#
# Needs python3. Takes minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo build --quiet --locked --release --bin moeflux
python3 tools/check/apart/check.py "${CARGO_TARGET_DIR:-target}/release/moeflux" "$@"
