#!/usr/bin/env bash
# Builds the program and all tests for Windows on x86-64 with MinGW, and runs them under Wine. Tests
# that cannot pass there stand in tools/check/windows/cannot.txt, each with the reason; a test that
# fails without a line there is wrong, and so is a line whose test passes.
#
#     tools/check/windows.sh [PROGRAM..]      all test programs, or those named (moeflux-io/lib)
#
# Needs Debian's wine64, wine, gcc-mingw-w64-x86-64-win32, g++-mingw-w64-x86-64-win32,
# mingw-w64-x86-64-dev, xvfb, mesa-vulkan-drivers and libvulkan1, and rustup, which fetches the
# standard library for Windows. The first build takes half an hour on two cores, a run as long.
set -euo pipefail
cd "$(dirname "$0")/../.."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
work=$CARGO_TARGET_DIR/windows
mkdir -p "$work"
for program in wine x86_64-w64-mingw32-gcc-win32 x86_64-w64-mingw32-g++-win32 Xvfb; do
    command -v "$program" > /dev/null || { echo "windows.sh: $program is missing" >&2; exit 1; }
done
rustup target add x86_64-pc-windows-gnu 2> /dev/null

export WINEPREFIX=$work/prefix WINEDEBUG=-all
screen=:$((90 + $$ % 900))
Xvfb "$screen" -screen 0 1024x768x24 > /dev/null 2>&1 &
xvfb=$!
trap 'wineserver -k 2> /dev/null || true; kill $xvfb' EXIT
export DISPLAY=$screen
if [ ! -e "$WINEPREFIX/ready" ]; then
    wine wineboot -i > /dev/null 2>&1
    wine winecfg -v win10 > /dev/null 2>&1
    # Rust's standard library asks a library for random numbers that Wine 8 does not have.
    x86_64-w64-mingw32-gcc-win32 -shared tools/check/windows/prng.c -ladvapi32 \
        -o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll"
    wineserver -w
    touch "$WINEPREFIX/ready"
fi

gcc=x86_64-w64-mingw32-gcc-win32
export CC_x86_64_pc_windows_gnu=$gcc CXX_x86_64_pc_windows_gnu=x86_64-w64-mingw32-g++-win32
export AR_x86_64_pc_windows_gnu=x86_64-w64-mingw32-ar
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=$gcc
cargo test --workspace --exclude xtask --exclude moeflux-fuzz-targets --locked --no-run \
    --target x86_64-pc-windows-gnu --message-format json-render-diagnostics > "$work/built.json"
python3 tools/check/windows/run.py "$work/built.json" tools/check/windows/cannot.txt "$@"
