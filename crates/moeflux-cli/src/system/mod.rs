//! The machine and the system: time, files, signals, and what was measured of the machine before.
//!
//! This module knows no models and no options.

pub(crate) mod clock;
pub(crate) mod cache;
pub(crate) mod browser;
pub(crate) mod network;
pub(crate) mod signals;
pub(crate) mod disk;
pub(crate) mod in_file;
pub(crate) mod out_file;
pub(crate) mod interrupt;
pub(crate) mod machine;
pub(crate) mod volume;
pub(crate) mod compute_profile;
pub(crate) mod measurements;
