//! Whole packs of small checkpoints.
