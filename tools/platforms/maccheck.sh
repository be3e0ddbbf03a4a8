#!/bin/bash
# maccheck.sh WORKDIR [cargo check arguments]: type-checks the workspace in the current folder for
# aarch64-apple-darwin, on Linux. Only a type check: nothing is linked or run, and what build scripts
# compile of C is left empty.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: maccheck.sh WORKDIR [cargo check arguments]" >&2; exit 2; }
mkdir -p "$1"; work=$(cd "$1" && pwd); shift
. "$(dirname "${BASH_SOURCE[0]}")/rweb.sh"
# There are no headers of macOS: whatever is to be compiled comes out empty.
cat > "$work/empty-cc" <<'END'
#!/bin/bash
while [ $# -gt 0 ]; do [ "$1" != -o ] || { : > "$2"; exit 0; }; shift; done
END
printf '#!/bin/bash\n[ "$1" = s ] || : > "$2"\n' > "$work/empty-ar"
chmod +x "$work/empty-cc" "$work/empty-ar"
export CC_aarch64_apple_darwin="$work/empty-cc" AR_aarch64_apple_darwin="$work/empty-ar"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$work/mac-target}"
exec "$cargo" check -Zbuild-std=std,panic_abort,test --target aarch64-apple-darwin "$@"
