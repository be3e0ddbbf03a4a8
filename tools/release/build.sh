#!/usr/bin/env bash
# Builds the archive of a release for one target of targets.txt, on such a machine, and tries it.
#
#     tools/release/build.sh TARGET OUTDIR
set -euo pipefail
[ $# -eq 2 ] || { echo 'usage: build.sh TARGET OUTDIR' >&2; exit 2; }
target=$1
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/../.."
. tools/release/facts.sh
archive=$(archive "$target")

case $target in
    *-linux-*) tools/release/linux.sh "${target%%-*}" "$out" ;;
    *)
        case $target in
            # A new Windows has no runtime of Visual C++: it becomes a part of the program.
            *-windows-msvc) export RUSTFLAGS='-C target-feature=+crt-static' ;;
        esac
        cargo build --release --locked -p moeflux-cli --target "$target"
        tools/release/archive.sh "$target" \
            "${CARGO_TARGET_DIR:-target}/$target/release/$(fact "$target" program)" "$out"
        ;;
esac
tools/release/trial.sh "$out/$archive"
