#!/usr/bin/env bash
# Scores the demo model with the package lm-eval through `moeflux serve`: loglikelihood,
# loglikelihood_rolling and generate_until, against what moeflux says of the same tokens.
#
#     tools/check/lm_eval.sh
#
# Needs python3; fetches lm-eval and transformers. MOEFLUX names a program other than the release.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
end() {
    [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT

if [ -z "${MOEFLUX:-}" ]; then
    cargo build --release --quiet --locked --bin moeflux
    MOEFLUX=$(realpath "${CARGO_TARGET_DIR:-target}/release/moeflux")
fi
tools=${MOEFLUX_LM_EVAL:-$PWD/target/lm-eval}
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/pip" install -q 'lm-eval[api]' transformers

"$MOEFLUX" serve --port 0 --cache-dir none --context 1024 2> "$work/log" &
server=$!
url=
for _ in $(seq 600); do
    url=$(sed -n 's/^serving .* at \(http:[^ ]*\).*/\1/p' "$work/log")
    [ -z "$url" ] || break
    sleep 0.1
done
[ -n "$url" ] || { cat "$work/log"; exit 1; }
HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$tools/bin/python" tools/check/lm_eval/check.py \
    "$url" crates/moeflux-demo/model "$MOEFLUX" "$work"
