//! The rows of batches on the device (token, position and output row of each), and the parts of
//! sessions that they form.
//!
//! A dispatch over a state computes consecutive parts of this buffer. Some kernels are for few rows
//! and others for many, so parts are ordered first by the dispatch they can share, then by their
//! rows. **Invariant:** recorded commands that are not yet submitted find the rows they were
//! recorded for. A batch that differs gets another place, and places are reused only after a
//! submission.

use std::ops::{Range, RangeInclusive};

use moeflux::provider::error::Result;
use moeflux::provider::ids::{Position, StateId};
use moeflux::provider::ops::{Batch, N_OUTPUTS_MAX, Row, Segment};

use crate::device::Gpu;
use crate::memory::STORAGE;
use crate::memory::states::DeviceStates;
use crate::params::narrow;

/// Batches of maximum size that can be recorded before a submission.
const N_BATCHES: usize = 4;
/// Upper bound on four-word entries per row: its own, those of a segment, and those of a part
/// between marks.
const WORDS_OF_ROW: usize = 5;

/// A run of consecutive rows of one session, as the host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPart {
    /// Arena of the session.
    pub(crate) arena: usize,
    /// Number of preceding parts of its session.
    pub(crate) depth: usize,
    pub(crate) n_rows: u32,
    /// Positions that its last row sees.
    pub(crate) n_seen: u32,
    words: [[u32; 4]; 2],
}

impl SegmentPart {
    fn new(
        states: &DeviceStates,
        (state, depth, n_marks): (StateId, usize, usize),
        (rows, position): (Range<usize>, usize),
    ) -> Self {
        let location = states.location(state, (depth, n_marks));
        let (n_rows, position) = (narrow(rows.len()), narrow(position));
        let words = [
            [narrow(rows.start), n_rows, position, location.list_at],
            [location.read_copy, location.written_copy, 0, 0],
        ];
        Self { arena: location.arena, depth, n_rows, n_seen: position + n_rows, words }
    }

    /// Returns its rows of the batch.
    const fn rows(&self) -> Range<u32> {
        let [first, n_rows, ..] = self.words[0];
        first..first + n_rows
    }
}

/// Parts that can share one dispatch, and the offset of the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentParts<'a> {
    pub(crate) parts: &'a [SegmentPart],
    pub(crate) at: u32,
}

impl SegmentParts<'_> {
    /// Returns the groups of parts with the same arena and depth.
    pub(crate) fn groups(self) -> impl Iterator<Item = Self> {
        let mut at = self.at;
        self.parts.chunk_by(|a, b| (a.arena, a.depth) == (b.arena, b.depth)).map(move |parts| {
            let first = at;
            at += 2 * narrow(parts.len());
            Self { parts, at: first }
        })
    }

    /// Returns the parts with a number of rows in `n_rows`. All parts must be alike.
    pub(crate) fn of_rows(self, n_rows: &RangeInclusive<u32>) -> Self {
        let first = self.parts.partition_point(|part| part.n_rows < *n_rows.start());
        let end = self.parts.partition_point(|part| part.n_rows <= *n_rows.end());
        let at = self.at + 2 * narrow(first);
        Self { parts: &self.parts[first..end.max(first)], at }
    }

    /// Returns the row ranges of the parts with more than one row, with adjacent ranges merged.
    pub(crate) fn rows_of_long(self) -> Vec<Range<u32>> {
        let long = self.of_rows(&(2..=u32::MAX)).parts.iter();
        let mut rows: Vec<Range<u32>> = long.map(SegmentPart::rows).collect();
        rows.sort_by_key(|rows| rows.start);
        let mut runs: Vec<Range<u32>> = Vec::new();
        for rows in rows {
            match runs.last_mut() {
                Some(run) if run.end == rows.start => run.end = rows.end,
                _ => runs.push(rows),
            }
        }
        runs
    }

    /// Divides the parts into chunks of at most `n_max`.
    pub(crate) fn chunks(self, n_max: usize) -> impl Iterator<Item = Self> {
        let n_chunks = self.parts.len().div_ceil(n_max).max(1);
        let n_each = self.parts.len().div_ceil(n_chunks).max(1);
        self.parts.chunks(n_each).enumerate().map(move |(chunk_idx, parts)| {
            let at = self.at + 2 * narrow(chunk_idx * n_each);
            Self { parts, at }
        })
    }
}

/// Location of a batch, and its parts: whole segments, and their parts between marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedBatch<'a> {
    pub(crate) rows_at: u32,
    pub(crate) whole: SegmentParts<'a>,
    pub(crate) between_marks: SegmentParts<'a>,
}

#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) buffer: wgpu::Buffer,
    n_words: usize,
    /// Words used since the last submission.
    n_used: usize,
    /// The last batch, and its location.
    last: EncodedBatch,
    last_at: usize,
    scratch: EncodedBatch,
}

/// A batch as the device sees it.
#[derive(Debug, Default, PartialEq, Eq)]
struct EncodedBatch {
    words: Vec<[u32; 4]>,
    /// Words of the rows, before those of the parts.
    n_rows: usize,
    whole: Vec<SegmentPart>,
    /// Empty unless some segment has marks.
    between_marks: Vec<SegmentPart>,
}

impl EncodedBatch {
    fn fill(&mut self, batch: &Batch<'_>, states: &DeviceStates) {
        let Self { words, n_rows, whole, between_marks } = self;
        *n_rows = batch.rows.len().max(batch.outputs.len());
        words.clear();
        words.resize(*n_rows, [0; 4]);
        for (entry, row) in words.iter_mut().zip(batch.rows) {
            (entry[0], entry[1]) = (row.token.0, narrow(row.position.0));
        }
        for (entry, &output) in words.iter_mut().zip(batch.outputs) {
            entry[3] = narrow(output);
        }
        whole.clear();
        between_marks.clear();
        let segments = batch.segments.iter().filter(|it| !it.rows.is_empty());
        whole.extend(segments.clone().map(|segment| {
            let rows = segment.rows.clone();
            let position = batch.rows[rows.start].position.0;
            SegmentPart::new(states, (segment.state, 0, 0), (rows, position))
        }));
        if segments.clone().any(|segment| !segment.marks.is_empty()) {
            between_marks.extend(segments.flat_map(|segment| between(segment, batch, states)));
        }
        for parts in [whole, between_marks] {
            parts.sort_by_key(|part| (part.arena, part.depth, part.n_rows));
            words.extend(parts.iter().flat_map(|part| part.words));
        }
    }

    fn placed(&self, at: usize) -> PlacedBatch<'_> {
        let whole_at = at + self.n_rows;
        let whole = SegmentParts { parts: &self.whole, at: narrow(whole_at) };
        let after_at = narrow(whole_at + 2 * self.whole.len());
        let between_marks = match self.between_marks.as_slice() {
            [] => whole,
            parts => SegmentParts { parts, at: after_at },
        };
        PlacedBatch { rows_at: narrow(at), whole, between_marks }
    }
}

/// Returns the parts of a segment between its marks.
fn between<'a>(
    segment: &'a Segment,
    batch: &'a Batch<'_>,
    states: &'a DeviceStates,
) -> impl Iterator<Item = SegmentPart> + 'a {
    segment.parts().enumerate().map(|(depth, rows)| {
        let position = batch.rows[rows.start].position.0;
        SegmentPart::new(states, (segment.state, depth, segment.marks.len()), (rows, position))
    })
}

impl Batches {
    pub(crate) fn new(gpu: &Gpu, n_rows_max: usize) -> Result<Self> {
        let n_words = N_BATCHES * WORDS_OF_ROW * n_rows_max.max(N_OUTPUTS_MAX);
        let n_bytes = ((n_words + WORDS_OF_ROW) * 16) as u64;
        let buffer = gpu.buffer("the rows of a step", n_bytes, STORAGE)?;
        let (last, scratch) = (EncodedBatch::default(), EncodedBatch::default());
        Ok(Self { buffer, n_words, n_used: 0, last, last_at: 0, scratch })
    }

    /// Prepares the next batch to be placed. Returns whether it can be written without a prior
    /// submission.
    pub(crate) fn prepare(&mut self, batch: &Batch<'_>, states: &DeviceStates) -> bool {
        self.scratch.fill(batch, states);
        self.scratch == self.last || self.n_used + self.scratch.words.len() <= self.n_words
    }

    /// Writes a row that is alone in its step to a reserved place, before all later submissions.
    pub(crate) fn write_single_row(
        &self,
        gpu: &Gpu,
        (state, row): (StateId, &Row),
        states: &DeviceStates,
    ) {
        let part = self.single_row_part(state, row.position, states);
        let own = [row.token.0, narrow(row.position.0), 0, 0];
        let words = [own, part.words[0], part.words[1]];
        gpu.write(&self.buffer, (self.n_words * 16) as u64, bytemuck::cast_slice(&words));
    }

    /// Returns the part that consists of such a row.
    pub(crate) fn single_row_part(
        &self,
        state: StateId,
        position: Position,
        states: &DeviceStates,
    ) -> SegmentPart {
        SegmentPart::new(states, (state, 0, 0), (0..1, position.0))
    }

    /// Returns the location of such a row.
    pub(crate) fn place_single_row<'a>(&self, part: &'a SegmentPart) -> PlacedBatch<'a> {
        let rows_at = narrow(self.n_words);
        let whole = SegmentParts { parts: std::slice::from_ref(part), at: rows_at + 1 };
        PlacedBatch { rows_at, whole, between_marks: whole }
    }

    /// Frees all places. The last batch is no longer reused.
    pub(crate) fn submitted(&mut self) {
        self.n_used = 0;
        self.last.words.clear();
    }

    /// Places the prepared batch; writes its rows if necessary.
    pub(crate) fn place(&mut self, gpu: &Gpu) {
        if self.scratch != self.last {
            std::mem::swap(&mut self.scratch, &mut self.last);
            let n = self.last.words.len();
            assert!(self.n_used + n <= self.n_words, "there is room for the batch");
            self.last_at = self.n_used;
            self.n_used += n;
            let bytes = bytemuck::cast_slice(&self.last.words);
            gpu.write(&self.buffer, (self.last_at * 16) as u64, bytes);
        }
    }

    /// Returns the location of the batch that was placed last.
    pub(crate) fn placed(&self) -> PlacedBatch<'_> {
        self.last.placed(self.last_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns parts of these arenas, depths and numbers of rows, consecutive in the batch.
    fn parts(shapes: &[(usize, usize, u32)]) -> Vec<SegmentPart> {
        let mut first = 0;
        let part = |&(arena, depth, n_rows): &(usize, usize, u32)| {
            first += n_rows;
            let words = [[first - n_rows, n_rows, 0, 0], [0; 4]];
            SegmentPart { arena, depth, n_rows, n_seen: n_rows, words }
        };
        shapes.iter().map(part).collect()
    }

    fn shape(parts: SegmentParts<'_>) -> (usize, u32) {
        (parts.parts.len(), parts.at)
    }

    #[test]
    fn dispatches_have_parts_that_follow_each_other() {
        let mut parts =
            parts(&[(1, 0, 1), (1, 0, 4), (2, 0, 1), (1, 1, 3), (1, 0, 1), (1, 0, 30), (1, 0, 1)]);
        parts.sort_by_key(|part| (part.arena, part.depth, part.n_rows));
        let all = SegmentParts { parts: &parts, at: 100 };
        let groups: Vec<_> = all.groups().collect();
        let shapes: Vec<_> = groups.iter().map(|parts| shape(*parts)).collect();
        assert_eq!(shapes, [(5, 100), (1, 110), (1, 112)]);
        let first = groups[0];
        for (n_rows, expected) in
            [(1..=1, (3, 100)), (2..=8, (1, 106)), (9..=u32::MAX, (1, 108)), (5..=8, (0, 108))]
        {
            assert_eq!(shape(first.of_rows(&n_rows)), expected, "{n_rows:?}");
        }
        // Rows 1 to 5 and 10 to 40; those of other parts lie between.
        assert_eq!(first.rows_of_long(), [1..5, 10..40]);
        assert_eq!(groups[1].rows_of_long(), vec![Range { start: 6, end: 9 }]);
    }

    #[test]
    fn chunks_are_of_equal_size_as_far_as_they_can_be() {
        let parts = parts(&[(1, 0, 1); 7]);
        let all = SegmentParts { parts: &parts, at: 10 };
        let chunks = |n_max| all.chunks(n_max).map(shape).collect::<Vec<_>>();
        assert_eq!(chunks(usize::MAX), [(7, 10)]);
        assert_eq!(chunks(4), [(4, 10), (3, 18)]);
        assert_eq!(chunks(3), [(3, 10), (3, 16), (1, 22)]);
    }
}
