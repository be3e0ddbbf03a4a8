#!/usr/bin/env bash
# Checks the page of `moeflux serve`: its pure parts in Node, then all of it in Chromium as a person
# uses it, with answers from scripts and from moeflux itself: branches, tools, files, reloads,
# several tabs, a server that dies, hostile answers, a million characters, answers beside each other
# and as tokens, the view of the machine, the choice of a model, both themes, and how fast it is.
#
#     tools/check/page.sh [MOEFLUX] [PART]     a program other than the release; checks whose name
#                                              has PART
#
# Needs Node 20.19 or newer, npm, python3 and Chromium (CHROMIUM names another program than
# /usr/bin/chromium). Fetches playwright-core and axe-core by the lock file, and numpy. With
# SHOTS=DIR it leaves a picture of what failed there. With PAGE=URL the page's files come from that
# address.
set -euo pipefail
cd "$(dirname "$0")/../.."

moeflux=${1:-}
if [ -z "$moeflux" ]; then
    cargo build --release --quiet --locked --bin moeflux
    moeflux=${CARGO_TARGET_DIR:-target}/release/moeflux
fi
moeflux=$(realpath "$moeflux")
here=$PWD/tools/check/page
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}/page-tools")

mkdir -p "$tools"
cp "$here/package.json" "$here/package-lock.json" "$tools"
npm ci --silent --no-audit --no-fund --prefix "$tools"
[ -x "$tools/ve/bin/python" ] || python3 -m venv "$tools/ve"
"$tools/ve/bin/pip" install -q numpy

# The hub of the tests; HUB names one that is built.
hub=${HUB:-}
if [ -z "$hub" ]; then
    cargo build --release --quiet --locked -p moeflux-testing --features hub --example hub
    hub=${CARGO_TARGET_DIR:-target}/release/examples/hub
fi
hub=$(realpath "$hub")

node --test "$here"/*.test.mjs
HUB=$hub PAGE_TOOLS=$tools PYTHON=$tools/ve/bin/python node "$here/check.mjs" "$moeflux" "${2:-}"
