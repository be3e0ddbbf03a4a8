#!/usr/bin/env bash
# Prints the Homebrew formula of a release.
#
#     tools/release/formula.sh DIR > moeflux.rb
#
# DIR has the archives' .sha256 files, as tools/release/archive.sh writes them.
set -euo pipefail
# What fails in a function below fails here, too.
shopt -s inherit_errexit
[ $# -eq 1 ] || { echo 'usage: formula.sh DIR' >&2; exit 2; }
sums=$(realpath "$1")
cd "$(dirname "$0")/../.."
. tools/release/facts.sh

# part SYSTEM MACHINE: where the archive for it is, and its checksum.
part() {
    local target url sum
    target=$(targets brew "$1.$2")
    url=$(url "$target")
    sum=$(sum "$sums" "$target")
    cat <<RUBY
    on_$2 do
      url "$url"
      sha256 "$sum"
    end
RUBY
}

program=$(fact "$(targets brew macos.arm)" program)
macos=$(part macos arm; part macos intel)
linux=$(part linux arm; part linux intel)
cat <<RUBY
class Moeflux < Formula
  desc "$description"
  homepage "$repository"
  version "$version"
  license any_of: ["${license// OR /\", \"}"]

  on_macos do
$macos
  end

  on_linux do
$linux
  end

  def install
    bin.install "$program"
    generate_completions_from_executable(bin/"$program", "completions")
  end

  service do
    run [opt_bin/"$program", "serve"]
    keep_alive true
    log_path var/"log/moeflux.log"
    error_log_path var/"log/moeflux.log"
  end

  test do
    answer = shell_output("#{bin}/$program generate --chat 'What does Vec::push do?'")
    assert_match "Appends an element", answer
  end
end
RUBY
