//! How often experts are found in memory, according to the trace of a run if there is one.
//!
//! **Invariant:** a trace is of a model with the same experts, or is refused.

use std::path::Path;

use moeflux::provider::experts::replay::replay;
use moeflux::provider::experts::trace::{StepKind, Trace};

use crate::failure::{CommandFailure, CommandResult};
use crate::model::needs::Needs;

/// The available knowledge about the routing of tokens to experts.
#[derive(Debug)]
pub(crate) enum RoutingSource {
    Unknown,
    Traced(Trace),
}

impl RoutingSource {
    /// Reads the routes of a trace.
    ///
    /// # Errors
    ///
    /// Fails if the file is invalid; [`CommandFailure::Usage`] if it is of another model, or
    /// contains no answer.
    pub(crate) fn open(path: &Path, needs: &Needs) -> CommandResult<Self> {
        let trace = Trace::open(path)?;
        let traced = trace.header().layers.iter().filter(|layer| layer.n_experts > 0);
        let traced: Vec<(u64, u64)> =
            traced.map(|it| (it.n_experts as u64, it.top_k as u64)).collect();
        let needed: Vec<(u64, u64)> =
            needs.sparse_layers.iter().map(|it| (it.n_experts, it.top_k)).collect();
        if traced != needed {
            return Err(CommandFailure::Usage(format!(
                "{} is the trace of a model with {} experts in {} layers; this one has {} in {}",
                path.display(),
                trace.header().n_experts(),
                traced.len(),
                needs.n_experts(),
                needed.len()
            )));
        }
        if trace.n_rows(StepKind::Decode) == 0 {
            let path = path.display();
            return Err(CommandFailure::Usage(format!(
                "{path} has prompts only: trace a run that answers (-n 200)"
            )));
        }
        Ok(Self::Traced(trace))
    }

    /// Returns the share of uses that find their expert with `n_slots` experts in memory; `None` if
    /// unknown.
    pub(super) fn hit_rate(&self, n_slots: u64) -> Option<f64> {
        let Self::Traced(trace) = self else { return None };
        let n_slots = usize::try_from(n_slots).ok().filter(|n_slots| *n_slots > 0)?;
        replay(trace, n_slots).tally(StepKind::Decode).hit_rate()
    }
}
