#!/usr/bin/env bash
# Builds the documentation of all crates; a broken link or an item without text fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked --quiet
