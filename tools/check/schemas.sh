#!/usr/bin/env bash
# Runs JSON-Schema-Test-Suite, draft 2020-12, against the grammars of schemas.
#
#     tools/check/schemas.sh [WORKDIR]
#
# Fetches the source package `jsonschema` from PyPI into WORKDIR (a temporary folder by default),
# which has the suite in it. Prints for each file how many schemas are held and what becomes of
# their instances, then what is refused. Fails if an invalid instance is taken.
set -euo pipefail
cd "$(dirname "$0")/../.."

VERSION=4.26.0
if [ $# -gt 0 ]; then
    work=$1
    mkdir -p "$work"
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
if [ ! -d "$work/jsonschema-$VERSION" ]; then
    python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work" \
        "jsonschema==$VERSION"
    tar -C "$work" -xzf "$work/jsonschema-$VERSION.tar.gz"
fi
suite=$work/jsonschema-$VERSION/json/tests/draft2020-12
cargo run --quiet --locked --release -p moeflux-testing --example schemas -- \
    "$suite" "$suite/optional" "$suite/optional/format"
