//! Sockets and their connections, below HTTP: where the server listens, who gets a slot, and
//! clients that close their side early or read too slowly.
//!
//! **Invariant:** a connection costs others nothing but its slot. This module knows no routes.

pub(crate) mod listen;
pub(crate) mod slots;
pub(crate) mod half_close;
pub(crate) mod stall;
