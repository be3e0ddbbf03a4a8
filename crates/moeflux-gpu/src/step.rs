//! One dispatch as data: a pipeline, what it is bound to, its parameters, and how its grid follows
//! from the number of rows.
//!
//! **Invariant:** a step knows nothing of a batch; what a batch adds are four words before the
//! parameters (see `common.wgsl`), bindings of states, and the size of the grid.

use std::ops::RangeInclusive;
use std::sync::Arc;

use moeflux::provider::ids::LayerIdx;

use crate::device::pipeline::Pipeline;

/// Workgroups in one direction: `times * ceil(rows / per_rows) + more`, or `times`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    times: u32,
    per_rows: Option<u32>,
    more: u32,
}

impl Extent {
    /// Always so many.
    #[must_use]
    pub(crate) const fn fixed(n: u32) -> Self {
        Self { times: n, per_rows: None, more: 0 }
    }

    /// One for each `tile` rows.
    #[must_use]
    pub(crate) const fn rows(tile: u32) -> Self {
        Self { times: 1, per_rows: Some(tile), more: 0 }
    }

    /// So many for each `tile` rows.
    #[must_use]
    pub(crate) const fn rows_times(n: u32, tile: u32) -> Self {
        Self { times: n, per_rows: Some(tile), more: 0 }
    }

    /// And so many more, whatever the rows.
    #[must_use]
    pub(crate) const fn and(self, more: u32) -> Self {
        Self { more, ..self }
    }

    /// For so many rows.
    #[must_use]
    pub(crate) const fn of(self, n_rows: u32) -> u32 {
        match self.per_rows {
            None => self.times,
            Some(tile) => self.times * n_rows.div_ceil(tile) + self.more,
        }
    }
}

/// Workgroups of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// `workgroup_id.x`.
    pub(crate) x: Extent,
    /// `workgroup_id.y`.
    pub(crate) y: Extent,
    /// `workgroup_id.z`.
    pub(crate) z: Extent,
}

impl Grid {
    /// In two directions.
    #[must_use]
    pub(crate) const fn new(x: Extent, y: Extent) -> Self {
        Self { x, y, z: Extent::fixed(1) }
    }
}

/// What a step is repeated over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Over {
    /// Nothing: one dispatch for all rows.
    #[default]
    Rows,
    /// The segments of the batch: a dispatch each, with the session's state of the layer bound.
    State(LayerIdx),
    /// The buffers that hold experts of the layer: a dispatch each for all rows, with the buffer
    /// bound as `weights`.
    Experts(LayerIdx),
}

/// In how many buffers the experts of a layer lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffers {
    /// All in one.
    One,
    /// In two or more.
    Several,
}

impl Buffers {
    const fn of(n_buffers: usize) -> Self {
        if n_buffers == 1 { Self::One } else { Self::Several }
    }
}

/// One dispatch.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The kernel's name.
    pub(crate) name: &'static str,
    pub(crate) pipeline: Arc<Pipeline>,
    /// Without the four words of the batch.
    pub(crate) params: Vec<u32>,
    pub(crate) grid: Grid,
    pub(crate) over: Over,
    /// Arena bound as `weights`.
    pub(crate) weights: Option<usize>,
    /// Dispatches of other numbers of rows leave it out.
    pub(crate) n_rows: RangeInclusive<u32>,
    /// Over a state: so do those whose last row sees another number of positions.
    pub(crate) n_seen: RangeInclusive<u32>,
    /// So it is where the experts of that layer lie otherwise.
    pub(crate) among: Option<(LayerIdx, Buffers)>,
}

impl Step {
    /// Binds an arena as `weights`.
    pub(crate) fn weights(&mut self, arena: usize) -> &mut Self {
        self.weights = Some(arena);
        self
    }

    /// Repeats it over segments or experts.
    pub(crate) fn over(&mut self, over: Over) -> &mut Self {
        self.over = over;
        self
    }

    /// Runs only for these numbers of rows: of a segment, over a state.
    pub(crate) fn when(&mut self, n_rows: RangeInclusive<u32>) -> &mut Self {
        self.n_rows = n_rows;
        self
    }

    /// Runs only where the last row of a segment sees so many positions, its own among them.
    pub(crate) fn when_seen(&mut self, n_seen: RangeInclusive<u32>) -> &mut Self {
        self.n_seen = n_seen;
        self
    }

    /// Runs only where the experts of a layer lie in so many buffers.
    pub(crate) fn among(&mut self, layer: LayerIdx, buffers: Buffers) -> &mut Self {
        self.among = Some((layer, buffers));
        self
    }

    /// Whether experts lie as it asks; `n_buffers` says in how many those of a layer do.
    pub(crate) fn finds(&self, n_buffers: impl Fn(LayerIdx) -> usize) -> bool {
        self.among.is_none_or(|(layer, buffers)| Buffers::of(n_buffers(layer)) == buffers)
    }

    /// Whether it runs for these rows.
    pub(crate) fn runs(&self, head: Head) -> bool {
        self.n_rows.contains(&head.n_rows)
            && (!matches!(self.over, Over::State(_))
                || self.n_seen.contains(&(head.place + head.n_rows)))
    }
}

/// What a batch adds to the parameters of a dispatch: see `Step` in `common.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) first_row: u32,
    pub(crate) n_rows: u32,
    pub(crate) batch_at: u32,
    pub(crate) place: u32,
}

impl Head {
    pub(crate) const fn words(self) -> [u32; 4] {
        [self.first_row, self.n_rows, self.batch_at, self.place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_follows_from_the_rows() {
        for (extent, n_rows, expected) in [
            (Extent::fixed(7), 100, 7),
            (Extent::rows(1), 5, 5),
            (Extent::rows(16), 16, 1),
            (Extent::rows(16), 17, 2),
            (Extent::rows_times(3, 4), 9, 9),
            (Extent::rows(4), 0, 0),
            (Extent::rows_times(3, 4).and(5), 9, 14),
        ] {
            assert_eq!(extent.of(n_rows), expected, "{extent:?} of {n_rows}");
        }
    }
}
