#!/usr/bin/env bash
# Builds the release of moeflux for Linux with glibc 2.28 or newer (Debian 10, Ubuntu 18.10, RHEL 8),
# whatever the glibc of this machine is, by cargo-zigbuild and the linker of PyPI's ziglang.
#
#     tools/release/linux.sh x86_64|aarch64 OUTDIR
#
# RUNNER names a program that runs the binary, where this machine cannot, for its completions:
# RUNNER='env -u LD_LIBRARY_PATH qemu-aarch64 -L /usr/aarch64-linux-gnu'.
#
# Needs python3 with venv, and Rust's library for the target (`rustup target add`). Where rustup has
# none, RUSTC names a compiler with its library's source, and that is built, too.
set -euo pipefail
[ $# -eq 2 ] || { echo 'usage: linux.sh x86_64|aarch64 OUTDIR' >&2; exit 2; }
target=$1-unknown-linux-gnu
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/../.."

tools=${MOEFLUX_RELEASE_TOOLS:-$PWD/target/release-tools}
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/pip" install -q ziglang cargo-zigbuild
export PATH="$tools/bin:$PATH" CARGO_ZIGBUILD_PYTHON_PATH=$tools/bin/python
library=()
[ -z "${RUSTC_BOOTSTRAP:-}" ] || library=('-Zbuild-std=std,panic_abort')
"${CARGO:-cargo}" zigbuild --release --locked -p moeflux-cli "${library[@]}" --target "$target.2.28"
tools/release/archive.sh "$target" "${CARGO_TARGET_DIR:-target}/$target/release/moeflux" "$out"
