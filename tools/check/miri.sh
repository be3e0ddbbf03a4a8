#!/usr/bin/env bash
# Runs the tests of memory, threads and scalar kernels under Miri; fails on undefined behaviour.
#
# Needs a nightly toolchain with the components `miri` and `rust-src`. What Miri cannot run is left
# out by the filters below: files read past the page cache, io_uring, mappings (`aligned.rs` takes
# the allocator of the standard library instead) and kernels beyond the scalar ones (Miri says that
# a CPU has what the compiler was told, which is less). Large tables of the kernels' tests too: they
# would take hours.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo +nightly miri --version > /dev/null 2>&1 || {
    echo 'tools/check/miri.sh: there is no Miri here: it comes with' >&2
    echo '    rustup toolchain install nightly --component miri,rust-src' >&2
    exit 1
}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri

# check MODEL CRATE FILTER...: one crate's tests under one model of aliasing.
check() {
    local flags=
    [ "$1" = tree ] && flags=-Zmiri-tree-borrows
    printf '== %s borrows: %s\n' "$1" "${*:2}"
    MIRIFLAGS="$flags ${MIRIFLAGS:-}" \
        cargo +nightly miri test --quiet --locked -p "$2" --lib -- "${@:3}"
}

for model in stacked tree; do
    # Slots are the memory that one thread writes while others read beside it.
    check "$model" moeflux-io aligned:: slots::
    check "$model" moeflux-threads
done
check stacked moeflux-kernels \
    cached:: rowop::tests::norms rowop::tests::ropes rowop::tests::blocks \
    delta::tests::cuts tests::vector_kernels tests::edge_values tests::one_group \
    tests::attention::admi tests::attention::parts tests::int8::edge_values
