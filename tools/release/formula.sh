#!/usr/bin/env bash
# Prints the Homebrew formula of a release.
#
#     tools/release/formula.sh DIR > moeflux.rb
#
# DIR has the archives' .sha256 files, as tools/release/archive.sh writes them.
set -euo pipefail
[ $# -eq 1 ] || { echo 'usage: formula.sh DIR' >&2; exit 2; }
sums=$(realpath "$1")
cd "$(dirname "$0")/../.."

value() {
    sed -n "/^\[workspace.package\]/,/^\[/s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml
}
version=$(value version)
repository=$(value repository)

# part TARGET: where the archive for it is, and its checksum.
part() {
    local archive=moeflux-$version-$1.tar.gz sum
    sum=$(cut -d ' ' -f 1 "$sums/$archive.sha256")
    printf '      url "%s/releases/download/v%s/%s"\n' "$repository" "$version" "$archive"
    printf '      sha256 "%s"\n' "$sum"
}

cat <<RUBY
class Moeflux < Formula
  desc "Run Mixture-of-Experts language models larger than memory"
  homepage "$repository"
  version "$version"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
$(part aarch64-apple-darwin)
    end
    on_intel do
$(part x86_64-apple-darwin)
    end
  end

  on_linux do
    on_arm do
$(part aarch64-unknown-linux-gnu)
    end
    on_intel do
$(part x86_64-unknown-linux-gnu)
    end
  end

  def install
    bin.install "moeflux"
    generate_completions_from_executable(bin/"moeflux", "completions")
  end

  service do
    run [opt_bin/"moeflux", "serve"]
    keep_alive true
    log_path var/"log/moeflux.log"
    error_log_path var/"log/moeflux.log"
  end

  test do
    answer = shell_output("#{bin}/moeflux generate --chat 'What does Vec::push do?'")
    assert_match "Appends an element", answer
  end
end
RUBY
