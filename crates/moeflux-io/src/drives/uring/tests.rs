//! Tests behaviour specific to io_uring: refusals, and registered slabs.

use moeflux_testing::random::Rng;
use moeflux_testing::temp_dir::TempDir;

use super::*;
use crate::memory::slots::{SLOT_ALIGN, SlabIdx, SlotIdx, SlotMemory};

/// Returns a drive; `None` if this kernel provides no io_uring. The refusal must then be a typed
/// one, the same each time.
pub(crate) fn drive_or_typed_refusal(files: Vec<DriveFile>, depth: usize) -> Option<UringDrive> {
    match UringDrive::new(files, depth) {
        Ok(drive) => Some(drive),
        Err(refused) => {
            assert!(!matches!(refused, UringRefused::Failed(_)), "{refused}");
            None
        }
    }
}

#[test]
fn answers_of_the_kernel_are_distinguished() {
    let refused = |code| UringRefused::from(io::Error::from_raw_os_error(code));
    assert!(matches!(refused(libc::ENOSYS), UringRefused::Unsupported));
    assert!(matches!(refused(libc::EPERM), UringRefused::Forbidden));
    assert!(matches!(refused(libc::EACCES), UringRefused::Forbidden));
    assert!(matches!(refused(libc::EMFILE), UringRefused::Failed(_)));
    for code in [libc::ENOSYS, libc::EPERM, libc::EMFILE] {
        assert!(refused(code).to_string().contains("io_uring"));
    }
}

#[test]
fn every_depth_up_to_the_limit_is_had() {
    for depth in [1, 2, 3, 100, DEPTH_MAX] {
        if let Some(drive) = drive_or_typed_refusal(Vec::new(), depth) {
            assert_eq!((drive.depth(), drive.n_in_flight()), (depth, 0));
        }
    }
}

#[test]
fn a_read_of_a_file_that_is_not_there_leaves_nothing_to_wait_for() {
    let Some(mut drive) = drive_or_typed_refusal(Vec::new(), 1) else { return };
    let mut memory = SlotMemory::new(SLOT_ALIGN, SLOT_ALIGN);
    memory.grow().unwrap();
    let piece = memory.begin_fill(SlotIdx(0)).take(0..SLOT_ALIGN);
    let read = ReadRequest { tag: 0, file: FileIdx(0), offset_bytes: 0, attempt: 0, piece };
    let submitted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drive.submit(read)));
    assert!(submitted.is_err());
    assert_eq!(drive.n_in_flight(), 0);
}

#[test]
fn marks_of_reads_are_taken_apart_again() {
    for (index, generation) in [(0, 0), (7, u32::MAX), (u32::MAX - 1, 3)] {
        assert_eq!(entry_index(user_data(index, generation)), index);
    }
    // With depths up to the limit, no read has the user data of cancels.
    assert!(u64::from(entry_index(CANCEL_MARK)) >= DEPTH_MAX as u64);
}

/// Slabs are added and removed while others are filled. Every read must reach the current memory of
/// its slot.
#[test]
fn slabs_come_and_go_and_reads_never_land_in_old_memory() {
    let folder = TempDir::new();
    let mut rng = Rng::new(5);
    let bytes = rng.bytes(64 * SLOT_ALIGN);
    let path = folder.write("f", &bytes);
    let files = vec![DriveFile::open(&path, Caching::Direct).unwrap()];
    let Some(mut drive) = drive_or_typed_refusal(files, 4) else { return };
    let mut memory = SlotMemory::new(SLOT_ALIGN, 2 * SLOT_ALIGN);
    for round in 0..200u64 {
        if memory.n_slabs() < 2 || (memory.n_slabs() < 6 && rng.below(2) == 0) {
            let slab_idx = memory.grow().unwrap();
            if rng.below(4) > 0 {
                drive.slab_added(memory.slab(slab_idx).unwrap());
            }
        }
        let slab_idxs: Vec<SlabIdx> = memory.slabs().map(|(slab_idx, _)| slab_idx).collect();
        let slab_idx = slab_idxs[rng.below(slab_idxs.len())];
        let slot = SlotIdx(memory.slots_of(slab_idx).start + usize::from(round % 2 == 1));
        let unit = rng.below(64);
        let mut filling = memory.begin_fill(slot);
        let piece = filling.take(0..SLOT_ALIGN);
        let offset_bytes = (unit * SLOT_ALIGN) as u64;
        drive.submit(ReadRequest { tag: round, file: FileIdx(0), offset_bytes, attempt: 0, piece });
        let mut done = Vec::new();
        drive.complete(Wait::Any, &mut done).unwrap();
        assert!(matches!(done[0].outcome, ReadOutcome::Read(SLOT_ALIGN)), "{:?}", done[0].outcome);
        drop(done);
        memory.finish(filling);
        let expected = &bytes[unit * SLOT_ALIGN..(unit + 1) * SLOT_ALIGN];
        assert!(memory.bytes(slot) == expected, "round {round}");
        if rng.below(3) == 0 {
            let slab = memory.slab(slab_idx).unwrap().clone();
            drive.slab_removed(&slab);
            drop(slab);
            memory.shrink(slab_idx);
        }
        assert!(drive.n_registered_slabs() <= memory.n_slabs());
    }
}

#[test]
fn a_slab_is_registered_once_and_held_until_it_is_removed() {
    let Some(mut drive) = drive_or_typed_refusal(Vec::new(), 1) else { return };
    let mut memory = SlotMemory::new(SLOT_ALIGN, SLOT_ALIGN);
    memory.grow().unwrap();
    let slab = memory.slab(SlabIdx(0)).unwrap().clone();
    drive.slab_removed(&slab);
    drive.slab_added(&slab);
    drive.slab_added(&slab);
    // The limit on locked memory may prevent this; then the slab is not held.
    let n_registered = drive.n_registered_slabs();
    assert!(n_registered <= 1);
    assert_eq!(drive.registered.find(slab.byte(0), slab.len_bytes()).is_some(), n_registered == 1);
    assert_eq!(drive.registered.find(slab.byte(1), slab.len_bytes()), None);
    drive.slab_removed(&slab);
    assert_eq!(drive.n_registered_slabs(), 0);
    assert_eq!(drive.registered.find(slab.byte(0), 1), None);
    drop(slab);
    memory.shrink(SlabIdx(0));
}
