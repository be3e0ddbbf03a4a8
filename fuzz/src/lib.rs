//! libFuzzer programs for the targets of `targets/`.

pub use libfuzzer_sys::fuzz_target;
pub use moeflux_fuzz_targets::{Check, check_of};

/// Defines the program for a target; its file begins with `#![no_main]`.
#[macro_export]
macro_rules! program {
    ($name:literal) => {
        static CHECK: std::sync::LazyLock<std::sync::Mutex<$crate::Check>> =
            std::sync::LazyLock::new(|| std::sync::Mutex::new($crate::check_of($name)));

        $crate::fuzz_target!(|input: &[u8]| {
            // A panic ends the process, so the lock is never seen poisoned.
            (CHECK.lock().expect("one thread"))(input)
        });
    };
}
