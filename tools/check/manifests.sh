#!/usr/bin/env bash
# Compares the Homebrew formula and the manifests for winget and scoop with the archives that they
# name, and with rules taken from the schemas of these installers. Then damages each of them, to see
# that the damage is found.
#
#     tools/check/manifests.sh [DIST PACKAGES]
#
# DIST has archives and PACKAGES what tools/release/packages.sh made of them. By default archives of
# a script in the place of the program are made, twice: both must have the same bytes.
#
# Takes seconds. Needs ruby and python3; fetches PyYAML and jsonschema where they are missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -eq 0 ] || [ $# -eq 2 ] || { echo 'usage: manifests.sh [DIST PACKAGES]' >&2; exit 2; }

python=python3
if ! python3 -c 'import jsonschema, yaml' 2>/dev/null; then
    tools=${MOEFLUX_MANIFESTS_CHECK:-$PWD/target/manifests-check}
    [ -x "$tools/bin/python" ] || python3 -m venv "$tools"
    "$tools/bin/pip" install -q jsonschema pyyaml
    python=$tools/bin/python
fi

if [ $# -eq 2 ]; then
    exec "$python" tools/check/manifests/check.py "$1" "$2"
fi
. tools/release/facts.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# archives DIST: of a program that prints completions. Their bytes differ, as those of programs do.
archives() {
    local target
    for target in $(targets); do
        # shellcheck disable=SC2016
        printf '#!/bin/sh\n# %s\necho "# $*"\n' "$target" > "$work/program"
        chmod +x "$work/program"
        tools/release/archive.sh "$target" "$work/program" "$1" > /dev/null
    done
}
archives "$work/dist"
# Times of files, rights, language and time zone are others.
(
    sleep 2
    umask 077
    export TZ=Asia/Tokyo LC_ALL=C
    archives "$work/again"
)
for archive in "$work"/dist/*; do
    cmp "$archive" "$work/again/$(basename "$archive")"
done
echo 'ok      archives have the same bytes when they are made again'
tools/release/packages.sh "$work/dist" "$work/packages"
"$python" tools/check/manifests/check.py "$work/dist" "$work/packages"
