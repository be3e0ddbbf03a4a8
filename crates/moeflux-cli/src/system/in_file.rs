//! Small files that commands read completely.

pub(crate) use moeflux::provider::format::read_file;
