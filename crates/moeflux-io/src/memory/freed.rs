//! Limits the freed memory that the allocator keeps.

/// Makes the allocator return freed memory to the system, for a process with a memory budget.
///
/// The allocator of glibc has an arena for each thread, up to eight for each core. Each keeps freed
/// memory: up to twice the largest block that was ever freed. Call this before threads are started.
/// Other allocators are not changed.
pub fn give_back_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, POOLS_MAX),
        (libc::M_MMAP_THRESHOLD, OWN_BLOCK_BYTES),
        (libc::M_TRIM_THRESHOLD, POOL_BYTES_KEPT),
    ] {
        // SAFETY: sets a number of the allocator, under its own lock. It refuses unknown
        // parameters, which changes nothing.
        unsafe {
            libc::mallopt(parameter, value);
        }
    }
}

/// Returns memory freed between blocks in use to the system now, if the allocator is that of glibc.
/// Budgets computed afterwards start from the remaining memory of the process.
pub fn trim_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator returns pages that no block uses to the system, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Arenas for the threads of a process. Few of the threads that allocate much run at the same time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const POOLS_MAX: libc::c_int = 2;

/// Size from which blocks are mapped from the system, and unmapped when freed. The system clears
/// each of their pages, which takes 3 us. With 512 KiB, the allocations of a session and a step
/// delayed the first token of a 2 GB model by 9 ms.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_BLOCK_BYTES: libc::c_int = 4 << 20;

/// Bytes that an arena keeps at its end when smaller blocks are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const POOL_BYTES_KEPT: libc::c_int = 8 << 20;

/// Freed bytes that stay with the process after [`give_back_freed_memory`], in two arenas, besides
/// those between blocks in use.
pub const FREED_BYTES_KEPT: u64 = 2 * (8 << 20);
