#!/usr/bin/env bash
# Checks the licences, versions and sources of all dependencies by deny.toml.
#
#     tools/check/deny.sh [WHAT..]       (licenses bans sources; advisories need GitHub, too)
#
# Needs cargo-deny, which `cargo install cargo-deny --locked` builds in some minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo deny --version > /dev/null 2>&1 || {
    echo 'tools/check/deny.sh: cargo-deny is missing: cargo install cargo-deny --locked' >&2
    exit 1
}
[ $# -gt 0 ] || set -- licenses bans sources
cargo deny --locked check "$@"
