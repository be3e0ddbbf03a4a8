//! Memory: aligned, cut into slots that reads fill, and freed memory that the allocator keeps.

pub(crate) mod aligned;
pub(crate) mod slots;
pub(crate) mod freed;
