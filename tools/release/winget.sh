#!/usr/bin/env bash
# Writes the three manifests of a release for winget. They belong into a folder of
# github.com/microsoft/winget-pkgs: manifests/m/moeflux/moeflux/VERSION.
#
#     tools/release/winget.sh DIR OUTDIR
#
# DIR has the archives' .sha256 files, as tools/release/archive.sh writes them.
set -euo pipefail
# What fails in a function below fails here, too.
shopt -s inherit_errexit
[ $# -eq 2 ] || { echo 'usage: winget.sh DIR OUTDIR' >&2; exit 2; }
sums=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/../.."
. tools/release/facts.sh

# An identifier is the publisher and the package: owner and repository.
owner=${repository%/*}
owner=${owner##*/}
package=$owner.${repository##*/}

# manifest NAME TYPE: writes one of the files, with what stands in all of them around its input.
manifest() {
    {
        cat <<YAML
# yaml-language-server: \$schema=https://aka.ms/winget-manifest.$2.1.12.0.schema.json
PackageIdentifier: $package
PackageVersion: $version
YAML
        cat
        printf 'ManifestType: %s\nManifestVersion: 1.12.0\n' "$2"
    } > "$out/$package$1.yaml"
}

# installer TARGET: an item of the list of installers. What winget runs is a file in the archive.
installer() {
    local machine url sum stem program
    machine=$(fact "$1" winget)
    url=$(url "$1")
    sum=$(sum "$sums" "$1" | tr a-f A-F)
    stem=$(stem "$1")
    program=$(fact "$1" program)
    # A sum of digits alone would be a number without quotes.
    cat <<YAML
- Architecture: $machine
  InstallerUrl: $url
  InstallerSha256: '$sum'
  NestedInstallerFiles:
  - RelativeFilePath: $stem\\$program
    PortableCommandAlias: ${program%.exe}
YAML
}

tags=$(value_list keywords | sed 's/^/- /')
installers=$(for target in $(targets winget '*'); do installer "$target"; done)
manifest '' version <<YAML
DefaultLocale: en-US
YAML
manifest .installer installer <<YAML
InstallerType: zip
NestedInstallerType: portable
Installers:
$installers
YAML
manifest .locale.en-US defaultLocale <<YAML
PackageLocale: en-US
Publisher: $owner
PublisherUrl: ${repository%/*}
PublisherSupportUrl: $repository/issues
PackageName: ${repository##*/}
PackageUrl: $repository
License: $license
ShortDescription: $description
Moniker: ${repository##*/}
Tags:
$tags
ReleaseNotesUrl: $repository/releases/tag/v$version
YAML
