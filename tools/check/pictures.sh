#!/usr/bin/env bash
# Compares docs/pictures/ with what the figures of benches/record/data/ give, and checks those.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/readme/plots.py --check
