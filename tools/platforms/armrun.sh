#!/bin/bash
# armrun.sh WORKDIR [cargo arguments, default: test]: builds the workspace in the current folder for
# aarch64 Linux and runs it under emulation, with NEON, dotprod and i8mm: a test of moeflux-kernels
# fails unless it sees all three. Installs Debian's gcc-aarch64-linux-gnu and qemu-user where
# missing.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: armrun.sh WORKDIR [cargo arguments]" >&2; exit 2; }
mkdir -p "$1"; work=$(cd "$1" && pwd); shift
[ $# -ge 1 ] || set -- test
if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
  { apt-get update -q && apt-get install -y -q gcc-aarch64-linux-gnu qemu-user; } >&2
fi
. "$(dirname "${BASH_SOURCE[0]}")/rweb.sh"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$work/arm-target}"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# The emulator is an x86 program: it must not see rustc's library path.
emulator="qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="env -u LD_LIBRARY_PATH $emulator"
export MOEFLUX_TABLES="${MOEFLUX_TABLES-scalar,neon,dotprod,i8mm}"
verb=$1; shift
exec "$cargo" "$verb" -Zbuild-std=std,panic_abort,test --target aarch64-unknown-linux-gnu "$@"
