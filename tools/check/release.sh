#!/usr/bin/env bash
# Builds the release for Linux on x86-64, and tries it where nothing is installed: a Debian made by
# debootstrap, with curl as the only addition.
#
#     tools/check/release.sh
#
# Needs root, debootstrap and python3; fetches packages. Takes the time of a release build and a
# minute. The other archives are built by .github/workflows/release.yml.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/release/linux.sh x86_64 "$work/dist"
archive=$(ls "$work"/dist/*.tar.gz)
tar -xzf "$archive" -C "$work"
binary=$(ls "$work"/moeflux-*/moeflux)

# What the loader of an old system could not resolve.
newest=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
[ "$(printf '%s\nGLIBC_2.28\n' "$newest" | sort -V | tail -1)" = GLIBC_2.28 ] \
    || { echo "release.sh: the binary needs $newest"; exit 1; }
echo "ok      needs $newest; $(stat -c %s "$binary") bytes, the archive $(stat -c %s "$archive")"

# shellcheck disable=SC1091
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
debootstrap --variant=minbase --include=curl "$codename" "$work/root" > "$work/debootstrap.log" 2>&1 \
    || { tail "$work/debootstrap.log"; exit 1; }
# trial.sh, with the files that it takes the archive's facts from.
mkdir "$work/root/tree"
cp -r --parents Cargo.toml crates/moeflux-cli/Cargo.toml tools/release "$work/root/tree"
cp -r "$work/dist" "$work/root/dist"
chroot "$work/root" bash /tree/tools/release/trial.sh "/dist/$(basename "$archive")"

# The unit, with the program that it names.
install -m 755 "$binary" "$work/moeflux"
sed "s|/usr/local/bin/moeflux|$work/moeflux|" "$work"/moeflux-*/moeflux.service > "$work/moeflux.service"
systemd-analyze verify "$work/moeflux.service"
echo 'ok      unit'
