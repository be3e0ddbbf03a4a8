//! Feeds any number of tokens to one session, in as many steps as they need.
//!
//! **Invariant:** callbacks run between layers or after the last one, while the device is not
//! locked, so they may use other sessions of the same engine.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::forward::{LayerCallback, Logits, StepProgress};
use crate::ids::TokenId;
use crate::session::Session;
#[cfg(feature = "text")]
use crate::session::rows::N_ROWS_BESIDE;
use crate::session::rows::feed::{Feed, Wanted, check_tokens};
use crate::session::rows::output::{OutputOf, StepOutput};
use crate::session::runtime::loans::LongerSteps;
use crate::session::step::{StepUnderWay, step};

impl Session {
    /// Feeds tokens; `sink` receives the wanted logits, row by row. `watch` is called after every
    /// layer and may stop the feed: tokens of completed steps remain fed.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for unknown tokens and for a full context, before anything has changed;
    /// [`Error::Cancelled`] if `watch` breaks; errors of the step and of `sink`.
    pub fn feed(
        &mut self,
        tokens: &[TokenId],
        wanted: Wanted,
        watch: &mut LayerCallback<'_>,
        sink: &mut dyn FnMut(OutputOf, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let mut output = self.runtime.take_output();
        let sink = &mut |of, logits: Logits<'_>| match logits {
            Logits::All(row) => sink(of, row),
            Logits::Best(_) => unreachable!("all logits were asked for"),
        };
        self.feed_all(tokens, (wanted, None), watch, (&mut output, sink))?;
        self.runtime.keep_output(output);
        Ok(())
    }

    /// Feeds a prompt. `output` receives the logits of its last token, or at least the `n_best`
    /// largest if all would have to be fetched: see [`crate::generate::Generation::n_best_needed`].
    ///
    /// # Errors
    ///
    /// As [`Session::feed`]; [`Error::Input`] if there are no tokens.
    pub fn feed_to_choose(
        &mut self,
        tokens: &[TokenId],
        n_best: Option<usize>,
        watch: &mut LayerCallback<'_>,
        output: &mut StepOutput,
    ) -> Result<()> {
        self.feed_all(tokens, (Wanted::Last, n_best), watch, (output, &mut |_, _| Ok(())))
    }

    /// Feeds tokens and returns the logits of the last one.
    ///
    /// # Errors
    ///
    /// As [`Session::feed`]; [`Error::Input`] if there are no tokens.
    pub fn feed_last(&mut self, tokens: &[TokenId]) -> Result<Vec<f32>> {
        let mut last = Vec::new();
        let watch = &mut |_| ControlFlow::Continue(());
        self.feed(tokens, Wanted::Last, watch, &mut |_, logits| {
            last.extend_from_slice(logits);
            Ok(())
        })?;
        Ok(last)
    }

    /// Feeds the newest token of an answer. `output` receives its logits, or at least the `n_best`
    /// largest.
    ///
    /// # Errors
    ///
    /// As [`Session::feed`].
    pub fn feed_answer(
        &mut self,
        token: TokenId,
        n_best: Option<usize>,
        output: &mut StepOutput,
    ) -> Result<()> {
        let mut feeds = [Feed::answer(self, &token).best(n_best)];
        step(&mut feeds, output)?;
        feeds[0].outcome()
    }

    /// Returns the maximum rows of an answer in one step.
    #[cfg(feature = "text")]
    pub(crate) fn n_answer_rows_max(&self) -> Result<usize> {
        Ok(self.runtime.lock()?.backend.n_rows_max().min(N_ROWS_BESIDE))
    }

    fn feed_all(
        &mut self,
        tokens: &[TokenId],
        (wanted, n_best): (Wanted, Option<usize>),
        watch: &mut LayerCallback<'_>,
        (output, sink): (&mut StepOutput, &mut LogitSink<'_>),
    ) -> Result<()> {
        check_tokens(self, tokens, wanted)?;
        let runtime = Arc::clone(&self.runtime);
        // This comes before slots lend memory to longer steps, because sessions may need it.
        self.reserve(tokens.len())?;
        let longer = LongerSteps::begin(&runtime, tokens.len())?;
        let n_steps = |n_rows_max: usize| tokens.len().div_ceil(n_rows_max);
        let mut n_rows_done = 0;
        while n_rows_done < tokens.len() {
            // While this step holds the lock, the size of the workspace does not change.
            let workspace_guard = runtime.lock_workspace()?;
            let n_rows_max = runtime.lock()?.backend.n_rows_max();
            let n_rows_step = match longer {
                Some(_) => tokens.len().div_ceil(n_steps(n_rows_max)),
                None => n_rows_max,
            };
            let rest = &tokens[n_rows_done..];
            let part = &rest[..rest.len().min(n_rows_step)];
            let is_last = part.len() == rest.len();
            let wanted = if is_last || wanted == Wanted::All { wanted } else { Wanted::None };
            let mut feeds = [Feed::prompt(self, part).wanting(wanted).best(n_best)];
            let whole = &mut |progress| {
                watch(StepProgress { n_rows_done, n_rows: tokens.len(), ..progress })
            };
            run(
                StepUnderWay::begin_with(&mut feeds, Some(workspace_guard))?,
                whole,
                (&mut *output, &mut *sink),
            )?;
            feeds[0].outcome()?;
            n_rows_done += part.len();
        }
        Ok(())
    }
}

/// Receives logits as they are computed.
type LogitSink<'a> = dyn FnMut(OutputOf, Logits<'_>) -> Result<()> + 'a;

/// Runs one step and passes on all of its logits.
fn run(
    mut step: StepUnderWay<'_, '_>,
    watch: &mut LayerCallback<'_>,
    (output, sink): (&mut StepOutput, &mut LogitSink<'_>),
) -> Result<()> {
    let mut has_more = true;
    while has_more {
        has_more = step.advance()?;
        if watch(step.progress()).is_break() {
            return Err(Error::Cancelled);
        }
    }
    output.clear();
    while step.next_logits(output)? {
        for (of, logits) in output.iter() {
            sink(of, logits)?;
        }
        // The last logits remain in `output`.
        if step.has_more_logits() {
            output.clear();
        }
    }
    step.commit()
}
