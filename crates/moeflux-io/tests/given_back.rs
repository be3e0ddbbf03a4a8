//! Freed memory really leaves the process, also if it was registered with io_uring. This is a
//! binary of its own because it measures the process.
#![cfg(test)]
#![cfg(target_os = "linux")]

use std::fs;
use std::time::Duration;

use moeflux_io::{BlockRead as _, SlabIdx, SlotIdx, SlotMemory, ThreadsDrive, UringDrive, Wait};

const SLAB_BYTES: usize = 64 << 20;
/// The kernel counts pages per processor and adds them up now and then.
const SLACK_BYTES: usize = 4 << 20;

/// A figure of this process's memory: `VmRSS` is backed by pages, `VmPin` held by the kernel.
fn status_bytes(name: &str) -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let number = line.trim_start_matches(':').trim().strip_suffix("kB").unwrap();
    number.trim().parse::<usize>().unwrap() << 10
}

fn resident_bytes() -> usize {
    status_bytes("VmRSS")
}

/// Pages that stay pinned are not given back, whatever is unmapped. Kernels may take a moment.
fn wait_for_pins(bytes_max: usize) {
    let mut pause = ThreadsDrive::new(Vec::new(), 1, 1).unwrap();
    let is_above = |_: &i32| status_bytes("VmPin") > bytes_max;
    for _ in (0..2000).take_while(is_above) {
        let millisecond = Duration::from_millis(1);
        pause.complete(Wait::AtMost(millisecond), &mut Vec::new()).unwrap();
    }
    let pinned_bytes = status_bytes("VmPin");
    assert!(pinned_bytes <= bytes_max, "{pinned_bytes}, at most {bytes_max}");
}

fn touch(memory: &mut SlotMemory, slab_idx: SlabIdx) {
    for slot in memory.slots_of(slab_idx).map(SlotIdx) {
        let mut filling = memory.begin_fill(slot);
        filling.take(0..memory.slot_bytes()).rest_mut().fill(1);
        memory.finish(filling);
    }
}

#[test]
fn shrinking_takes_pages_from_the_process() {
    let mut drive = UringDrive::new(Vec::new(), 4).ok();
    let mut memory = SlotMemory::new(1 << 20, SLAB_BYTES);
    let before = resident_bytes();
    for _ in 0..4 {
        let slab_idx = memory.grow().unwrap();
        touch(&mut memory, slab_idx);
        if let Some(drive) = &mut drive {
            drive.slab_added(memory.slab(slab_idx).unwrap());
        }
    }
    let full = resident_bytes();
    let n_registered = drive.as_ref().map_or(0, UringDrive::n_registered_slabs);
    println!("{n_registered} slabs registered, {} bytes pinned", status_bytes("VmPin"));
    assert!(full - before >= 4 * SLAB_BYTES - SLACK_BYTES, "{before} to {full}");
    for slab_idx in [SlabIdx(1), SlabIdx(2)] {
        if let Some(drive) = &mut drive {
            drive.slab_removed(memory.slab(slab_idx).unwrap());
        }
        memory.shrink(slab_idx);
    }
    let n_registered = drive.as_ref().map_or(0, UringDrive::n_registered_slabs);
    wait_for_pins(n_registered * SLAB_BYTES);
    let shrunk = resident_bytes();
    assert!(full - shrunk >= 2 * SLAB_BYTES - SLACK_BYTES, "{full} to {shrunk}");
    // The place is free for the next slab, whose slots are empty.
    let slab_idx = memory.grow().unwrap();
    assert_eq!(slab_idx, SlabIdx(1));
    touch(&mut memory, slab_idx);
    assert_eq!(memory.bytes(SlotIdx(0))[0], 1);
    drop(drive);
    wait_for_pins(0);
}
