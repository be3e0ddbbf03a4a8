#!/usr/bin/env bash
# Puts what a release has for one target into an archive with its checksum.
#
#     tools/release/archive.sh TARGET BINARY OUTDIR
#
# Writes OUTDIR/moeflux-VERSION-TARGET.tar.gz (.zip for Windows) and a .sha256 file beside it. RUNNER
# names a program that runs the binary, where this machine cannot; completions come from it.
# Needs python3.
set -euo pipefail
[ $# -eq 3 ] || { echo 'usage: archive.sh TARGET BINARY OUTDIR' >&2; exit 2; }
target=$1 binary=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
cd "$(dirname "$0")/../.."
. tools/release/facts.sh

name=$(stem "$target")
archive=$(archive "$target")
program=$(fact "$target" program)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/$name/completions"
cp "$binary" "$work/$name/$program"
cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$work/$name/"
case $target in
    *linux*) cp tools/release/moeflux.service "$work/$name/" ;;
esac
read -ra runner <<< "${RUNNER:-}"
for shell in bash zsh fish powershell; do
    # Before bash 4.4 an empty array counts as unset.
    ${runner[@]+"${runner[@]}"} "$binary" completions "$shell" > "$work/$name/completions/moeflux.$shell"
done
moment=$(git log -1 --format=%ct 2>/dev/null || echo 0)
run_python tools/release/pack.py "$work/$name" "$out/$archive" "$moment" "$program"
