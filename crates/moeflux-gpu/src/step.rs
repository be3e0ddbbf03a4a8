//! One dispatch as data: a pipeline, its bindings, its parameters, and a grid as a function of the
//! number of rows.
//!
//! **Invariant:** a step is independent of the batch. A batch adds four words before the parameters
//! (see `common.wgsl`), state bindings, and the grid size.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use moeflux::provider::ids::LayerIdx;

use crate::device::pipeline::KernelPipeline;

/// Workgroups along one axis: `times * ceil(rows / per_rows) + more`, or `times`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GridExtent {
    times: u32,
    per_rows: Option<u32>,
    more: u32,
}

impl GridExtent {
    /// Returns a constant extent.
    #[must_use]
    pub(crate) const fn fixed(n: u32) -> Self {
        Self { times: n, per_rows: None, more: 0 }
    }

    /// Returns one workgroup per `tile` rows.
    #[must_use]
    pub(crate) const fn rows(tile: u32) -> Self {
        Self { times: 1, per_rows: Some(tile), more: 0 }
    }

    /// Returns `n` workgroups per `tile` rows.
    #[must_use]
    pub(crate) const fn rows_times(n: u32, tile: u32) -> Self {
        Self { times: n, per_rows: Some(tile), more: 0 }
    }

    /// Adds `more` workgroups, independent of the rows.
    #[must_use]
    pub(crate) const fn and(self, more: u32) -> Self {
        Self { more, ..self }
    }

    /// Returns the number of workgroups for `n_rows` rows.
    #[must_use]
    pub(crate) const fn of(self, n_rows: u32) -> u32 {
        match self.per_rows {
            None => self.times,
            Some(tile) => self.times * n_rows.div_ceil(tile) + self.more,
        }
    }
}

/// Workgroups of a dispatch, as extents per axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// `workgroup_id.x`.
    pub(crate) x: GridExtent,
    /// `workgroup_id.y`.
    pub(crate) y: GridExtent,
    /// `workgroup_id.z`.
    pub(crate) z: GridExtent,
}

impl Grid {
    /// Returns a grid of two axes.
    #[must_use]
    pub(crate) const fn new(x: GridExtent, y: GridExtent) -> Self {
        Self { x, y, z: GridExtent::fixed(1) }
    }
}

/// An axis of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Y,
    Z,
}

/// Upper bound on splits by positions seen: `(positions at most, splits)`. More splits cost more
/// merging.
pub(crate) const SPLITS_OF_SEEN: [(u32, u32); 4] = [(128, 1), (512, 16), (1024, 32), (2048, 64)];

/// Division of positions among workgroups. Consecutive steps with equal splits run one after the
/// other for a chunk of parts, whose results are stored side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Splits {
    /// Upper bound on splits, for any number of positions.
    pub(crate) n_max: u32,
    /// Values that a split of one row writes.
    pub(crate) n_values: u32,
    /// Capacity for such values.
    pub(crate) n_values_max: u32,
}

impl Splits {
    /// Returns the number of splits for a row that sees `n_seen` positions, including itself: see
    /// `attend_common.wgsl`.
    pub(crate) fn of(self, n_seen: u32) -> u32 {
        let found = SPLITS_OF_SEEN.iter().find(|(last, _)| n_seen <= *last);
        found.map_or(self.n_max, |(_, n)| self.n_max.min(*n))
    }

    /// Returns the number of parts of `n_rows` rows that the capacity allows.
    pub(crate) fn n_parts_max(self, n_rows: u32, n_splits: u32) -> usize {
        if n_splits == 1 {
            return usize::MAX;
        }
        let n_values = u64::from(self.n_values) * u64::from(n_rows) * u64::from(n_splits);
        let n_parts = u64::from(self.n_values_max) / n_values;
        usize::try_from(n_parts).unwrap_or(usize::MAX).max(1)
    }
}

/// Memory for the scores of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScoreMemory {
    /// Positions that a row chooses; rows that see no more have no scores.
    pub(crate) n_chosen: u32,
    /// Capacity for scores.
    pub(crate) n_scores_max: u32,
    /// Positions of a workgroup.
    pub(crate) n_positions_each: u32,
}

impl ScoreMemory {
    /// Returns ranges of a part's rows whose scores fit at a time; `None` if not even those of one
    /// row fit. A row takes as much as the last one, which sees `n_seen` positions.
    pub(crate) fn rows(self, n_rows: u32, n_seen: u32) -> Option<Vec<Range<u32>>> {
        let first = (self.n_chosen + n_rows).saturating_sub(n_seen);
        if first >= n_rows {
            return Some(Vec::new());
        }
        let n_each = self.n_scores_max / n_seen;
        let ranges = |n_each: u32| {
            let starts = (first..n_rows).step_by(n_each as usize);
            starts.map(|at| at..n_rows.min(at + n_each)).collect()
        };
        (n_each > 0).then(|| ranges(n_each))
    }

    /// Returns the workgroups of a step for rows that see `n_seen` positions. Along z, a step that
    /// divides positions among workgroups has none of its own.
    pub(crate) fn groups(self, [x, y, z]: [u32; 3], n_seen: u32) -> [u32; 3] {
        if z == 0 { [n_seen.div_ceil(self.n_positions_each), y, 1] } else { [x, y, z] }
    }
}

/// Set that a step is repeated over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Over {
    /// None: one dispatch for all rows.
    #[default]
    Rows,
    /// The segments of the batch, or their parts between marks, with the layer's states bound. One
    /// dispatch covers all whose sessions share the bound buffers.
    State(LayerIdx),
    /// The rows of parts with more than one row, between steps over the same states. One dispatch
    /// covers each run of consecutive rows.
    RowsOfLong(LayerIdx),
    /// As `State`, with the layer's index keys bound as its first table.
    IndexKeys(LayerIdx),
    /// The rows of each segment that choose positions, as many at a time as their scores fit into
    /// memory, with the layer's index keys bound. Steps in a row are repeated together.
    Choices(LayerIdx, ScoreMemory),
    /// The buffers that hold experts of the layer: one dispatch each for all rows, with the buffer
    /// bound as `weights`.
    Experts(LayerIdx),
}

impl Over {
    /// Returns the layer whose states the step is repeated over.
    pub(crate) const fn states_of(self) -> Option<LayerIdx> {
        match self {
            Self::State(layer)
            | Self::RowsOfLong(layer)
            | Self::IndexKeys(layer)
            | Self::Choices(layer, _) => Some(layer),
            Self::Rows | Self::Experts(_) => None,
        }
    }
}

/// Number of buffers that hold the experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferCount {
    /// All in one.
    One,
    /// In two or more.
    Several,
}

impl BufferCount {
    const fn of(n_buffers: usize) -> Self {
        if n_buffers == 1 { Self::One } else { Self::Several }
    }
}

/// One dispatch.
#[derive(Clone, Debug)]
pub(crate) struct DispatchStep {
    /// Name of the kernel.
    pub(crate) name: &'static str,
    pub(crate) pipeline: Arc<KernelPipeline>,
    /// Parameters without the four words of the batch.
    pub(crate) params: Vec<u32>,
    pub(crate) grid: Grid,
    pub(crate) over: Over,
    /// Arena bound as `weights`.
    pub(crate) weights: Option<usize>,
    /// Rows that the step applies to. Dispatches of other sizes skip it; over a state, parts of
    /// other sizes do.
    pub(crate) n_rows: RangeInclusive<u32>,
    /// Over a state: the grid axis that counts parts.
    pub(crate) parts_along: Axis,
    /// Over a state: division of positions among workgroups.
    pub(crate) splits: Option<Splits>,
    /// Whether the step merges splits. Otherwise it produces them, along z.
    pub(crate) merges: bool,
    /// If set, the step runs only if the layer's experts are in this many buffers.
    pub(crate) among: Option<(LayerIdx, BufferCount)>,
}

impl DispatchStep {
    /// Binds an arena as `weights`.
    pub(crate) fn weights(&mut self, arena: usize) -> &mut Self {
        self.weights = Some(arena);
        self
    }

    /// Repeats the step over segments or experts.
    pub(crate) fn over(&mut self, over: Over) -> &mut Self {
        self.over = over;
        self
    }

    /// Restricts the step to these numbers of rows: of a segment, over a state.
    pub(crate) fn when(&mut self, n_rows: RangeInclusive<u32>) -> &mut Self {
        self.n_rows = n_rows;
        self
    }

    /// Counts parts along y.
    pub(crate) fn parts_along_y(&mut self) -> &mut Self {
        self.parts_along = Axis::Y;
        self
    }

    /// Merges splits.
    pub(crate) fn merges(&mut self, splits: Splits) -> &mut Self {
        (self.splits, self.merges) = (Some(splits), true);
        self
    }

    /// Splits positions among workgroups along z.
    pub(crate) fn splits(&mut self, splits: Splits) -> &mut Self {
        self.splits = Some(splits);
        self
    }

    /// Runs the step only if the experts of a layer are in this many buffers.
    pub(crate) fn among(&mut self, layer: LayerIdx, buffers: BufferCount) -> &mut Self {
        self.among = Some((layer, buffers));
        self
    }

    /// Returns whether the step applies, given the number of expert buffers per layer.
    pub(crate) fn applies(&self, n_buffers: impl Fn(LayerIdx) -> usize) -> bool {
        self.among.is_none_or(|(layer, buffers)| BufferCount::of(n_buffers(layer)) == buffers)
    }

    /// Returns the workgroups for `n_rows` rows.
    pub(crate) fn groups(&self, n_rows: u32) -> [u32; 3] {
        [self.grid.x, self.grid.y, self.grid.z].map(|extent| extent.of(n_rows))
    }

    /// Returns the workgroups for `n_parts` parts, each of at most `n_rows` rows, whose positions
    /// are divided into `n_splits` splits.
    pub(crate) fn groups_of_parts(&self, n_rows: u32, n_parts: u32, n_splits: u32) -> [u32; 3] {
        let [x, y, mut z] = self.groups(n_rows);
        match (self.splits, self.merges) {
            (Some(_), true) if n_splits == 1 => z = 0,
            (Some(_), false) => z = n_splits,
            _ => {}
        }
        match self.parts_along {
            Axis::Y => [x, y * n_parts, z],
            Axis::Z => [x, y, z * n_parts],
        }
    }

    /// Returns the number of leading steps that run for one chunk of parts before the next
    /// chunk.
    pub(crate) fn n_together(&self, steps: &[Self]) -> usize {
        let is_along =
            |it: &&Self| (it.over, it.splits, &it.n_rows) == (self.over, self.splits, &self.n_rows);
        match (self.splits, self.over) {
            (None, over) if !matches!(over, Over::Choices(..)) => 1,
            _ => steps.iter().take_while(is_along).count(),
        }
    }
}

/// Words that a batch adds to the parameters of a dispatch: see `Step` in `common.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchParams {
    pub(crate) first_row: u32,
    pub(crate) n_rows: u32,
    pub(crate) batch_at: u32,
    pub(crate) place: u32,
}

impl BatchParams {
    pub(crate) const fn words(self) -> [u32; 4] {
        [self.first_row, self.n_rows, self.batch_at, self.place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_follow_from_the_positions_and_fit_their_room() {
        let splits = Splits { n_max: 48, n_values: 10, n_values_max: 1000 };
        for (n_seen, expected) in [(1, 1), (128, 1), (129, 16), (1024, 32), (1025, 48), (9999, 48)]
        {
            assert_eq!(splits.of(n_seen), expected, "{n_seen}");
        }
        assert_eq!(splits.n_parts_max(1, 1), usize::MAX);
        assert_eq!([(1, 16), (2, 16), (8, 48)].map(|(n, of)| splits.n_parts_max(n, of)), [6, 3, 1]);
    }

    #[test]
    fn scores_fit_their_memory() {
        let memory = ScoreMemory { n_chosen: 4, n_scores_max: 50, n_positions_each: 8 };
        assert_eq!(memory.rows(4, 4), Some(Vec::new()));
        // The first of three rows sees four positions, and chooses all.
        assert_eq!(memory.rows(3, 6), Some(std::iter::once(1..3).collect()));
        assert_eq!(memory.rows(5, 20), Some(vec![0..2, 2..4, 4..5]));
        assert_eq!(memory.rows(1, 51), None);
        assert_eq!(memory.groups([1, 3, 0], 17), [3, 3, 1]);
        assert_eq!(memory.groups([3, 1, 1], 17), [3, 1, 1]);
    }

    #[test]
    fn a_grid_follows_from_the_rows() {
        for (extent, n_rows, expected) in [
            (GridExtent::fixed(7), 100, 7),
            (GridExtent::rows(1), 5, 5),
            (GridExtent::rows(16), 16, 1),
            (GridExtent::rows(16), 17, 2),
            (GridExtent::rows_times(3, 4), 9, 9),
            (GridExtent::rows(4), 0, 0),
            (GridExtent::rows_times(3, 4).and(5), 9, 14),
        ] {
            assert_eq!(extent.of(n_rows), expected, "{extent:?} of {n_rows}");
        }
    }
}
