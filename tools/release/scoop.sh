#!/usr/bin/env bash
# Prints the manifest of a release for scoop. A bucket that has it once finds later releases itself:
# scoop compares tags, and reads checksums from the SHA256SUMS of a release.
#
#     tools/release/scoop.sh DIR > moeflux.json
#
# DIR has the archives' .sha256 files, as tools/release/archive.sh writes them.
set -euo pipefail
# What fails in a function below fails here, too.
shopt -s inherit_errexit
[ $# -eq 1 ] || { echo 'usage: scoop.sh DIR' >&2; exit 2; }
sums=$(realpath "$1")
cd "$(dirname "$0")/../.."
. tools/release/facts.sh

# now TARGET: this release, as a member of a JSON object. later TARGET: any, where scoop fills in the
# $version.
now() {
    local machine url sum stem
    machine=$(fact "$1" scoop)
    url=$(url "$1")
    sum=$(sum "$sums" "$1")
    stem=$(stem "$1")
    cat <<JSON
        "$machine": {
            "url": "$url",
            "hash": "$sum",
            "extract_dir": "$stem"
        }
JSON
}
later() {
    local machine url stem
    # shellcheck disable=SC2016
    local version='$version'
    machine=$(fact "$1" scoop)
    url=$(url "$1")
    stem=$(stem "$1")
    cat <<JSON
            "$machine": {
                "url": "$url",
                "extract_dir": "$stem"
            }
JSON
}

# each FUNCTION: what it prints for each archive that scoop can take, with commas between.
each() {
    local target member between=
    for target in $(targets scoop '*'); do
        member=$("$1" "$target")
        printf '%s%s' "$between" "$member"
        between=$',\n'
    done
}

now=$(each now)
later=$(each later)
program=$(for target in $(targets scoop '*'); do fact "$target" program; done | sort -u)
cat <<JSON
{
    "version": "$version",
    "description": "$description",
    "homepage": "$repository",
    "license": "${license// OR /|}",
    "architecture": {
$now
    },
    "bin": "$program",
    "checkver": "github",
    "autoupdate": {
        "architecture": {
$later
        },
        "hash": {
            "url": "\$baseurl/SHA256SUMS"
        }
    }
}
JSON
