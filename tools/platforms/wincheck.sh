#!/bin/bash
# wincheck.sh WORKDIR [cargo check arguments]: type-checks the workspace in the current folder for
# x86_64-pc-windows-gnu, on Linux. Only a type check: no program is linked or run.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: wincheck.sh WORKDIR [cargo check arguments]" >&2; exit 2; }
mkdir -p "$1"; work=$(cd "$1" && pwd); shift
. "$(dirname "${BASH_SOURCE[0]}")/rweb.sh"
# Import libraries are made even for a check, and build scripts compile C.
if [ ! -e "$work/mingw/done" ]; then
  mkdir -p "$work/mingw/debs" "$work/mingw/root"
  ( cd "$work/mingw/debs"
    apt-get download binutils-mingw-w64-x86-64 gcc-mingw-w64-x86-64-win32 \
      gcc-mingw-w64-x86-64-win32-runtime gcc-mingw-w64-base mingw-w64-x86-64-dev mingw-w64-common >&2
    for d in *.deb; do dpkg-deb -x "$d" "$work/mingw/root"; done
    rm -f *.deb )
  ln -sf x86_64-w64-mingw32-gcc-win32 "$work/mingw/root/usr/bin/x86_64-w64-mingw32-gcc"
  touch "$work/mingw/done"
fi
export PATH="$work/mingw/root/usr/bin:$PATH"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$work/win-target}"
exec "$cargo" check -Zbuild-std=std,panic_abort,test --target x86_64-pc-windows-gnu "$@"
