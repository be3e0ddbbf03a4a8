//! Files: opened without waiting, recognised when they change, read at positions, and read past the
//! page cache.

pub(crate) mod identity;
pub(crate) mod read_file;
#[cfg(windows)]
mod overlapped;
pub(crate) mod direct;
