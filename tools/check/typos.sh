#!/usr/bin/env bash
# Looks for misspelled words in the whole tree; _typos.toml has the exceptions.
#
#     tools/check/typos.sh [PATH..]
#
# Needs python3 with venv; fetches the package typos.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools=$(realpath -m "${CARGO_TARGET_DIR:-target}/typos-tools")
[ -x "$tools/bin/pip" ] || python3 -m venv "$tools"
"$tools/bin/pip" install -q --disable-pip-version-check typos==1.52.0
"$tools/bin/typos" "$@"
