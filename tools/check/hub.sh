#!/usr/bin/env bash
# Compares what `moeflux pull` makes of a repository with what huggingface_hub makes of it, from a
# hub on this machine: the same tree, and each takes the other's without a download.
#
#     tools/check/hub.sh
#
# Needs python3; fetches huggingface_hub.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo build --quiet --locked --release --bin moeflux
cargo build --quiet --locked --release --package moeflux-testing --features hub --example hub
built=$(realpath "${CARGO_TARGET_DIR:-target}/release")
tools=${MOEFLUX_HUB_CHECK:-$PWD/target/hub-check}
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/pip" install -q huggingface_hub
"$tools/bin/python" tools/check/hub/check.py "$built/moeflux" "$built/examples/hub"
