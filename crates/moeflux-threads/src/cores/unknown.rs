//! Systems without a query for the kinds of cores.

use std::num::NonZeroUsize;

pub(super) fn n_performance_cores() -> Option<NonZeroUsize> {
    None
}
