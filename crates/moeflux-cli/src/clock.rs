//! The clocks: the one place where the program asks what time it is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// For durations.
#[expect(clippy::disallowed_methods, reason = "the library takes no time; the command does, here")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// For dates in chat templates.
pub(crate) fn seconds_since_1970() -> i64 {
    i64::try_from(since_1970().as_secs()).unwrap_or(i64::MAX)
}

/// For seeds.
pub(crate) fn nanoseconds_of_the_second() -> u32 {
    since_1970().subsec_nanos()
}

/// The time that all processes of a host have alike. A clock before 1970 counts as 1970.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
