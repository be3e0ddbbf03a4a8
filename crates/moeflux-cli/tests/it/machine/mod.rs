//! Commands that depend on the machine: `bench`, `plan`, `doctor`, and the choice of a GPU.

mod benching;
mod dense;
mod gpus;
mod least;
mod planning;
