#!/usr/bin/env bash
# Runs the tests of memory that threads share under ThreadSanitizer; fails on any report.
#
# Needs the sanitizer's runtime, which rustup's toolchains for x86-64 Linux have. The standard
# library is used as it comes, not built with the sanitizer. What is ordered by atomics of this
# tree and by joins of threads is judged rightly; what is ordered only inside of the standard
# library (a contended lock, a condition variable, the end of a scope) is not seen and would be
# reported. So three kinds of tests are left out: of drives, of the loader over them (queues under
# such locks), and of several threads that panic at once (payloads under one).
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$(rustc -vV | sed -n 's/^host: //p')
ls "$(rustc --print sysroot)/lib/rustlib/$target/lib/"*tsan* > /dev/null 2>&1 || {
    echo "tools/check/tsan.sh: $(rustc --version) has no runtime of ThreadSanitizer" >&2
    exit 1
}

# The unstable flags work on a stable compiler only so. The standard library has another ABI by
# the compiler's book, since it was built without: nothing differs in how functions are called.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS='-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer'
# Tests that panic on purpose need no stacks.
export RUST_BACKTRACE=0
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/tsan
# A longer history finds the other side of a race that lies further back.
export TSAN_OPTIONS="suppressions=$PWD/tools/check/tsan.txt history_size=7"

# check CRATE FILTER...: one test at a time, so that a report is of that test. Captured output
# would stand under a lock of the standard library.
check() {
    cargo test --quiet --locked --target "$target" -p "$1" --lib -- \
        --test-threads=1 --nocapture "${@:2}"
}

check moeflux-threads --skip panics_on_every_thread --skip sections_do_not_nest
check moeflux-io aligned:: slots::
echo 'tools/check/tsan.sh: no reports'
