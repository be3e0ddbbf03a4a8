#!/usr/bin/env bash
# Builds the book of the pages in docs/ and checks its links. Warnings and broken links fail.
#
#     tools/check/book.sh [OUTDIR]      (target/book)
#
# Needs python3. Builds mdBook the first time, which takes some minutes.
set -euo pipefail
out=$(realpath -m "${1:-${CARGO_TARGET_DIR:-$(dirname "$0")/../../target}/book}")
cd "$(dirname "$0")/../.."

version=0.5.4
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}/book-tools")
mdbook=$tools/bin/mdbook
if [ "$("$mdbook" --version 2> /dev/null)" != "mdbook v$version" ]; then
    CARGO_TARGET_DIR=$tools/build cargo install mdbook --locked --version "$version" \
        --no-default-features --features search --root "$tools" --force --quiet
    rm -rf "$tools/build"
fi

log=$("$mdbook" build --dest-dir "$out" 2>&1) || { printf '%s\n' "$log" >&2; exit 1; }
printf '%s\n' "$log"
if grep -qE '(WARN|ERROR)' <<< "$log"; then
    echo 'tools/check/book.sh: mdBook warns' >&2
    exit 1
fi
python3 tools/check/book/links.py "$out"
