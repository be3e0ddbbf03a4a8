#!/usr/bin/env bash
# Writes what installers need of a release: the checksums of all archives, the Homebrew formula, and
# the manifests for scoop and winget.
#
#     tools/release/packages.sh DIR OUTDIR
#
# DIR has the archives' .sha256 files, as tools/release/archive.sh writes them.
set -euo pipefail
[ $# -eq 2 ] || { echo 'usage: packages.sh DIR OUTDIR' >&2; exit 2; }
mkdir -p "$2"
scripts=$(dirname "$0")
cat "$1"/*.sha256 > "$2/SHA256SUMS"
"$scripts/formula.sh" "$1" > "$2/moeflux.rb"
"$scripts/scoop.sh" "$1" > "$2/moeflux.json"
"$scripts/winget.sh" "$1" "$2"
