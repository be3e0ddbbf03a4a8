#!/usr/bin/env bash
# Runs the GPU's golden tests with every format and every file in every place of its experts;
# ./test.sh runs every format once, and the places with a few.
#
# Needs a GPU or a driver for Vulkan in software.
set -euo pipefail
cd "$(dirname "$0")/../.."

MOEFLUX_TESTS=all MOEFLUX_REQUIRE_GPU=1 \
    cargo test --workspace --locked --quiet --test it -- golden::
