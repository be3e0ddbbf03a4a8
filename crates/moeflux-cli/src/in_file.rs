//! Small files that commands read whole.

pub(crate) use moeflux::provider::format::read_file;
