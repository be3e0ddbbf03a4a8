#!/usr/bin/env bash
# Puts what a release has for one target into an archive with its checksum.
#
#     tools/release/archive.sh TARGET BINARY OUTDIR
#
# Writes OUTDIR/moeflux-VERSION-TARGET.tar.gz (.zip for Windows) and a .sha256 file beside it. RUNNER
# names a program that runs the binary, where this machine cannot; completions come from it.
set -euo pipefail
[ $# -eq 3 ] || { echo 'usage: archive.sh TARGET BINARY OUTDIR' >&2; exit 2; }
target=$1 binary=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
cd "$(dirname "$0")/../.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
name=moeflux-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/$name/completions"
cp "$binary" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$work/$name/"
case $target in
    *linux*) cp tools/release/moeflux.service "$work/$name/" ;;
esac
read -ra runner <<< "${RUNNER:-}"
for shell in bash zsh fish powershell; do
    "${runner[@]}" "$binary" completions "$shell" > "$work/$name/completions/moeflux.$shell"
done

# The same files give the same archive: no owners, one time, one order.
moment=$(git log -1 --format=%ct 2>/dev/null || echo 0)
cd "$work"
case $target in
    *windows*)
        archive=$name.zip
        7z a -bd -bso0 "$out/$archive" "$name"
        ;;
    *)
        archive=$name.tar.gz
        # GNU tar is `gtar` on macOS, where it is there at all.
        tar=$(command -v gtar || command -v tar)
        if "$tar" --version | grep -q GNU; then
            "$tar" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$moment" -cf - "$name"
        else
            "$tar" -cf - "$name"
        fi | gzip -9n > "$out/$archive"
        ;;
esac
cd "$out"
if command -v sha256sum >/dev/null; then
    sha256sum "$archive" > "$archive.sha256"
else
    shasum -a 256 "$archive" > "$archive.sha256"
fi
cat "$archive.sha256"
