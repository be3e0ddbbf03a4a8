//! Tests that need a GPU: on a machine without one, they are skipped with a message.

use std::io::{Write as _, stderr};
use std::sync::OnceLock;

use moeflux_gpu::adapter::adapters;

const NONE: &str = "no adapter for Vulkan, Metal or DX12 was found. On Linux, \
    `apt-get install mesa-vulkan-drivers libvulkan1` installs a software driver.";

/// Skips the rest of a test on a machine without a GPU.
#[macro_export]
macro_rules! needs_gpu {
    () => {
        if !$crate::gpu::has_gpu(env!("CARGO_PKG_NAME")) {
            return;
        }
    };
}

/// Returns whether there is an adapter, possibly a software driver. If there is none, the first
/// call prints that tests of `crate_name` are skipped, or panics if `MOEFLUX_REQUIRE_GPU` is 1, as
/// in `./test.sh`.
pub fn has_gpu(crate_name: &str) -> bool {
    static HAS_GPU: OnceLock<bool> = OnceLock::new();
    *HAS_GPU.get_or_init(|| {
        let is_there = !adapters().is_empty();
        assert!(is_there || !is_required(), "MOEFLUX_REQUIRE_GPU is set, and {NONE}");
        if !is_there {
            // `eprintln!` would not do: the harness shows its text for failed tests only.
            let line = format!("\n{crate_name}: SKIPPED every test that needs a GPU: {NONE}\n");
            stderr().write_all(line.as_bytes()).unwrap();
        }
        is_there
    })
}

#[expect(clippy::disallowed_methods, reason = "a test's own variable: see TESTING.md")]
fn is_required() -> bool {
    std::env::var_os("MOEFLUX_REQUIRE_GPU").is_some_and(|it| it == "1")
}
