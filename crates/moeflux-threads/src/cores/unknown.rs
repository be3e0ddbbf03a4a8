//! A system that is not asked.

use std::num::NonZeroUsize;

pub(super) fn n_performance_cores() -> Option<NonZeroUsize> {
    None
}
