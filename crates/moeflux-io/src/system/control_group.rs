//! Memory limits of Linux's control groups: a container may have less than its host.
//!
//! **Invariant:** among a group and all of its ancestors, the one with the least room counts.
//! Missing information means no limit; nothing fails.

use std::fs;
use std::path::{Path, PathBuf};

use crate::system::mounts::{self, Mount};

/// Without a limit, version 1 reports a number near 2^63.
const LIMIT_BYTES_MAX: u64 = 1 << 60;

/// A control group with a memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// Version of the control group interface: 1 or 2.
    pub version: u8,
    /// Its folder.
    pub folder: PathBuf,
    /// Memory limit of all its processes together.
    pub limit_bytes: u64,
    /// Memory in use, without inactive page cache, which can be reclaimed.
    pub used_bytes: u64,
}

impl ControlGroup {
    /// Returns the memory that is left.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// Returns the group that leaves this process the least memory.
#[must_use]
pub fn tightest_control_group() -> Option<ControlGroup> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    find(&own, &mounts::mounts(), &|path| fs::read_to_string(path).ok())
}

fn find(
    own: &str,
    mounts: &[Mount],
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<ControlGroup> {
    let lines = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        match controllers {
            "" => Some((2, group)),
            _ if controllers.split(',').any(|it| it == "memory") => Some((1, group)),
            _ => None,
        }
    });
    let folders = lines.filter_map(|(version, group)| {
        let is_it = |mount: &&Mount| match version {
            2 => mount.kind == "cgroup2",
            _ => mount.kind == "cgroup" && mount.options.split(',').any(|it| it == "memory"),
        };
        let mount = mounts.iter().find(is_it)?;
        // In a container, only a part of the tree may be mounted, or the path may be from another
        // namespace.
        let inside = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
        Some((version, mount.point.clone(), mount.point.join(inside)))
    });
    let groups = folders.flat_map(|(version, top, folder)| {
        let above = folder.ancestors().take_while(|it| it.starts_with(&top));
        above.filter_map(|it| group(version, it, read)).collect::<Vec<_>>()
    });
    groups.min_by_key(ControlGroup::room_bytes)
}

fn group(
    version: u8,
    folder: &Path,
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<ControlGroup> {
    let [limit, used, cached] = match version {
        2 => ["memory.max", "memory.current", "inactive_file"],
        _ => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
    };
    let number = |name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok();
    let limit_bytes = number(limit).filter(|bytes| *bytes < LIMIT_BYTES_MAX)?;
    let stat = read(&folder.join("memory.stat")).unwrap_or_default();
    let mut values = stat.lines().filter_map(|line| line.split_once(' '));
    let cached = values.find(|(name, _)| *name == cached);
    let cached_bytes = cached.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0);
    let used_bytes = number(used)?.saturating_sub(cached_bytes);
    Some(ControlGroup { version, folder: folder.to_owned(), limit_bytes, used_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, root: &str, point: &str, options: &str) -> Mount {
        Mount {
            device: "0:1".into(),
            root: root.into(),
            point: point.into(),
            kind: kind.into(),
            source: kind.into(),
            options: options.into(),
        }
    }

    #[track_caller]
    fn check(
        own: &str,
        mounts: &[Mount],
        files: &[(&str, &str)],
        expected: Option<(u8, &str, u64, u64)>,
    ) {
        let read = |path: &Path| {
            let known = files.iter().find(|(name, _)| Path::new(name) == path);
            known.map(|(_, text)| (*text).to_owned())
        };
        let expected = expected.map(|(version, folder, limit_bytes, used_bytes)| ControlGroup {
            version,
            folder: folder.into(),
            limit_bytes,
            used_bytes,
        });
        assert_eq!(find(own, mounts, &read), expected);
    }

    #[test]
    fn version_2_from_the_own_group_upwards() {
        let mounts = [mount("cgroup2", "/", "/c", "rw")];
        let files = [
            ("/c/a/b/memory.max", "max\n"),
            ("/c/a/b/memory.current", "500\n"),
            ("/c/a/memory.max", "4000\n"),
            ("/c/a/memory.current", "1000\n"),
            ("/c/a/memory.stat", "anon 7\ninactive_file 300\n"),
        ];
        check("0::/a/b\n", &mounts, &files, Some((2, "/c/a", 4000, 700)));
        check("0::/\n", &mounts, &files, None);
    }

    #[test]
    fn version_1_beside_an_empty_version_2() {
        let mounts = [
            mount("cgroup", "/", "/c/cpu", "rw,cpu"),
            mount("cgroup", "/docker/x", "/c/memory", "rw,memory"),
            mount("cgroup2", "/", "/c/unified", "rw"),
        ];
        let files = [
            ("/c/memory/job/memory.limit_in_bytes", "2048\n"),
            ("/c/memory/job/memory.usage_in_bytes", "48\n"),
            ("/c/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/c/memory/memory.usage_in_bytes", "48\n"),
        ];
        let own = "4:memory:/docker/x/job\n3:cpu:/\n0::/\n";
        check(own, &mounts, &files, Some((1, "/c/memory/job", 2048, 48)));
        // The path is from another namespace: the mounted group is taken as this process's own.
        let files = [
            ("/c/memory/memory.limit_in_bytes", "2048"),
            ("/c/memory/memory.usage_in_bytes", "5000"),
        ];
        let own = "4:cpu,memory:/elsewhere\n";
        check(own, &mounts, &files, Some((1, "/c/memory", 2048, 5000)));
    }

    #[test]
    fn invalid_contents_are_not_a_limit() {
        let mounts = [mount("cgroup2", "/", "/c", "rw")];
        for own in ["", "0", "0:", "::", "x:y:z", "0::/a"] {
            for limit in ["", "many", "-1", "99999999999999999999"] {
                let files = [("/c/a/memory.max", limit), ("/c/a/memory.current", "1")];
                check(own, &mounts, &files, None);
            }
        }
    }
}
