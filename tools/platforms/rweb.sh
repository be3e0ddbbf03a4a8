# Sourced by maccheck.sh and armrun.sh: a rustc that has its library's source, unpacked (not
# installed) under $work. rustup's toolchain may have neither other targets nor that source and no
# way to fetch them; Debian's rustc-web packages (Rust 1.96) have it.
root="$work/rweb/root"
if [ ! -e "$work/rweb/done" ]; then
  mkdir -p "$work/rweb/debs" "$root"
  # Lists of packages that are not of today name an older compiler than the one that is needed.
  [ "$(id -u)" != 0 ] || apt-get update -qq >&2
  ( cd "$work/rweb/debs"
    std=$(apt-cache depends libstd-rust-web-dev | grep -o 'libstd-rust-web-[0-9.]*$' | tail -1)
    llvm=$(apt-cache depends "$std" | grep -o 'libllvm[0-9]*$' | tail -1)
    apt-get download rustc-web rust-web-src libstd-rust-web-dev "$std" "$llvm" >&2
    for d in *.deb; do dpkg-deb -x "$d" "$root"; done
    rm -f *.deb )
  touch "$work/rweb/done"
fi
llvm=$(find "$root" -name 'libLLVM.so.*' | head -1)
export LD_LIBRARY_PATH="$(dirname "$llvm"):$root/usr/lib/x86_64-linux-gnu"
export RUSTC="$root/usr/bin/rustc" RUSTC_BOOTSTRAP=1
unset RUSTUP_TOOLCHAIN RUSTC_WRAPPER || true
# The real cargo, not rustup's shim: the shim would put its own rustc back.
cargo=$(rustup which cargo 2>/dev/null || command -v cargo)
