//! The clocks: the only place where the program reads the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the monotonic time, for durations.
#[expect(clippy::disallowed_methods, reason = "the library takes no time; the command does, here")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// Returns the current time, for dates in chat templates.
pub(crate) fn seconds_since_1970() -> i64 {
    i64::try_from(since_1970().as_secs()).unwrap_or(i64::MAX)
}

/// Returns the fraction of the current second, for seeds.
pub(crate) fn nanoseconds_of_the_second() -> u32 {
    since_1970().subsec_nanos()
}

/// Returns the time shared by all processes of a host. A clock before 1970 counts as 1970.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
