//! The file system of a path and the drive below it.
//!
//! **Invariant:** values that the system does not report are missing, and nothing fails.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux_io::{Mount, mounts};

/// File systems whose data comes over a network, or through a program that may use one.
const NETWORK_KINDS: [&str; 13] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "glusterfs",
    "lustre",
    "afs",
    "beegfs",
    "gpfs",
    "virtiofs",
];

/// File systems in memory.
const MEMORY_KINDS: [&str; 2] = ["tmpfs", "ramfs"];

/// A block device below a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockDevice {
    /// `nvme0n1`.
    pub(crate) name: String,
    pub(crate) model: Option<String>,
    pub(crate) logical_block_bytes: Option<u64>,
    pub(crate) physical_block_bytes: Option<u64>,
    pub(crate) read_ahead_bytes: Option<u64>,
    pub(crate) is_rotational: Option<bool>,
}

/// The location of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    /// `None` if there is no mount table.
    pub(crate) mount: Option<Mount>,
    pub(crate) device: Option<BlockDevice>,
}

impl Volume {
    /// Examines an existing path.
    pub(crate) fn of(path: &Path) -> Self {
        let mount = mount_of(path);
        let read = |path: &Path| fs::read_to_string(path).ok();
        let device = mount.as_ref().and_then(device_folder).map(|it| block_device(&it, &read));
        Self { mount, device }
    }

    /// Returns whether its data comes over a network.
    pub(crate) fn is_network(&self) -> bool {
        self.has_kind(&NETWORK_KINDS) || self.has_kind_prefix("fuse.")
    }

    /// Returns whether its data is in memory anyway.
    pub(crate) fn is_memory(&self) -> bool {
        self.has_kind(&MEMORY_KINDS)
    }

    fn has_kind(&self, kinds: &[&str]) -> bool {
        self.mount.as_ref().is_some_and(|mount| kinds.iter().any(|kind| *kind == mount.kind))
    }

    fn has_kind_prefix(&self, prefix: &str) -> bool {
        self.mount.as_ref().is_some_and(|mount| mount.kind.starts_with(prefix))
    }
}

/// Returns a key for the file system of a path that does not change between boots.
pub(crate) fn key(path: &Path) -> String {
    match mount_of(path) {
        Some(mount) => format!("{} {}", mount.source, mount.kind),
        None => fallback_key(path),
    }
}

fn mount_of(path: &Path) -> Option<Mount> {
    let path = dunce::canonicalize(path).ok()?;
    moeflux_io::mount_of(&mounts(), &path).cloned()
}

#[cfg(unix)]
fn fallback_key(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let device = fs::metadata(path).map(|it| it.dev());
    device.map_or("unknown".to_owned(), |device| format!("device {device}"))
}

#[cfg(not(unix))]
fn fallback_key(path: &Path) -> String {
    let path = fs::canonicalize(path).unwrap_or_default();
    let first = path.components().next();
    first.map_or("unknown".to_owned(), |it| it.as_os_str().to_string_lossy().into_owned())
}

/// Returns the device's folder in sysfs: by its number, or by its name if the file system has its
/// own number, as btrfs does.
fn device_folder(mount: &Mount) -> Option<PathBuf> {
    let by_number = fs::canonicalize(Path::new("/sys/dev/block").join(&mount.device)).ok();
    let by_name = || {
        let device = fs::canonicalize(&mount.source).ok()?;
        fs::canonicalize(Path::new("/sys/class/block").join(device.file_name()?)).ok()
    };
    let folder = by_number.or_else(by_name)?;
    // A partition has no queue; its disk does.
    let disk = folder.join("partition").exists().then(|| folder.parent().map(Path::to_owned));
    Some(disk.flatten().unwrap_or(folder))
}

fn block_device(folder: &Path, read: &dyn Fn(&Path) -> Option<String>) -> BlockDevice {
    let text = |name: &str| {
        let text = read(&folder.join(name))?.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let number = |name: &str| text(name)?.parse::<u64>().ok();
    BlockDevice {
        name: folder.file_name().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default(),
        model: text("device/model"),
        logical_block_bytes: number("queue/logical_block_size"),
        physical_block_bytes: number("queue/physical_block_size"),
        read_ahead_bytes: number("queue/read_ahead_kb").and_then(|it| it.checked_mul(1024)),
        is_rotational: number("queue/rotational").map(|it| it != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Paths of Linux's own files, with its separator.
    #[cfg(unix)]
    #[test]
    fn device_properties_are_reported_unchanged() {
        let read = |path: &Path| {
            let text = match path.to_str()? {
                "/sys/x/vda/queue/logical_block_size" => "512\n",
                "/sys/x/vda/queue/physical_block_size" => "many\n",
                "/sys/x/vda/queue/read_ahead_kb" => "99999999999999999\n",
                "/sys/x/vda/queue/rotational" => "1\n",
                "/sys/x/vda/device/model" => " \n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let expected = BlockDevice {
            name: "vda".to_owned(),
            logical_block_bytes: Some(512),
            is_rotational: Some(true),
            ..BlockDevice::default()
        };
        assert_eq!(block_device(Path::new("/sys/x/vda"), &read), expected);
    }

    #[test]
    fn a_file_system_has_one_name() {
        let here = std::env::temp_dir();
        assert!(!key(&here).is_empty());
        assert_eq!(key(&here), key(&here.join(".")));
        key(Path::new("/nonexistent"));
    }
}
