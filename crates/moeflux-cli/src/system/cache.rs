//! The user's cache folder, for files that can be recreated.

use std::path::PathBuf;

/// Returns the program's folder in the user's cache, or in the system's temporary folder if the
/// user has none.
pub(crate) fn folder() -> PathBuf {
    own_folder().unwrap_or_else(|| std::env::temp_dir().join("moeflux"))
}

/// Returns the program's folder in the user's cache, for what other users must not see.
pub(crate) fn own_folder() -> Option<PathBuf> {
    let base = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        variable("HOME").map(|home| home.join("Library/Caches"))
    } else {
        variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))
    };
    base.map(|base| base.join("moeflux"))
}

/// Returns an environment variable, unless it is empty.
#[expect(clippy::disallowed_methods, reason = "the command reads the environment, the library not")]
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
