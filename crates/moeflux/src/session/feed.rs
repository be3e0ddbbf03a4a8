//! Tokens of one or many sessions become steps: chunks of rows, committed when they are done.
//!
//! **Invariant:** nothing changes before all feeds were checked; a chunk is committed whole or
//! not at all.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::forward::{Device, Logits, Model, StepProgress, Watch, run_head, run_layers};
use crate::ids::{Position, TokenId};
use crate::ops::{Batch, Row, Segment};
use crate::session::checkpoints::RecurrentCopy;
use crate::session::longer::LongerSteps;
use crate::session::{Session, torn};
use crate::spec::ModelSpec;

/// A chunk with at least so many rows of a session copies the session's recurrent state first, so
/// that a failed or cancelled chunk can be undone. The copy costs about as much memory traffic as
/// the state's own update does for a few rows.
const N_ROWS_UNDOABLE: usize = 16;

/// Whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nobody's: the tokens are only remembered.
    None,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

/// Tokens for one session.
#[derive(Debug)]
pub struct Feed<'a> {
    /// Whose.
    pub session: &'a mut Session,
    /// What.
    pub tokens: &'a [TokenId],
    /// Which logits come back.
    pub wanted: Wanted,
}

/// Which row a line of logits belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputOf {
    /// Index of the feed.
    pub feed_idx: usize,
    /// Position of the token in its session.
    pub position: Position,
}

/// Feeds tokens to sessions of one engine, their rows computed together. Between chunks the device
/// serves whoever waits for it; `watch` and `sink` run while it is held, and must not touch
/// sessions of the same engine.
///
/// # Errors
///
/// [`Error::Input`] before anything has changed; [`Error::Cancelled`] when `watch` broke; what
/// the device, the experts' store or `sink` report. Chunks that were complete stay fed.
pub fn step(
    feeds: &mut [Feed<'_>],
    watch: &mut Watch<'_>,
    sink: &mut dyn FnMut(OutputOf, &[f32]) -> Result<()>,
) -> Result<()> {
    step_to_choose(feeds, None, watch, &mut |of, logits| match logits {
        Logits::All(row) => sink(of, row),
        Logits::Best(_) => unreachable!("all logits were asked for"),
    })
}

/// As [`step`], where the best logits are enough: so many of each wanted row.
pub(super) fn step_to_choose(
    feeds: &mut [Feed<'_>],
    n_best: Option<usize>,
    watch: &mut Watch<'_>,
    sink: &mut dyn FnMut(OutputOf, Logits<'_>) -> Result<()>,
) -> Result<()> {
    let Some(first) = feeds.first() else { return Ok(()) };
    let runtime = Arc::clone(&first.session.runtime);
    for feed in &*feeds {
        if !Arc::ptr_eq(&feed.session.runtime, &runtime) {
            return Err(Error::Input("sessions of different engines cannot share a step".into()));
        }
        check(feed, &runtime.model().spec)?;
    }
    let n_rows = feeds.iter().map(|feed| feed.tokens.len()).sum();
    let longer = LongerSteps::begin(&runtime, n_rows)?;
    let mut scratch = runtime.take_scratch();
    let StepScratch { chunk, fed, undos } = &mut scratch;
    fed.clear();
    fed.resize(feeds.len(), 0);
    let mut n_rows_done = 0;
    while n_rows_done < n_rows {
        let mut device = runtime.lock()?;
        let n_rows_max = device.backend.n_rows_max();
        let n_rows_step = match longer {
            Some(_) => n_rows.div_ceil(n_rows.div_ceil(n_rows_max)),
            None => n_rows_max,
        };
        chunk.fill(feeds, fed, n_rows_step);
        let mut run = Run { model: runtime.model(), device: &mut device, n_best, watch, sink };
        run.chunk(feeds, (chunk, undos), (n_rows_done, n_rows))?;
        for part in &chunk.parts {
            fed[part.feed_idx] += part.rows.len();
        }
        n_rows_done += chunk.rows.len();
    }
    runtime.keep_scratch(scratch);
    Ok(())
}

/// Lists of one call of [`step`], kept from call to call: a token costs no allocation.
#[derive(Debug, Default)]
pub(super) struct StepScratch {
    chunk: Chunk,
    /// Tokens of each feed that are done.
    fed: Vec<usize>,
    undos: Vec<Undo>,
}

fn check(feed: &Feed<'_>, spec: &ModelSpec) -> Result<()> {
    let session = &*feed.session;
    if session.is_torn {
        return Err(torn());
    }
    if feed.tokens.is_empty() && feed.wanted != Wanted::None {
        return Err(Error::Input("no tokens to feed: the prompt is empty".into()));
    }
    let (n_held, n_new, context) = (session.tokens.len(), feed.tokens.len(), session.context);
    if n_held + n_new > context {
        let way_out = if n_held + n_new > spec.context_max {
            format!("this model takes {} at most: shorten the text", spec.context_max)
        } else {
            format!("a context of up to {} can be asked for", spec.context_max)
        };
        return Err(Error::Input(format!(
            "{n_held} tokens in the session and {n_new} more do not fit a context of {context}; \
             {way_out}"
        )));
    }
    match feed.tokens.iter().position(|token| token.0 as usize >= spec.vocab) {
        None => Ok(()),
        Some(at) => Err(Error::Input(format!(
            "token {} at place {at} is not in the vocabulary of {}",
            feed.tokens[at].0, spec.vocab
        ))),
    }
}

/// The rows of one feed in a chunk.
#[derive(Debug)]
struct Part {
    feed_idx: usize,
    rows: Range<usize>,
}

/// As many rows as the workspace holds, taken from the feeds in order.
#[derive(Debug, Default)]
struct Chunk {
    rows: Vec<Row>,
    segments: Vec<Segment>,
    parts: Vec<Part>,
    outputs: Vec<usize>,
}

impl Chunk {
    /// Becomes the next chunk, where `fed` tokens of each feed are done.
    fn fill(&mut self, feeds: &[Feed<'_>], fed: &[usize], n_rows_max: usize) {
        let chunk = self;
        chunk.rows.clear();
        chunk.segments.clear();
        chunk.parts.clear();
        chunk.outputs.clear();
        for (feed_idx, feed) in feeds.iter().enumerate() {
            let first_row = chunk.rows.len();
            let pending = &feed.tokens[fed[feed_idx]..];
            let taken = &pending[..pending.len().min(n_rows_max - first_row)];
            if taken.is_empty() {
                continue;
            }
            let n_held = feed.session.tokens.len();
            chunk.rows.extend(
                taken
                    .iter()
                    .enumerate()
                    .map(|(idx, &token)| Row { token, position: Position(n_held + idx) }),
            );
            let rows = first_row..chunk.rows.len();
            match feed.wanted {
                Wanted::All => chunk.outputs.extend(rows.clone()),
                Wanted::Last if taken.len() == pending.len() => chunk.outputs.push(rows.end - 1),
                Wanted::Last | Wanted::None => {}
            }
            chunk.segments.push(Segment { state: feed.session.state, rows: rows.clone() });
            chunk.parts.push(Part { feed_idx, rows });
        }
    }

    fn batch(&self) -> Batch<'_> {
        Batch { rows: &self.rows, segments: &self.segments, outputs: &self.outputs }
    }

    fn output_of(&self, output_idx: usize) -> OutputOf {
        let row_idx = self.outputs[output_idx];
        let part = self.parts.iter().find(|part| part.rows.contains(&row_idx));
        let part = part.expect("every row belongs to a part");
        OutputOf { feed_idx: part.feed_idx, position: self.rows[row_idx].position }
    }
}

/// How a failed chunk is taken back from one session.
#[derive(Debug)]
enum Undo {
    /// Its positions are simply not counted.
    Forget,
    /// The recurrent state is put back.
    Restore(RecurrentCopy),
    /// Too few rows for a copy to pay: the session is torn.
    Tear,
}

/// What one call of [`step`] works with.
struct Run<'a, 'w, 's> {
    model: &'a Model,
    device: &'a mut Device,
    n_best: Option<usize>,
    watch: &'a mut Watch<'w>,
    sink: &'a mut (dyn FnMut(OutputOf, Logits<'_>) -> Result<()> + 's),
}

impl Run<'_, '_, '_> {
    /// Runs and commits one chunk; `(n_rows_done, n_rows)` is for the watch.
    fn chunk(
        &mut self,
        feeds: &mut [Feed<'_>],
        (chunk, undos): (&Chunk, &mut Vec<Undo>),
        (n_rows_done, n_rows): (usize, usize),
    ) -> Result<()> {
        self.prepare_undo(feeds, chunk, undos)?;
        let may_stop_inside = !undos.iter().any(|undo| matches!(undo, Undo::Tear));
        let n_layers = self.model.plan.layers.len();
        let mut is_asked_to_stop = false;
        let layer_done = &mut |n_layers_done| {
            let n_rows_now = chunk.rows.len();
            let progress =
                StepProgress { n_rows_done, n_rows_now, n_rows, n_layers_done, n_layers };
            is_asked_to_stop |= (self.watch)(progress).is_break();
            if is_asked_to_stop && may_stop_inside {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        if let Err(error) = run_layers(self.model, self.device, &chunk.batch(), layer_done) {
            self.undo(feeds, chunk, undos);
            return Err(error);
        }
        for part in &chunk.parts {
            let tokens = chunk.rows[part.rows.clone()].iter().map(|row| row.token);
            feeds[part.feed_idx].session.tokens.extend(tokens);
        }
        let emitted = self.emit(chunk);
        if matches!(emitted, Err(Error::NonFinite { .. })) {
            // Finding the place has walked the rows again, and recurrent states with them.
            for part in &chunk.parts {
                feeds[part.feed_idx].session.is_torn = self.model.plan.state.is_recurrent();
            }
        }
        emitted?;
        if is_asked_to_stop { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn emit(&mut self, chunk: &Chunk) -> Result<()> {
        let sink = &mut self.sink;
        run_head(self.model, self.device, &chunk.batch(), self.n_best, &mut |output_idx, logits| {
            sink(chunk.output_of(output_idx), logits)
        })
    }

    fn prepare_undo(
        &mut self,
        feeds: &[Feed<'_>],
        chunk: &Chunk,
        undos: &mut Vec<Undo>,
    ) -> Result<()> {
        let spec = &self.model.plan.state;
        undos.clear();
        for part in &chunk.parts {
            undos.push(if !spec.is_recurrent() {
                Undo::Forget
            } else if part.rows.len() < N_ROWS_UNDOABLE {
                Undo::Tear
            } else {
                let state = feeds[part.feed_idx].session.state;
                Undo::Restore(RecurrentCopy::of(self.device.backend.as_mut(), state, spec)?)
            });
        }
        Ok(())
    }

    /// Takes a failed chunk back where that is possible; other sessions stay torn. What failed
    /// first is the news, so that a copy that cannot be put back only leaves its session torn.
    fn undo(&mut self, feeds: &mut [Feed<'_>], chunk: &Chunk, undos: &mut Vec<Undo>) {
        for (part, undo) in chunk.parts.iter().zip(undos.drain(..)) {
            let session = &mut *feeds[part.feed_idx].session;
            session.is_torn = match undo {
                Undo::Forget => false,
                Undo::Tear => true,
                Undo::Restore(copy) => {
                    copy.put_back(self.device.backend.as_mut(), session.state).is_err()
                }
            };
        }
    }
}
