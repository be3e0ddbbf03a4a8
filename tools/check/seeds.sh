#!/usr/bin/env bash
# Runs all tests with more seeds: 10,000 where ./test.sh draws 200, others in proportion.
#
#     tools/check/seeds.sh [SEEDS [FILTER..]]       (10000; of all tests)
#
# Takes hours on two cores. Needs a driver for Vulkan, as ./test.sh does.
set -euo pipefail
cd "$(dirname "$0")/../.."

seeds=${1:-10000}
MOEFLUX_SEEDS=$seeds MOEFLUX_REQUIRE_GPU=1 \
    cargo test --workspace --locked --no-fail-fast --quiet -- "${@:2}"
