#!/usr/bin/env bash
# Builds the programs of fuzz/ with libFuzzer and runs each for some seconds from its committed
# corpus; fails on a crash, a hang, a leak or 2 GB.
#
#     tools/check/fuzz.sh [SECONDS]       (60)
#
# Needs a C++ compiler. cargo-fuzz is not needed: the flags below are those it passes.
set -euo pipefail
cd "$(dirname "$0")/../../fuzz"

seconds=${1:-60}
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}

sanitizer=-Zsanitizer=address
# The pinned toolchain of some systems has no sanitizer's runtime; coverage works without.
ls "$(rustc --print sysroot)/lib/rustlib/$host/lib/"*asan* > /dev/null 2>&1 || sanitizer=

# The unstable flags work on a stable compiler only so. A target by name keeps them from build
# scripts.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="$sanitizer -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares \
-Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
-Ccodegen-units=1 --cfg fuzzing"
cargo build --locked --release --target "$host" --bins
unset RUSTC_BOOTSTRAP RUSTFLAGS

found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
mkdir -p artifacts
# Targets that read files write them there.
export TMPDIR=$found
for corpus in corpus/*; do
    name=$(basename "$corpus")
    echo "== $name, $seconds s"
    mkdir "$found/$name"
    # The first folder takes what is found, so that the committed corpus stays as it is.
    "$target/$host/release/$name" "$found/$name" "$corpus" \
        -dict=json.dict -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
        -artifact_prefix="artifacts/$name-" -print_final_stats=1 2> "$found/$name.log" || {
        tail -50 "$found/$name.log"
        echo "fuzz/artifacts/$name-* crashes the target: see fuzz/README.md" >&2
        exit 1
    }
    grep -E 'stat::number_of_executed_units|stat::new_units_added' "$found/$name.log"
done
