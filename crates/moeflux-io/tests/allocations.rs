//! Once warm, jobs are loaded without any allocation: by every kind of drive.
//! A binary of its own: its allocator counts.
#![cfg(test)]
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use moeflux_io::{
    BlockRead, Caching, DriveFile, FileIdx, FinishedLoad, LoadId, LoadJob, LoadOutcome,
    LoadPriority, Loader, LoaderSettings, RealClock, SlotIdx, SlotLayout, SlotMemory, ThreadsDrive,
    Wait, lay_out,
};
use moeflux_testing::temp_dir::TempDir;

struct CountingAllocator(AtomicU64);

// SAFETY: all is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator(AtomicU64::new(0));

const N_SLOTS: u32 = 16;

struct AllocationRig {
    loader: Loader,
    memory: SlotMemory,
    parts: Vec<SlotLayout>,
    finished: Vec<FinishedLoad>,
}

impl AllocationRig {
    fn new(drive: Box<dyn BlockRead>) -> Self {
        let settings = LoaderSettings { read_bytes: 64 << 10, prefetch_bytes_max: 256 << 10 };
        let mut loader = Loader::new(drive, None, settings, Arc::new(RealClock::new()));
        let mut memory = SlotMemory::new(512 << 10, N_SLOTS as usize * (512 << 10));
        let slab_idx = memory.grow().unwrap();
        loader.slab_added(memory.slab(slab_idx).unwrap());
        let layout = |job: u64| {
            let extents =
                [0, 1, 2].map(|part| (FileIdx(0), job * 70_001 + part * 300_000, 120_000));
            lay_out(extents, loader.block_bytes())
        };
        let parts = (0..u64::from(N_SLOTS)).map(layout).collect();
        Self { loader, memory, parts, finished: Vec::with_capacity(N_SLOTS as usize) }
    }

    /// Jobs into all slots, some of them prefetches, some promoted, some cancelled.
    fn run(&mut self) {
        for slot in 0..N_SLOTS {
            let filling = self.memory.begin_fill(SlotIdx(slot as usize));
            let priority =
                if slot % 2 == 0 { LoadPriority::Demand } else { LoadPriority::Prefetch };
            let parts = self.parts[slot as usize].parts();
            self.loader.submit(LoadJob::new(LoadId(u64::from(slot)), priority, filling, parts));
        }
        self.loader.poll(&mut self.finished).unwrap();
        self.loader.promote(LoadId(7));
        self.loader.cancel(LoadId(9));
        while self.loader.n_jobs() > 0 {
            self.loader.wait(Wait::Any, &mut self.finished).unwrap();
        }
        for FinishedLoad { filling, outcome, .. } in self.finished.drain(..) {
            match outcome {
                LoadOutcome::Ready => self.memory.finish(filling),
                LoadOutcome::Cancelled => self.memory.abandon(filling),
                LoadOutcome::Failed(error) => panic!("{error}"),
            }
        }
    }
}

fn check(name: &str, drive: Box<dyn BlockRead>) {
    let mut rig = AllocationRig::new(drive);
    for _ in 0..20 {
        rig.run();
    }
    let before = COUNTING.0.load(Ordering::Relaxed);
    for _ in 0..50 {
        rig.run();
    }
    let n_allocations = COUNTING.0.load(Ordering::Relaxed) - before;
    assert_eq!(n_allocations, 0, "{name}");
}

fn open(path: &Path) -> Vec<DriveFile> {
    vec![DriveFile::open(path, Caching::Direct).unwrap()]
}

#[test]
fn a_warm_loader_allocates_nothing() {
    let dir = TempDir::new();
    let path = dir.write("drive", vec![7; 2 << 20]);
    check("threads", Box::new(ThreadsDrive::new(open(&path), 2, 8).unwrap()));
    #[cfg(target_os = "linux")]
    if let Ok(drive) = moeflux_io::UringDrive::new(open(&path), 8) {
        check("io_uring", Box::new(drive));
    }
}
