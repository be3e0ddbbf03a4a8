#!/usr/bin/env bash
# Unpacks a release's archive and is its first user: compares the checksum, asks the demo model, and
# lets the server answer.
#
#     tools/release/trial.sh ARCHIVE
#
# RUNNER names a program that runs the binary, where this machine cannot.
set -euo pipefail
[ $# -eq 1 ] || { echo 'usage: trial.sh ARCHIVE' >&2; exit 2; }
archive=$(realpath "$1")
work=$(mktemp -d)
server=
end() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
read -ra runner <<< "${RUNNER:-}"

cd "$(dirname "$archive")"
if command -v sha256sum >/dev/null; then
    sha256sum --check --quiet "$archive.sha256"
else
    shasum -a 256 --check --quiet "$archive.sha256"
fi
cd "$work"
case $archive in
    *.zip) 7z x -bd -bso0 "$archive" ;;
    *) tar -xzf "$archive" ;;
esac
cd moeflux-*
moeflux=("${runner[@]}" ./moeflux)

began=$SECONDS
said=$("${moeflux[@]}" generate --chat 'What does Vec::push do?' 2>"$work/err")
[ "$said" = 'Appends an element to the back of a collection.' ] \
    || { echo "trial.sh: it said: $said"; cat "$work/err"; exit 1; }
echo "ok      generate, $((SECONDS - began)) s"

"${moeflux[@]}" serve --port 0 2>"$work/log" &
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
