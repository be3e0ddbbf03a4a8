#!/usr/bin/env bash
# Type-checks the workspace for macOS on Apple silicon, on Linux. Nothing is linked or run, and what
# build scripts compile of C is left empty.
#
#     tools/platforms/maccheck.sh [CARGO CHECK ARGUMENTS]     --workspace --all-targets by default
#
# Needs rustup, which fetches the standard library for macOS.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- --workspace --all-targets

target=aarch64-apple-darwin
rustup target add $target 2> /dev/null
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/$target
mkdir -p "$CARGO_TARGET_DIR"
# There are no headers of macOS: whatever is to be compiled comes out empty.
cat > "$CARGO_TARGET_DIR/empty-cc" <<'END'
#!/bin/bash
while [ $# -gt 0 ]; do [ "$1" != -o ] || { : > "$2"; exit 0; }; shift; done
END
printf '#!/bin/bash\n[ "$1" = s ] || : > "$2"\n' > "$CARGO_TARGET_DIR/empty-ar"
chmod +x "$CARGO_TARGET_DIR/empty-cc" "$CARGO_TARGET_DIR/empty-ar"
export CC_aarch64_apple_darwin=$CARGO_TARGET_DIR/empty-cc
export AR_aarch64_apple_darwin=$CARGO_TARGET_DIR/empty-ar
cargo check --locked --target $target "$@"
