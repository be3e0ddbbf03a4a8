#!/usr/bin/env bash
# What must pass before a change lands, from a fresh clone to done; stops at the first that fails.
# Checks that take longer, or fetch packages, are in tools/check/: see TESTING.md.
# Installs a missing compiler or driver for Vulkan by apt where that is possible.
set -euo pipefail
cd "$(dirname "$0")"

fail() {
  printf 'test.sh: %s\n' "$1" >&2
  exit 1
}

# install WHAT PACKAGE...: installs packages for what is missing.
install() {
  local wanted=$1
  shift
  command -v apt-get >/dev/null || fail "$wanted is missing: install it ($*)"
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  printf 'test.sh: installing %s for %s\n' "$*" "$wanted"
  if ! { "${as_root[@]}" apt-get update -qq \
    && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@"; } >/dev/null
  then
    fail "$wanted is missing and apt could not install $*"
  fi
}

# Kernels for GPUs run on whichever adapter there is: where there is none, on a software driver.
ensure_gpu() {
  [ "$(uname -s)" = Linux ] || return 0
  local drivers
  drivers=$(find /usr/share/vulkan/icd.d /etc/vulkan/icd.d -name '*.json' 2>/dev/null || true)
  # All of it is read: where a pipe's reader leaves early, its writer fails, and so does the pipe.
  if [ -z "$drivers" ] || [[ $(ldconfig -p 2>/dev/null) != *libvulkan.so.1* ]]; then
    install 'a driver for Vulkan' mesa-vulkan-drivers libvulkan1
  fi
}

# Where the time of each step is added: date, commit, step, seconds.
times=${CARGO_TARGET_DIR:-target}/test-times.tsv
mkdir -p "$(dirname "$times")"
commit=$(git describe --always --dirty --exclude '*' 2>/dev/null || echo -)
list=

# step NAME COMMAND...: runs one check and records its time.
step() {
  local name=$1 began=$SECONDS seconds
  shift
  printf '== %s: %s\n' "$name" "$*"
  "$@" || fail "FAILED: $name (after $((SECONDS - began)) s)"
  seconds=$((SECONDS - began))
  printf '== %s: ok, %d s\n' "$name" "$seconds"
  printf '%s\t%s\t%s\t%d\n' "$(date -u +%FT%TZ)" "$commit" "$name" "$seconds" >> "$times"
  list+=$(printf '%-8s %6d s' "$name" "$seconds")$'\n'
}

command -v cc >/dev/null || install "\`cc\`" gcc libc6-dev
# The commands of the documentation are tried as they stand there.
command -v curl >/dev/null || install "\`curl\`" curl
ensure_gpu
if ! command -v cargo >/dev/null && [ -f "$HOME/.cargo/env" ]; then
  # shellcheck disable=SC1091
  . "$HOME/.cargo/env"
fi
command -v cargo >/dev/null || fail "\`cargo\` is missing: install Rust from https://rustup.rs"
# Where the pinned toolchain is neither there nor to be had, stable does if it is as new.
if ! cargo --version >/dev/null 2>&1 && cargo +stable --version >/dev/null 2>&1; then
  export RUSTUP_TOOLCHAIN=stable
  printf 'test.sh: the toolchain of rust-toolchain.toml cannot be had; using %s\n' "$(cargo --version)"
fi
# Minimal installations of Rust lack these two.
for component in fmt clippy; do
  cargo "$component" --version >/dev/null 2>&1 && continue
  package=${component/fmt/rustfmt}
  if ! { command -v rustup && rustup component add "$package"; } >/dev/null; then
    fail "\`cargo $component\` is missing: install $package for $(rustc --version)"
  fi
done

# Here a test that cannot run is a failure.
export MOEFLUX_REQUIRE_GPU=1
# What is built once is built a seventh faster so; who edits and tests again is better off without.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0

step format cargo fmt --all --check
step lints cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
step tests cargo test --workspace --locked --quiet
printf '\n%s%-8s %6d s\n' "$list" all "$SECONDS"
printf 'test.sh: all passed in %d s (earlier times: %s)\n' "$SECONDS" "$times"
