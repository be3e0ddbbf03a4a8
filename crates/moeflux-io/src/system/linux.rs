//! Linux: reads the files of `/proc` and of control groups.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};

use super::room::{available_of_meminfo, kibibytes};
use super::{MemoryPressure, ProcessMemory};
use crate::system::control_group::tightest_control_group;

/// Buffer size for the files that are read repeatedly; they are shorter.
const TEXT_BYTES: usize = 4096;

pub(super) fn total_memory_bytes() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

pub(super) fn available_memory_bytes() -> Option<u64> {
    let host =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_of_meminfo(&text));
    let group = tightest_control_group().map(|group| group.room_bytes());
    [host, group].into_iter().flatten().min()
}

pub(super) fn process_memory_bytes() -> Option<ProcessMemory> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let now_bytes = kibibytes(&status, "VmRSS:")?;
    // The two are counted separately, and with a delay.
    let peak_bytes = kibibytes(&status, "VmHWM:")?.max(now_bytes);
    Some(ProcessMemory { now_bytes, peak_bytes })
}

/// Returns the first core's name. Linux on Arm has no such line.
pub(super) fn processor_name() -> Option<String> {
    name_in(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn name_in(cpuinfo: &str) -> Option<String> {
    let mut named = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let (_, name) =
        named.find(|(key, name)| key.trim() == "model name" && !name.trim().is_empty())?;
    Some(name.to_owned())
}

/// Open files that report memory pressure.
#[derive(Debug)]
pub(super) struct PressureWatch {
    meminfo: Option<File>,
    pressure: Option<File>,
    text: Box<[u8; TEXT_BYTES]>,
}

impl PressureWatch {
    pub(super) fn open() -> Self {
        let group = tightest_control_group();
        Self {
            meminfo: File::open("/proc/meminfo").ok(),
            pressure: group.and_then(|it| File::open(it.folder.join("memory.pressure")).ok()),
            text: Box::new([0; TEXT_BYTES]),
        }
    }

    pub(super) fn sample(&mut self) -> MemoryPressure {
        let Self { meminfo, pressure, text } = self;
        let available_bytes = again(meminfo.as_mut(), text).and_then(available_of_meminfo);
        let stalled_e4 = again(pressure.as_mut(), text).and_then(stalled);
        MemoryPressure { available_bytes, stalled_e4 }
    }
}

/// Reads a file from its beginning.
fn again<'t>(file: Option<&mut File>, text: &'t mut [u8; TEXT_BYTES]) -> Option<&'t str> {
    let file = file?;
    file.seek(SeekFrom::Start(0)).ok()?;
    let n_bytes = file.read(&mut text[..]).ok()?;
    std::str::from_utf8(&text[..n_bytes]).ok()
}

/// Parses `some avg10=1.50 avg60=...` as 150.
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

    #[test]
    fn the_processor_is_named_by_its_first_core() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU @ 3 GHz\nx: y\n";
        assert_eq!(name_in(cpuinfo).as_deref().map(str::trim), Some("Some CPU @ 3 GHz"));
        for text in ["", "model name", "model name\t:\n", "processor\t: 0\n"] {
            assert_eq!(name_in(text), None);
        }
    }
}
