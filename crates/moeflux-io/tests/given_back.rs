//! Memory that is given back is really gone from the process, with io_uring's registration too.
//! A binary of its own: the process is what is measured.
#![cfg(test)]
#![cfg(target_os = "linux")]

use std::fs;

use moeflux_io::{BlockRead as _, SlabIdx, SlotIdx, SlotMemory, UringDrive};

const SLAB_BYTES: usize = 64 << 20;
/// The kernel counts pages per processor and adds them up now and then.
const SLACK_BYTES: usize = 4 << 20;

/// Memory of this process that is backed by pages.
fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let n_kibibytes: usize = line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap();
    n_kibibytes << 10
}

fn touch(memory: &mut SlotMemory, place: SlabIdx) {
    for slot in memory.slots_of(place).map(SlotIdx) {
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
        let place = memory.grow().unwrap();
        touch(&mut memory, place);
        if let Some(drive) = &mut drive {
            drive.slab_added(memory.slab(place).unwrap());
        }
    }
    let full = resident_bytes();
    assert!(full - before >= 4 * SLAB_BYTES - SLACK_BYTES, "{before} to {full}");
    for place in [SlabIdx(1), SlabIdx(2)] {
        if let Some(drive) = &mut drive {
            drive.slab_removed(memory.slab(place).unwrap());
        }
        memory.shrink(place);
    }
    let shrunk = resident_bytes();
    assert!(full - shrunk >= 2 * SLAB_BYTES - SLACK_BYTES, "{full} to {shrunk}");
    // The place is free for the next slab, whose slots are empty.
    let place = memory.grow().unwrap();
    assert_eq!(place, SlabIdx(1));
    touch(&mut memory, place);
    assert_eq!(memory.bytes(SlotIdx(0))[0], 1);
}
