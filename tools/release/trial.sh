#!/usr/bin/env bash
# Unpacks a release's archive and is its first user: compares the checksum, asks the demo model, and
# lets the server answer.
#
#     tools/release/trial.sh ARCHIVE
#
# RUNNER names a program that runs the binary, where this machine cannot. Needs curl, and for Windows
# unzip and python3.
set -euo pipefail
[ $# -eq 1 ] || { echo 'usage: trial.sh ARCHIVE' >&2; exit 2; }
archive=$(realpath "$1")
cd "$(dirname "$0")/../.."
. tools/release/facts.sh
tools=$PWD/tools/release
work=$(mktemp -d)
server=
end() {
    [ -z "$server" ] || { kill "$server"; wait "$server"; } 2>/dev/null || true
    # Windows keeps the folder that a program works in.
    cd /
    rm -rf "$work"
}
trap end EXIT
read -ra runner <<< "${RUNNER:-}"

for target in $(targets); do
    [ "$(archive "$target")" != "$(basename "$archive")" ] || break
done
[ "$(archive "$target")" = "$(basename "$archive")" ] \
    || { echo "trial.sh: $(basename "$archive") is not in a release of $version"; exit 1; }
program=$(fact "$target" program)

cd "$(dirname "$archive")"
if command -v sha256sum >/dev/null; then
    sha256sum --check --quiet "$archive.sha256"
else
    shasum -a 256 --check --quiet "$archive.sha256"
fi
cd "$work"
case $archive in
    *.zip) unzip -q "$archive" ;;
    *) tar -xzf "$archive" ;;
esac
cd "$(stem "$target")"
# Before bash 4.4 an empty array counts as unset.
moeflux=(${runner[@]+"${runner[@]}"} "./$program")

case $target in
    *-windows-*)
        # A new Windows lacks the compilers' libraries.
        needed=$(run_python "$tools/imports.py" "$program" | tr -d '\r' | sort -fu)
        foreign=$(grep -iE '^(vcruntime|msvcp|libgcc|libstdc|libwinpthread)' <<< "$needed" || true)
        [ -z "$foreign" ] || { echo "trial.sh: Windows lacks ${foreign//$'\n'/, }"; exit 1; }
        echo "ok      needs no library of a compiler, $(wc -l <<< "$needed") DLLs of Windows"
        ;;
esac

began=$SECONDS
said=$("${moeflux[@]}" generate --chat 'What does Vec::push do?' 2>"$work/err" | tr -d '\r')
[ "$said" = 'Appends an element to the back of a collection.' ] \
    || { echo "trial.sh: it said: $said"; cat "$work/err"; exit 1; }
echo "ok      generate, $((SECONDS - began)) s"

"${moeflux[@]}" serve --port 0 --cache-dir none 2>"$work/log" &
server=$!
for _ in $(seq 100); do
    url=$(sed -n 's/^serving .* at \(http:[^ ]*\).*/\1/p' "$work/log")
    [ -z "$url" ] || break
    sleep 0.1
done
[ -n "$url" ] || { cat "$work/log"; exit 1; }
said=$(curl --silent --fail "$url/v1/chat/completions" -H 'content-type: application/json' \
    -d '{"messages": [{"role": "user", "content": "What does Vec::push do?"}]}')
case $said in
    *'Appends an element to the back of a collection.'*) echo 'ok      serve' ;;
    *) echo "trial.sh: the server said: $said"; exit 1 ;;
esac
