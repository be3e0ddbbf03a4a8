//! A look at how short memory is, cheap enough to be taken while tokens are computed.
//!
//! **Invariant:** looking opens no file and allocates nothing; what a system does not say is
//! `None`.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use crate::control_group::tightest_control_group;
use crate::memory::meminfo_available;

/// Both texts are shorter.
const TEXT_BYTES: usize = 4096;

/// How short memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryLook {
    /// What can be had on this machine without swapping.
    pub available_bytes: Option<u64>,
    /// Share of the last ten seconds, in hundredths of a percent, in which some task of this
    /// process's control group waited for memory. That of the whole machine says nothing: another
    /// group that lives at its limit would fill it.
    pub stalled_e4: Option<u32>,
}

/// Where it is said.
#[derive(Debug)]
pub struct MemoryWatch {
    meminfo: Option<File>,
    pressure: Option<File>,
    text: Box<[u8; TEXT_BYTES]>,
}

impl MemoryWatch {
    /// Opens what there is.
    #[must_use]
    pub fn open() -> Self {
        let group = tightest_control_group();
        Self {
            meminfo: File::open("/proc/meminfo").ok(),
            pressure: group.and_then(|it| File::open(it.folder.join("memory.pressure")).ok()),
            text: Box::new([0; TEXT_BYTES]),
        }
    }

    /// How short memory is now.
    pub fn look(&mut self) -> MemoryLook {
        let Self { meminfo, pressure, text } = self;
        let available_bytes = again(meminfo.as_mut(), text).and_then(meminfo_available);
        let stalled_e4 = again(pressure.as_mut(), text).and_then(stalled);
        MemoryLook { available_bytes, stalled_e4 }
    }
}

/// The text of a file, from its beginning.
fn again<'t>(file: Option<&mut File>, text: &'t mut [u8; TEXT_BYTES]) -> Option<&'t str> {
    let file = file?;
    file.seek(SeekFrom::Start(0)).ok()?;
    let n_bytes = file.read(&mut text[..]).ok()?;
    std::str::from_utf8(&text[..n_bytes]).ok()
}

/// `some avg10=1.50 avg60=...` is 150.
fn stalled(pressure: &str) -> Option<u32> {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some avg10="))?;
    let (whole, rest) = line.split_once('.')?;
    let hundredths = rest.get(..2)?.parse::<u32>().ok()?;
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(hundredths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_in_hundredths_of_a_percent() {
        let text = "some avg10=1.53 avg60=0.00 avg300=0.00 total=7\nfull avg10=9.00 avg60=0\n";
        assert_eq!(stalled(text), Some(153));
        assert_eq!(stalled("some avg10=100.00 avg60=3"), Some(10_000));
        for text in ["", "full avg10=1.00", "some avg10=", "some avg10=x.00", "some avg10=1.5"] {
            assert_eq!(stalled(text), None, "{text:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_second_look_sees_as_much_as_the_first() {
        let mut watch = MemoryWatch::open();
        let looks = [watch.look(), watch.look()];
        assert!(looks.iter().all(|look| look.available_bytes.is_some_and(|it| it > 1 << 20)));
        assert_eq!(looks[0].stalled_e4.is_some(), looks[1].stalled_e4.is_some());
    }
}
