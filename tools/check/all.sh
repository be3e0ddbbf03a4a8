#!/usr/bin/env bash
# Runs all other scripts of this folder, the quick ones first, and prints a table of them.
#
#     tools/check/all.sh [NAME..]       all of them, or these
#
# Each writes to target/check/NAME.log. Fails if one fails, after the others.
set -euo pipefail
cd "$(dirname "$0")/../.."

logs=${CARGO_TARGET_DIR:-target}/check
mkdir -p "$logs"

# Names in order: those that take minutes, those that nothing is known of, those that take hours.
names() {
    local quick=(typos pictures manifests docs book deny templates tokenizers instructions)
    local slow=(tsan gpu fuzz miri seeds windows)
    printf '%s\n' "${quick[@]}"
    basename -s .sh tools/check/*.sh \
        | { grep -vxF "$(printf '%s\n' all "${quick[@]}" "${slow[@]}")" || true; }
    printf '%s\n' "${slow[@]}"
}

mapfile -t names < <(names)
[ $# -eq 0 ] || names=("$@")
table=
failed=0
for name in "${names[@]}"; do
    began=$SECONDS
    result=ok
    printf '== %s\n' "$name"
    "tools/check/$name.sh" > "$logs/$name.log" 2>&1 || {
        result="FAILED: $logs/$name.log"
        failed=1
    }
    table+=$(printf '%-14s %6d s  %s' "$name" $((SECONDS - began)) "$result")$'\n'
done
printf '\n%s' "$table"
exit "$failed"
