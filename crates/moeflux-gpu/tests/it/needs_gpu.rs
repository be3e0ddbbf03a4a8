//! Tests that need a GPU, on a machine that has none: they are skipped, and say so.

use std::io::{Write as _, stderr};
use std::sync::OnceLock;

use moeflux_gpu::adapter::adapters;

const NONE: &str = "no adapter for Vulkan, Metal or DX12 was found. On Linux, \
    `apt-get install mesa-vulkan-drivers libvulkan1` installs one in software.";

/// Ends a test where there is no GPU.
macro_rules! needs_gpu {
    () => {
        if !$crate::needs_gpu::has_gpu() {
            return;
        }
    };
}
pub(crate) use needs_gpu;

/// Whether there is an adapter, a software driver being one. The first to ask where there is none
/// tells the user, or fails if `MOEFLUX_REQUIRE_GPU` is set, as `./test.sh` does.
pub(crate) fn has_gpu() -> bool {
    static HAS_GPU: OnceLock<bool> = OnceLock::new();
    *HAS_GPU.get_or_init(|| {
        let is_there = !adapters().is_empty();
        assert!(is_there || !is_required(), "MOEFLUX_REQUIRE_GPU is set, and {NONE}");
        if !is_there {
            // Not by `eprintln!`: the harness shows what that prints for tests that fail only.
            let program = env!("CARGO_PKG_NAME");
            writeln!(stderr(), "\n{program}: SKIPPED every test that needs a GPU: {NONE}").unwrap();
        }
        is_there
    })
}

#[expect(clippy::disallowed_methods, reason = "a test's own variable: see TESTING.md")]
fn is_required() -> bool {
    std::env::var_os("MOEFLUX_REQUIRE_GPU").is_some_and(|it| it == "1")
}
