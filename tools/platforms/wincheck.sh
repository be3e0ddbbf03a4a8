#!/bin/bash
# wincheck.sh WORKDIR [cargo check arguments]: type-checks the workspace in the current folder for
# x86_64-pc-windows-gnu, on Linux. Only a type check: nothing is linked or run, and build scripts
# that compile C for Windows fail.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: wincheck.sh WORKDIR [cargo check arguments]" >&2; exit 2; }
mkdir -p "$1"; work=$(cd "$1" && pwd); shift
. "$(dirname "${BASH_SOURCE[0]}")/rweb.sh"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$work/win-target}"
exec "$cargo" check -Zbuild-std=std,panic_abort,test --target x86_64-pc-windows-gnu "$@"
