//! The rows of one step, with the feeds that they come from and the wanted logits.

pub(super) mod feed;
pub(super) mod output;

use std::ops::Range;

use crate::ids::Position;
use crate::ops::{Batch, Row, Segment};
use crate::session::rows::feed::{Feed, Wanted};
use crate::session::rows::output::OutputOf;

/// Maximum answer rows that can be computed while a step is paused between two layers. They take
/// the place of its first rows.
pub const N_ROWS_BESIDE: usize = 16;

/// The rows of one feed.
#[derive(Debug)]
pub(super) struct FeedRows {
    pub(super) feed_idx: usize,
    pub(super) rows: Range<usize>,
}

/// The rows of one step.
#[derive(Debug, Default)]
pub(super) struct StepRows {
    pub(super) rows: Vec<Row>,
    segments: Vec<Segment>,
    pub(super) by_feed: Vec<FeedRows>,
    outputs: Vec<usize>,
    /// For each output, the number of largest logits that suffices.
    n_best: Vec<Option<usize>>,
}

impl StepRows {
    /// Takes all rows of the feeds that have not failed.
    pub(super) fn fill(&mut self, feeds: &[Feed<'_>]) {
        self.rows.clear();
        self.segments.clear();
        self.by_feed.clear();
        self.outputs.clear();
        self.n_best.clear();
        let feeds = feeds.iter().enumerate();
        for (feed_idx, feed) in feeds.filter(|(_, it)| it.failure.is_none()) {
            let first_row = self.rows.len();
            let n_held = feed.session.tokens.len();
            let positions = (n_held..).map(Position);
            let rows = feed.tokens.iter().zip(positions);
            self.rows.extend(rows.map(|(&token, position)| Row { token, position }));
            let rows = first_row..self.rows.len();
            if rows.is_empty() {
                continue;
            }
            match feed.wanted {
                Wanted::All => self.outputs.extend(rows.clone()),
                Wanted::Last => self.outputs.push(rows.end - 1),
                Wanted::None => {}
            }
            self.n_best.resize(self.outputs.len(), feed.n_best);
            let mut segment = Segment::new(feed.session.state, rows.clone(), feed.kind);
            if feed.session.is_recurrent() {
                let marks = feed.marks.iter().map(|position| position - n_held);
                segment.marks.extend(marks.filter(|mark| *mark < rows.len()));
            }
            let n_earlier = feed.session.runtime.model().plan.n_earlier().min(n_held);
            let earlier = &feed.session.tokens[n_held - n_earlier..];
            segment.earlier.extend_from_slice(earlier);
            self.segments.push(segment);
            self.by_feed.push(FeedRows { feed_idx, rows });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns all rows.
    pub(super) fn batch(&self) -> Batch<'_> {
        Batch { rows: &self.rows, segments: &self.segments, outputs: &self.outputs }
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns all rows, with some of the wanted outputs.
    pub(super) fn batch_of(&self, outputs: Range<usize>) -> (Batch<'_>, &[Option<usize>]) {
        let n_best = &self.n_best[outputs.clone()];
        (Batch { outputs: &self.outputs[outputs], ..self.batch() }, n_best)
    }

    pub(super) fn n_outputs(&self) -> usize {
        self.outputs.len()
    }

    pub(super) fn output_of(&self, output_idx: usize) -> OutputOf {
        let row_idx = self.outputs[output_idx];
        let feed_rows = self.by_feed.iter().find(|feed_rows| feed_rows.rows.contains(&row_idx));
        let feed_rows = feed_rows.expect("every row belongs to a part");
        OutputOf { feed_idx: feed_rows.feed_idx, position: self.rows[row_idx].position }
    }
}
