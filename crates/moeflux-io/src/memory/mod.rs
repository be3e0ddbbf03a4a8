//! Memory: aligned, cut into slots that reads fill, and what the allocator keeps when it is freed.

pub(crate) mod aligned;
pub(crate) mod slots;
pub(crate) mod freed;
