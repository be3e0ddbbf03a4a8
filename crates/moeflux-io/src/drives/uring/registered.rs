//! Slabs registered with the kernel: reads into them do not need to pin pages each time.
//!
//! **Invariant:** a slab that [`RegisteredSlabs::find`] returns is registered and held. Memory
//! unmapped under a registration would silently go on receiving reads, so a slab is held until the
//! kernel has dropped its registration. If registration is refused (the limit on locked memory),
//! reads work without it.

use io_uring::IoUring;

use crate::memory::slots::Slab;

/// Maximum size of a buffer that the kernel accepts.
const REGISTERED_BYTES_MAX: usize = 1 << 30;
/// Entries for slabs in the kernel's table: 64 GiB with slabs of 64 MiB. Further slabs are used
/// without registration.
const N_REGISTERED_MAX: u16 = 1024;

/// The kernel's table of slabs.
#[derive(Default)]
pub(super) struct RegisteredSlabs {
    /// Sorted by address.
    slabs: Vec<RegisteredSlab>,
    free: Vec<u16>,
    table: TableState,
}

struct RegisteredSlab {
    first_address: usize,
    index: u16,
    slab: Slab,
}

#[derive(Default, PartialEq, Eq)]
enum TableState {
    #[default]
    NotRequested,
    Created,
    Refused,
}

impl RegisteredSlabs {
    /// Returns the number of registered slabs.
    pub(super) fn len(&self) -> usize {
        self.slabs.len()
    }

    /// Returns the table index of the slab that contains `len_bytes` at `address`.
    pub(super) fn find(&self, address: *const u8, len_bytes: usize) -> Option<u16> {
        let n_before = self.slabs.partition_point(|it| it.first_address <= address.addr());
        let entry = self.slabs.get(n_before.checked_sub(1)?)?;
        let end = address.addr() - entry.first_address + len_bytes;
        (end <= entry.slab.len_bytes()).then_some(entry.index)
    }

    /// Registers `slab` if the kernel allows.
    pub(super) fn add(&mut self, ring: &IoUring, slab: &Slab) {
        if self.table == TableState::NotRequested {
            let created = ring.submitter().register_buffers_sparse(u32::from(N_REGISTERED_MAX));
            self.table = if created.is_ok() { TableState::Created } else { TableState::Refused };
            self.free = (0..N_REGISTERED_MAX).rev().collect();
        }
        let is_known = self.slabs.iter().any(|it| it.slab.is_same(slab));
        let is_possible =
            self.table == TableState::Created && slab.len_bytes() <= REGISTERED_BYTES_MAX;
        if is_known || !is_possible {
            return;
        }
        let Some(index) = self.free.pop() else { return };
        let buffer = libc::iovec { iov_base: slab.byte(0).cast(), iov_len: slab.len_bytes() };
        let (submitter, buffer_index) = (ring.submitter(), u32::from(index));
        // SAFETY: the range is that of a slab, which `slabs` holds until the kernel has dropped the
        // entry.
        let updated = unsafe { submitter.register_buffers_update(buffer_index, &[buffer], None) };
        if updated.is_err() {
            self.free.push(index);
            return;
        }
        let first_address = slab.byte(0).addr();
        let at = self.slabs.partition_point(|it| it.first_address < first_address);
        self.slabs.insert(at, RegisteredSlab { first_address, index, slab: slab.clone() });
    }

    /// Removes the registration of `slab`, then releases the slab.
    pub(super) fn remove(&mut self, ring: &IoUring, slab: &Slab) {
        let Some(at) = self.slabs.iter().position(|it| it.slab.is_same(slab)) else { return };
        let index = self.slabs[at].index;
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let submitter = ring.submitter();
        // SAFETY: an empty range needs no memory.
        let updated =
            unsafe { submitter.register_buffers_update(u32::from(index), &[nothing], None) };
        if updated.is_ok() {
            self.slabs.remove(at);
            self.free.push(index);
        } else {
            self.remove_all(ring);
        }
    }

    /// Removes all registrations; later slabs are not registered. If even that fails, the slabs
    /// stay held.
    pub(super) fn remove_all(&mut self, ring: &IoUring) {
        if self.table == TableState::Created && ring.submitter().unregister_buffers().is_ok() {
            self.slabs.clear();
        }
        self.table = TableState::Refused;
    }
}
