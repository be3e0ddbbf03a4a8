#!/usr/bin/env bash
# Packs all crates as crates.io would get them, and builds each from its package alone. Publishes
# nothing.
#
#     tools/check/package.sh
#
# Fetches dependencies anew where they are not there.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo package --workspace --locked --quiet
