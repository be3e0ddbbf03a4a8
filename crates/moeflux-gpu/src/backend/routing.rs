//! The choices and guesses of the last routers: the shapes of their output, and its copies on the
//! host.
//!
//! **Invariant:** stored routes name experts that exist. This module knows no queue: the backend
//! copies values from the device.

use moeflux::provider::error::Result;
use moeflux::provider::ids::ExpertIdx;
use moeflux::provider::ops::Routes;

use super::plans::CompiledPlan;
use crate::compiler::RouteShape;
use crate::device::Gpu;
use crate::kernels::guess_cols;
use crate::params::View;

/// Router output of the last batch.
#[derive(Clone, Copy, Debug, Default)]
struct RouterOutput {
    shape: RouteShape,
    n_rows: usize,
    /// Whether `routes` on the host matches the device.
    is_on_host: bool,
}

/// Router guess of the last batch, until it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingGuess {
    pub(super) view: View,
    shape: RouteShape,
    n_rows: usize,
}

impl PendingGuess {
    pub(super) const fn n_values(&self) -> usize {
        self.n_rows * self.view.row_stride as usize
    }
}

/// Results of the last routers.
#[derive(Debug, Default)]
pub(super) struct RouterResults {
    output: RouterOutput,
    routes: Routes,
    guess: Option<PendingGuess>,
    guessed: Routes,
}

impl RouterResults {
    /// Notes that a plan was recorded or submitted for `n_rows` rows.
    pub(super) const fn note(&mut self, compiled: &CompiledPlan, n_rows: usize) {
        if let Some((view, shape)) = compiled.guess {
            self.guess = Some(PendingGuess { view, shape, n_rows });
        }
        if compiled.has_router {
            let shape = compiled.routes[1];
            self.output = RouterOutput { shape, n_rows, is_on_host: false };
        }
    }

    /// Returns the shape of the last router's output.
    pub(super) const fn shape(&self) -> RouteShape {
        self.output.shape
    }

    /// Returns the number of rows of the last router's output.
    pub(super) const fn n_rows(&self) -> usize {
        self.output.n_rows
    }

    /// Returns whether the last router's choice is on the host.
    pub(super) const fn is_on_host(&self) -> bool {
        self.output.is_on_host
    }

    /// Returns the choice that was stored last.
    pub(super) const fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns the guess that was stored last.
    pub(super) const fn guessed(&self) -> &Routes {
        &self.guessed
    }

    /// Returns the guess to read, if there is one that was not read.
    pub(super) const fn take_guess(&mut self) -> Option<PendingGuess> {
        self.guess.take()
    }

    /// Stores the last router's choice, in pairs of an expert and the bits of its weight.
    pub(super) fn store_routes(&mut self, gpu: &Gpu, words: &[u32]) -> Result<()> {
        let shape = self.output.shape;
        let pairs = words.as_chunks::<2>().0.iter();
        let Routes { top_k, experts, weights } = &mut self.routes;
        *top_k = shape.top_k;
        experts.clear();
        experts.extend(pairs.clone().map(|pair| ExpertIdx(pair[0] as usize)));
        weights.clear();
        weights.extend(pairs.map(|pair| f32::from_bits(pair[1])));
        let last = experts.iter().max();
        if last.is_some_and(|it| it.0 >= shape.n_experts) {
            return Err(gpu.error("its router chose an expert that does not exist"));
        }
        self.output.is_on_host = true;
        Ok(())
    }

    /// Stores a guess, in rows of `view.row_stride` values.
    pub(super) fn store_guess(
        &mut self,
        gpu: &Gpu,
        guess: PendingGuess,
        values: &[f32],
    ) -> Result<()> {
        let PendingGuess { view, shape, .. } = guess;
        let Routes { top_k, experts, weights } = &mut self.guessed;
        *top_k = shape.top_k;
        experts.clear();
        weights.clear();
        for row in values.chunks(view.row_stride as usize) {
            let (named, weighed) = row[..guess_cols(shape.top_k)].split_at(shape.top_k);
            experts.extend(named.iter().map(|it| ExpertIdx(index_of(*it))));
            weights.extend_from_slice(weighed);
        }
        if experts.iter().any(|it| it.0 >= shape.n_experts) {
            return Err(gpu.error("its router named an expert that does not exist"));
        }
        Ok(())
    }
}

/// Converts an index that a kernel wrote as a float. Exact, since no layer has 2^24 experts.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number; the cast makes any other value one, and it is checked"
)]
fn index_of(value: f32) -> usize {
    value as usize
}
