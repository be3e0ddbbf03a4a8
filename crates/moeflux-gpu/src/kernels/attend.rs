//! What attention with keys and values, and with latents, have in common: the choice of tiles, and
//! the steps for few and for many rows.
//!
//! Few rows take their own keys from the rows and keep them in the same step; where many positions
//! are seen, these are split among workgroups, and a second step puts the splits together. Many
//! rows keep their keys first. **Invariant:** every key is read once by all queries of a tile.

use std::ops::RangeInclusive;

use moeflux::error::{Error, Result};
use moeflux::ids::LayerIdx;

use crate::compiler::Compiler;
use crate::memory::narrow;
use crate::params::Params;
use crate::shader::{Lanes, Shader};
use crate::step::{Extent, Grid, Over};

/// Up to so many rows of a segment are few.
const N_ROWS_FEW: u32 = 8;
/// Keys of a block, as in `attend_tile.wgsl`.
const N_KEYS: u32 = 64;
const N_KEY_LANES: u32 = N_KEYS / 4;
const N_LANES_MAX: u32 = 256;
/// Workgroups that fill a device.
const N_GROUPS_FULL: u32 = 256;
const N_SPLITS_MAX: u32 = 64;
/// Bytes of what splits leave.
const PARTIAL_BYTES_MAX: u32 = 32 << 20;
/// Positions that one workgroup sees without help, and that a few share.
const N_SEEN_ALONE: u32 = 2 * N_KEYS;
const N_SEEN_FEW: u32 = 16 * N_KEYS;

/// Invocations of the kernels beside the tiles.
const N_LANES_PLAIN: u32 = 64;

/// Which kernel of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Attends.
    Tile,
    /// Puts splits together.
    Merge,
    /// Keeps keys and values.
    Append,
}

/// What an op is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// By [`Part`].
    pub(super) names: [&'static str; 3],
    /// Its file.
    pub(super) source: &'static str,
    pub(super) n_kv_heads: u32,
    /// Query heads that share a key head.
    pub(super) group: u32,
    /// Columns of keys and of values by four.
    pub(super) key_fours: u32,
    pub(super) value_fours: u32,
    pub(super) has_sinks: bool,
    pub(super) has_gate: bool,
    /// Constants of its file.
    pub(super) consts: [(&'static str, u32); 2],
}

/// How queries are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    n_queries: u32,
    /// Columns by four that are brought in together.
    slice: u32,
    /// Whether its rows' own keys come from the rows.
    from_rows: bool,
}

impl Tile {
    fn n_lanes(self) -> u32 {
        N_KEY_LANES * self.n_queries.min(N_LANES_MAX / N_KEY_LANES)
    }

    fn workgroup_bytes(self) -> u32 {
        let slices = (self.n_queries + N_KEYS) * (self.slice + 1);
        let weights = self.n_queries * (N_KEY_LANES + 1);
        16 * slices.max(weights) + 4 * self.n_queries * (N_KEY_LANES + 1)
    }
}

impl Form {
    /// For few rows.
    pub(super) fn tile_of_few(&self, workgroup_bytes_max: u32) -> Tile {
        let n_queries = self.group.next_power_of_two().clamp(4, 16);
        // Every four columns of values have an invocation.
        let least = (self.value_fours.next_power_of_two() / N_KEY_LANES).min(16);
        let n_queries = n_queries.max(least);
        let tile = Tile { n_queries, slice: 16, from_rows: true };
        if tile.workgroup_bytes() <= workgroup_bytes_max { tile } else { Tile { slice: 8, ..tile } }
    }

    /// For many rows: as many queries as registers hold sums for.
    pub(super) fn tile_of_many(&self, workgroup_bytes_max: u32) -> Tile {
        let n_queries = (4096 / self.value_fours.next_power_of_two()).clamp(16, 64);
        let mut tile = Tile { n_queries, slice: 8, from_rows: false };
        while tile.n_queries > 16 && tile.workgroup_bytes() > workgroup_bytes_max {
            tile.n_queries /= 2;
        }
        tile
    }

    fn tile_heads(&self, tile: Tile) -> u32 {
        self.group.min(tile.n_queries)
    }

    /// Workgroups along x.
    fn tiles(&self, tile: Tile) -> Extent {
        let heads = self.tile_heads(tile);
        Extent::rows_times(self.group.div_ceil(heads), tile.n_queries / heads)
    }

    pub(super) fn shader(&self, part: Part, tile: Tile) -> Shader {
        let (name, text, n_lanes) = match part {
            Part::Tile => (self.names[0], include_str!("attend_tile.wgsl"), tile.n_lanes()),
            Part::Merge => (self.names[1], include_str!("attend_merge.wgsl"), N_LANES_PLAIN),
            Part::Append => (self.names[2], include_str!("attend_append.wgsl"), N_LANES_PLAIN),
        };
        let mut shader = Shader::new(name, text)
            .with("N_LANES", n_lanes)
            .with("N_KV_HEADS", self.n_kv_heads)
            .with("GROUP", self.group)
            .with("KEY_FOURS", self.key_fours)
            .with("VALUE_FOURS", self.value_fours)
            .with("HAS_SINKS", self.has_sinks)
            .with("HAS_GATE", self.has_gate)
            .with("FROM_ROWS", part == Part::Tile && tile.from_rows);
        for (name, value) in self.consts {
            shader = shader.with(name, value);
        }
        if part == Part::Tile {
            shader = shader
                .with("QUERIES", tile.n_queries)
                .with("SLICE", tile.slice)
                .with("TILE_HEADS", self.tile_heads(tile))
                .with("VALUE_LANES", self.value_fours.next_power_of_two());
        }
        shader
            .piece(include_str!("functions.wgsl"))
            .piece(include_str!("attend_common.wgsl"))
            .piece(self.source)
            .state(Lanes::Four)
    }

    /// Into how many splits many positions go for few rows.
    fn n_splits(&self, tile: Tile, n_rows_max: u32) -> u32 {
        let n_groups = self.n_kv_heads * self.group.div_ceil(self.tile_heads(tile));
        let bytes = self.partial_values(n_rows_max.min(N_ROWS_FEW), 1) * 4;
        let most = (PARTIAL_BYTES_MAX / bytes).clamp(1, N_SPLITS_MAX);
        (N_GROUPS_FULL / n_groups).clamp(1, most)
    }

    /// Values that the splits of so many rows leave.
    fn partial_values(&self, n_rows: u32, n_splits: u32) -> u32 {
        n_rows * self.n_kv_heads * self.group * n_splits * 4 * (self.value_fours + 1)
    }

    /// All shaders for a device with so much memory of a workgroup.
    pub(super) fn shaders(&self, workgroup_bytes_max: u32) -> Vec<Shader> {
        let few = self.tile_of_few(workgroup_bytes_max);
        let many = self.tile_of_many(workgroup_bytes_max);
        let parts = [(Part::Tile, few), (Part::Merge, few), (Part::Append, many)];
        let parts = parts.into_iter().chain([(Part::Tile, many)]);
        parts.map(|(part, tile)| self.shader(part, tile)).collect()
    }

    /// Appends the steps; `params` makes parameters from the number of splits and where these
    /// leave what they have.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for heads that are too wide.
    pub(super) fn compile<P: Params>(
        &self,
        compiler: &mut Compiler<'_>,
        layer: LayerIdx,
        params: impl Fn(u32, u32) -> P,
    ) -> Result<()> {
        if self.value_fours > N_LANES_MAX {
            return Err(Error::Unsupported(format!(
                "the GPU backend attends to at most {} columns of values, and layer {} has {}; \
                 --backend cpu has no limit",
                4 * N_LANES_MAX,
                layer.0,
                4 * self.value_fours
            )));
        }
        let workgroup_bytes_max = compiler.gpu().facts().workgroup_bytes_max;
        let few = self.tile_of_few(workgroup_bytes_max);
        let n_rows_max = compiler.n_rows_max();
        let n_splits = self.n_splits(few, n_rows_max);
        let n_values = self.partial_values(n_rows_max.min(N_ROWS_FEW), n_splits);
        let n_cols = n_values.div_ceil(n_rows_max) as usize;
        let partials = compiler.scratch("partial attention", n_cols)?.first;
        for (seen, n_splits) in ranges(n_splits) {
            let params = params(n_splits, partials);
            let grid = Grid {
                z: Extent::fixed(n_splits),
                ..Grid::new(self.tiles(few), Extent::fixed(self.n_kv_heads))
            };
            compiler
                .step(&self.shader(Part::Tile, few), &params, grid)?
                .over(Over::State(layer))
                .when(1..=N_ROWS_FEW)
                .when_seen(seen.clone());
            if n_splits > 1 {
                let n_heads = Extent::fixed(self.n_kv_heads * self.group);
                let grid = Grid::new(n_heads, Extent::rows(1));
                compiler
                    .step(&self.shader(Part::Merge, few), &params, grid)?
                    .over(Over::State(layer))
                    .when(1..=N_ROWS_FEW)
                    .when_seen(seen);
            }
        }
        self.compile_many(compiler, layer, &params(1, partials))
    }

    fn compile_many<P: Params>(
        &self,
        compiler: &mut Compiler<'_>,
        layer: LayerIdx,
        params: &P,
    ) -> Result<()> {
        let many = self.tile_of_many(compiler.gpu().facts().workgroup_bytes_max);
        let n_appended = self.n_kv_heads * self.key_fours.max(self.value_fours);
        let n_groups = Extent::fixed(n_appended.div_ceil(N_LANES_PLAIN));
        let grids = [
            (Part::Append, Grid::new(n_groups, Extent::rows(1))),
            (Part::Tile, Grid::new(self.tiles(many), Extent::fixed(self.n_kv_heads))),
        ];
        for (part, grid) in grids {
            compiler
                .step(&self.shader(part, many), params, grid)?
                .over(Over::State(layer))
                .when(N_ROWS_FEW + 1..=u32::MAX);
        }
        Ok(())
    }
}

/// Numbers of positions seen, and into how many splits they go.
fn ranges(n_splits: u32) -> Vec<(RangeInclusive<u32>, u32)> {
    let few = n_splits.min(N_SEEN_FEW / N_KEYS);
    let ranges = [
        (0..=N_SEEN_ALONE, 1),
        (N_SEEN_ALONE + 1..=N_SEEN_FEW, few),
        (N_SEEN_FEW + 1..=u32::MAX, n_splits),
    ];
    ranges.into()
}

/// Columns by four.
pub(super) fn fours(n_cols: usize) -> u32 {
    narrow(n_cols.div_ceil(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(n_kv_heads: u32, group: u32, key_fours: u32, value_fours: u32) -> Form {
        Form {
            names: ["tile", "merge", "append"],
            source: "",
            n_kv_heads,
            group,
            key_fours,
            value_fours,
            has_sinks: false,
            has_gate: false,
            consts: [("A", 1), ("B", 1)],
        }
    }

    fn check_tiles(workgroup_bytes_max: u32, group: u32, value_fours: u32) {
        let form = form(1, group, value_fours, value_fours);
        let (few, many) =
            (form.tile_of_few(workgroup_bytes_max), form.tile_of_many(workgroup_bytes_max));
        for tile in [few, many] {
            assert!(tile.workgroup_bytes() <= workgroup_bytes_max, "{tile:?}");
            assert!(tile.n_lanes() >= value_fours, "{tile:?} of {value_fours}");
            assert!(tile.n_lanes() <= N_LANES_MAX);
        }
    }

    #[test]
    fn tiles_fit_the_memory_and_the_invocations_of_a_workgroup() {
        for workgroup_bytes_max in [16 << 10, 32 << 10] {
            for group in [1, 3, 8, 16, 128] {
                let widths = [1, 2, 10, 16, 32, 64, 128, 256];
                let check = |width| check_tiles(workgroup_bytes_max, group, width);
                widths.into_iter().for_each(check);
            }
        }
    }

    #[test]
    fn every_number_of_positions_has_one_range() {
        for n_splits in [1, 5, 64] {
            let ranges = ranges(n_splits);
            for n_seen in [1, 128, 129, 1024, 1025, 1 << 20] {
                let n = ranges.iter().filter(|(seen, _)| seen.contains(&n_seen)).count();
                assert_eq!(n, 1, "{n_seen}");
            }
        }
    }

    #[test]
    fn splits_fill_a_device_and_leave_little() {
        let form = form(2, 8, 64, 64);
        let few = form.tile_of_few(32 << 10);
        assert_eq!(form.n_splits(few, 2048), 64);
        let latent = self::form(1, 128, 144, 128);
        let few = latent.tile_of_few(32 << 10);
        let n_splits = latent.n_splits(few, 2048);
        assert!((8..32).contains(&n_splits), "{n_splits}");
        assert!(latent.partial_values(8, n_splits) * 4 <= PARTIAL_BYTES_MAX);
    }
}
