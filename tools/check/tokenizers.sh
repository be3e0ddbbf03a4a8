#!/usr/bin/env bash
# Opens each hostile tokenizer.json of crates/moeflux/tests/tokenizers in a process of its own, with
# at most 512 MB of address space and 2 s of processor time, and compares the
# tokens of the families with those of PyPI's tokenizers.
#
#   tools/check/tokenizers.sh [NAME..]       all cases, or these
#
# Prints a line per case and a summary; fails if a case panics, prints more than its line, or goes
# past a limit. PYTHON names an interpreter that has `tokenizers`; without one the comparison is
# left out, and the summary says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

address_space_kb=524288
seconds=2
wall_seconds=60
line_bytes=1200
python=${PYTHON:-python3}

program=$(cargo test --quiet --locked -p moeflux --test tokenizers --no-run --message-format json |
    sed -n 's/.*"executable":"\([^"]*tokenizers-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "cargo test made no program" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

TIMEFORMAT="%3U %3S"
n_cases=0
n_failed=0
report() { # WHAT CASE MILLISECONDS TEXT
    printf '%-6s %-28s %5s ms  %s\n' "$1" "$2" "$3" "$(printf '%s' "$4" | cut -c 1-150)"
    n_cases=$((n_cases + 1))
    [ "$1" = ok ] || n_failed=$((n_failed + 1))
}

mkdir "$work/cases"
"$program" --write "$work/cases"
open_within_limits() { # DIR
    (ulimit -v "$address_space_kb" -t "$seconds" -c 0 &&
        exec timeout "$wall_seconds" "$program" --open "$1" > "$work/out" 2> "$work/err")
}

if [ $# -gt 0 ]; then names=$(printf '%s\n' "$@"); else names=$(ls "$work/cases"); fi
for name in $names; do
    dir="$work/cases/$name"
    code=0
    # Processor time, not the clock's: the machine may be busy, and the program has one thread.
    { time open_within_limits "$dir"; } 2> "$work/time" || code=$?
    took=$(awk 'END { print int(($1 + $2) * 1000) }' "$work/time")
    said=$(sed "s|$dir/||" "$work/out")
    if [ "$code" -ne 0 ]; then
        report FAILED "$name" "$took" "exit code $code: $(head -n 2 "$work/err" | tr '\n' ' ')"
    elif [ -s "$work/err" ] || [ "$(wc -l < "$work/out")" -ne 1 ] ||
        [ "$(wc -c < "$work/out")" -gt "$line_bytes" ]; then
        report FAILED "$name" "$took" "not one line: $said"
    else
        report ok "$name" "$took" "$said"
    fi
done

n_families=0
if [ $# -eq 0 ] && "$python" -c 'import tokenizers' 2> /dev/null; then
    for family in $("$program" --families); do
        dir="$work/family"
        rm -rf "$dir"
        mkdir "$dir"
        "$program" --write-family "$family" "$dir"
        start=$(date +%s%N)
        if said=$("$python" tools/check/compare_tokens.py "$program" "$dir" 2>&1); then
            report ok "$family" "$((($(date +%s%N) - start) / 1000000))" "$said"
        else
            report FAILED "$family" 0 "$said"
        fi
        n_families=$((n_families + 1))
    done
fi

echo "$n_cases checked, $n_failed failed; $n_families families compared with PyPI's tokenizers"
[ "$n_failed" -eq 0 ]
