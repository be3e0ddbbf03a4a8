//! Bit-identical results, however rows are cut into steps and work into threads.
