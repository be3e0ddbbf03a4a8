#!/usr/bin/env bash
# Compares the public names of moeflux with those of an earlier revision, by cargo-semver-checks.
#
#     tools/check/semver.sh [REVISION [WORKDIR]]
#
# REVISION is the newest tag by default: without a release nothing was promised, and there is nothing
# to do. WORKDIR gets the tool (`cargo install`, once; needs a network and some minutes) and its
# builds. `moeflux::provider` promises nothing and is hidden for the comparison, in a copy of the tree.
set -euo pipefail
cd "$(dirname "$0")/../.."

VERSION=0.51.0
revision=${1:-$(git describe --tags --abbrev=0 2> /dev/null || true)}
work=$(realpath -m "${2:-${CARGO_TARGET_DIR:-target}/semver}")
if [ -z "$revision" ]; then
    echo 'tools/check/semver.sh: there is no release to compare with; name a REVISION'
    exit 0
fi

mkdir -p "$work"
export CARGO_TARGET_DIR=$work/target
tool=$work/tool/bin/cargo-semver-checks
[ -x "$tool" ] ||
    cargo install --locked --root "$work/tool" --version "$VERSION" cargo-semver-checks

# copy FOLDER REVISION: the tree of a revision, without the names that promise nothing.
copy() {
    rm -rf "${work:?}/$1"
    mkdir -p "$work/$1"
    git archive "$2" | tar -x -C "$work/$1"
    sed -i 's/^pub mod provider;/#[doc(hidden)]\n&/' "$work/$1/crates/moeflux/src/lib.rs"
}

copy before "$revision"
copy now "$(git stash create | grep . || echo HEAD)"
"$tool" semver-checks --manifest-path "$work/now/crates/moeflux/Cargo.toml" \
    --baseline-root "$work/before/crates/moeflux"
