//! Results of models: compared with other implementations, between backends and spellings, and as
//! the text of plans.

mod stored;
mod bits;
mod golden;
mod ops;
mod overflow;
mod plans;
mod spellings;
mod tables;
