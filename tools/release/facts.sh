# shellcheck shell=bash disable=SC2034
# Is sourced at the root of the tree: what the other scripts know of a release. The targets are from
# targets.txt, all else from Cargo.toml. Works with the bash 3.2 of macOS.

# value KEY: a key of the whole workspace.
value() {
    sed -n "/^\[workspace.package\]/,/^\[/s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml
}
# value_list KEY: the items of such a key, one a line.
value_list() {
    sed -n "/^\[workspace.package\]/,/^\[/s/^$1 = \[\(.*\)\]/\1/p" Cargo.toml | tr -d '" ' | tr ',' '\n'
}
version=$(value version)
repository=$(value repository)
license=$(value license)
# Without the program's name, which every installer writes before it.
description=$(sed -n 's/^description = ".*: r\(un .*\)"/R\1/p' crates/moeflux-cli/Cargo.toml)

# targets [COLUMN VALUE]: all targets of a release; those with this value there, or with any (`*`).
targets() {
    awk -v column="${1:-target}" -v value="${2:-*}" '
        $1 == "#" && $2 == "target" { for (i = 2; i <= NF; i++) if ($i == column) at = i - 1 }
        !/^#/ && (value == "*" ? $at != "-" : $at == value) { print $1 }' tools/release/targets.txt
}

# fact TARGET COLUMN: what the table says of a target; an error where it has no such line.
fact() {
    awk -v target="$1" -v column="$2" '
        $1 == "#" && $2 == "target" { for (i = 2; i <= NF; i++) if ($i == column) at = i - 1 }
        $1 == target { print $at; found = 1 }
        END { exit !found }' tools/release/targets.txt \
        || { echo "tools/release/targets.txt has no target $1" >&2; return 1; }
}

# stem TARGET: the folder in the archive for it. `cargo binstall` knows this pattern from
# crates/moeflux-cli/Cargo.toml, which tools/check/manifests.sh compares.
stem() {
    printf 'moeflux-%s-%s\n' "$version" "$1"
}

# archive TARGET: the name of the archive for it.
archive() {
    local kind
    kind=$(fact "$1" archive) || return 1
    printf '%s.%s\n' "$(stem "$1")" "$kind"
}

# url TARGET: where the archive for it will be.
url() {
    local name
    name=$(archive "$1") || return 1
    printf '%s/releases/download/v%s/%s\n' "$repository" "$version" "$name"
}

# sum DIR TARGET: the SHA-256 of the archive for it, from the file that is beside it in DIR.
sum() {
    local name sum
    name=$(archive "$2") || return 1
    read -r sum _ < "$1/$name.sha256" || return 1
    [[ $sum =~ ^[0-9a-f]{64}$ ]] || { echo "$1/$name.sha256 has no SHA-256" >&2; return 1; }
    printf '%s\n' "$sum"
}

# run_python ARGUMENTS..: Windows calls it python, and has a python3 that only opens a shop.
run_python() {
    local name
    for name in python3 python; do
        if "$name" -c '' 2>/dev/null; then
            "$name" "$@"
            return
        fi
    done
    echo 'python3 is missing' >&2
    return 1
}
