//! One module per subcommand: its options and its implementation.
//!
//! **Invariant:** a command names another only to do part of its work: `doctor` uses `synth` and
//! `plan`, `pull` uses `plan`, and `serve` uses `plan` and `pull`.

pub(crate) mod generate;
pub(crate) mod chat;
pub(crate) mod tokenize;
pub(crate) mod logits;
pub(crate) mod eval;
pub(crate) mod bench;
pub(crate) mod replay;
pub(crate) mod inspect;
pub(crate) mod synth;
pub(crate) mod plan;
pub(crate) mod doctor;
pub(crate) mod pack;
pub(crate) mod verify;
pub(crate) mod pull;
pub(crate) mod list;
pub(crate) mod rm;
pub(crate) mod prefix;
pub(crate) mod serve;
pub(crate) mod completions;
