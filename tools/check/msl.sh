#!/usr/bin/env bash
# Gives the Metal text of every kernel to clang's front end, with the declarations of
# tools/check/msl/ in the place of Metal's own: what does not parse or type there does not on a
# Mac. The text is what naga makes of every shader with the options that wgpu has for Metal. First
# one kernel is damaged in several ways, and each must be refused.
#
#     tools/check/msl.sh
#
# Needs clang (`apt-get install -y clang`), 14 or newer. CLANG=clang++-19 names another one.
# On two cores, 2,000 kernels take two minutes. They stay in target/msl.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
    printf 'tools/check/msl.sh: %s\n' "$1" >&2
    exit 1
}

clang=${CLANG:-clang++}
command -v "$clang" > /dev/null || fail "$clang is missing: apt-get install -y clang"

# Apple silicon has `half`. `1.0` is a `float` in Metal. Metal's attributes are no C++, and it
# allows `const` twice; what it does not allow is to compute a constant when a program starts.
export MSL_CHECK="$clang -fsyntax-only -x c++ -std=c++14 --target=arm64-apple-macos13 \
    -nostdinc -nostdinc++ -I $PWD/tools/check/msl -Xclang -cl-single-precision-constant \
    -fno-lax-vector-conversions -Werror -Wglobal-constructors -Wno-unknown-attributes \
    -Wno-duplicate-decl-specifier"

# check FILE: leaves FILE.log if clang does not take it. Several run at once.
check() {
    # The options are words.
    # shellcheck disable=SC2086
    if $MSL_CHECK "$1" 2> "$1.log"; then
        rm "$1.log"
    fi
}
export -f check

work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/msl
rm -rf "$work"
mkdir -p "$work/damaged"
MOEFLUX_MSL=$work cargo test -p moeflux-gpu --lib --locked --quiet -- \
    kernels::tests::every_shader_translates_to_metal > "$work/naga.txt" \
    || fail "the shaders do not translate: $work/naga.txt"
kernels=("$work"/*.metal)
[ -e "${kernels[0]}" ] || fail "no kernels in $work"
whole=("$work"/*'-route and product.metal')

# damage NAME EXPRESSION: changes a kernel that has something of everything.
n_damaged=0
damage() {
    local damaged=$work/damaged/$1.metal
    sed -E "$2" "${whole[0]}" > "$damaged"
    ! cmp -s "${whole[0]}" "$damaged" || fail "the damage \"$1\" changes nothing"
    check "$damaged"
    grep -q 'error:' "$damaged.log" 2> /dev/null || fail "clang takes $damaged"
    n_damaged=$((n_damaged + 1))
}

damage function 's/metal::sqrt\(/metal::squirt(/'
damage vector 's/metal::uint4 (_e[0-9]+) = weights/metal::float4 \1 = weights/'
damage length 's/metal::uint4 (_e[0-9]+) = weights/metal::uint3 \1 = weights/'
damage field 's/params\.step\./params.stop./'
damage argument 's/, _buffer_sizes\);/);/'
damage literal 's/metal::select\(rhs, 1u/metal::select(rhs, 1/'
damage constant 's/^(constant uint N_CHUNKS = ).*/\1metal::popcount(255u);/'
damage memory 's/^    threadgroup /    device /'
damage write 's/^    device type_3& ws/    device type_3 const\& ws/'
damage atomic 's/metal::atomic_uint inner/uint inner/'
damage brace 's/^}//'

# The inner shell expands what is quoted.
# shellcheck disable=SC2016
printf '%s\0' "${kernels[@]}" | xargs -0 -n 8 -P "$(nproc)" \
    bash -c 'for it; do check "$it"; done' check
n_wrong=0
for log in "$work"/*.metal.log; do
    [ -e "$log" ] || continue
    n_wrong=$((n_wrong + 1))
    [ "$n_wrong" -gt 10 ] || grep -m 1 -E 'error' "$log" || printf '%s\n' "$log"
done
printf '%d kernels, %d wrong; %d damaged ones were refused\n' \
    "${#kernels[@]}" "$n_wrong" "$n_damaged"
[ "$n_wrong" = 0 ]
