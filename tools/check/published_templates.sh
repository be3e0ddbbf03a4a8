#!/usr/bin/env bash
# Renders the chat templates that llama.cpp keeps of published models, as moeflux and as Python's
# jinja2 in the way of transformers, and fails where the two differ.
#
#     tools/check/published_templates.sh [NAME..]       those of known families, or these; `-` is all
#
# Needs python3 and curl; fetches `transformers`, and the source package of llama-cpp-python (77 MB), unless
# LLAMA_CPP names a source tree of llama.cpp.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo build --quiet --locked -p moeflux-testing --example render_template
program="${CARGO_TARGET_DIR:-target}/debug/examples/render_template"
tools=${MOEFLUX_TEMPLATES_CHECK:-$PWD/target/templates-check}
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/pip" install -q jinja2 transformers==5.24.0
templates="${LLAMA_CPP:-$tools/llama.cpp}/models/templates"
if [ ! -d "$templates" ]; then
    package="$tools/llama_cpp_python-0.3.36.tar.gz"
    link=$(curl -fsS https://pypi.org/simple/llama-cpp-python/ |
        grep -o "https[^\"#]*/${package##*/}" | head -n 1)
    curl -fsS -o "$package" "$link"
    mkdir -p "$tools/llama.cpp"
    tar -xzf "$package" -C "$tools/llama.cpp" --strip-components=3 \
        --wildcards '*/vendor/llama.cpp/models/templates/*'
fi
"$tools/bin/python" tools/check/published_templates.py "$program" "$templates" "$@" 2> "$tools/log" ||
    { tail -n 5 "$tools/log"; exit 1; }
