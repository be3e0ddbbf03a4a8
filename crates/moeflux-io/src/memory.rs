//! What the allocator keeps of what is freed.

/// Lets the allocator give back what is freed, for a process that stays below a number of bytes.
///
/// The allocator of glibc has a pool for each thread, up to eight for each core, and keeps what is
/// freed in each of them: as much as twice the largest block that was ever freed. Call it before
/// threads are started. Other allocators are left as they are.
pub fn give_back_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, POOLS_MAX),
        (libc::M_MMAP_THRESHOLD, OWN_BLOCK_BYTES),
        (libc::M_TRIM_THRESHOLD, POOL_BYTES_KEPT),
    ] {
        // SAFETY: sets a number of the allocator, under its own lock. It refuses what it does not
        // know, which changes nothing.
        unsafe {
            libc::mallopt(parameter, value);
        }
    }
}

/// Gives back now what was freed between blocks that are still used, where the allocator is that of
/// glibc. What follows is counted with the memory that the process has.
pub fn trim_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator gives pages that no block uses back to the system, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Pools for the threads of a process: of those that allocate much, few run at a time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const POOLS_MAX: libc::c_int = 2;

/// Blocks from this size on come from the system and go back to it. The system clears each of their
/// pages again, which takes 3 us: with 512 KiB, what a session and a step allocate made the first
/// token of a 2 GB model 9 ms later.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_BLOCK_BYTES: libc::c_int = 4 << 20;

/// Bytes that a pool keeps at its end when smaller blocks are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const POOL_BYTES_KEPT: libc::c_int = 8 << 20;

/// Freed bytes that stay with the process after [`give_back_freed_memory`], in two pools, beside
/// those that lie between others.
pub const FREED_BYTES_KEPT: u64 = 2 * (8 << 20);
