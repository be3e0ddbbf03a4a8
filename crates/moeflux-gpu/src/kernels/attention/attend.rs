//! Common part of attention with keys and values and attention with latents: the choice of tiles,
//! and the steps for few and for many rows.
//!
//! With few rows, one step takes the rows' own keys from the rows and also stores them. If many
//! positions are seen, they are split among workgroups, and a second step merges the splits. A
//! single row has its own kernel. With many rows, a step stores the keys first. **Invariant:**
//! every key is read once by all queries of a tile.

use std::ops::RangeInclusive;

use moeflux::provider::error::{Error, Remedy, Result};
use moeflux::provider::ids::LayerIdx;

use crate::compiler::PlanCompiler;
use crate::kernels::products::matvec::neighbours;
use crate::params::{Params, WgslStruct, narrow};
use crate::shader::{Shader, VectorWidth};
use crate::step::{Grid, GridExtent, Over, SPLITS_OF_SEEN, Splits};

/// Maximum number of rows of a segment that count as few.
const N_ROWS_FEW: u32 = 8;
/// Keys of a block, as in `attend_tile.wgsl`.
const N_KEYS: u32 = 64;
const N_KEY_LANES: u32 = N_KEYS / 4;
const N_LANES_MAX: u32 = 256;
/// Workgroups that fill a device.
const N_GROUPS_FULL: u32 = 256;
const N_SPLITS_MAX: u32 = 128;
/// Upper bound on the bytes of partial results.
const PARTIAL_BYTES_MAX: u32 = 32 << 20;
/// Answer rows whose splits are stored side by side, within the limit above.
const N_ANSWERS_BESIDE: u32 = 64;
/// Names of the constants that map positions to splits.
const SEEN_NAMES: [(&str, &str); SPLITS_OF_SEEN.len()] = [
    ("SEEN_0", "SPLITS_0"),
    ("SEEN_1", "SPLITS_1"),
    ("SEEN_2", "SPLITS_2"),
    ("SEEN_3", "SPLITS_3"),
];

/// Invocations of the kernel that stores keys.
const N_LANES_PLAIN: u32 = 64;
/// Columns per workgroup of the kernel that merges splits.
const MERGED_COLS: u32 = 64;

/// Upper bound on query heads per key head for the single-row kernel: many heads work as well as
/// many rows.
const GROUP_OF_ROW_MAX: u32 = 16;
/// Upper bound on those heads per workgroup. With 8, registers run short; with 2, keys are read too
/// often.
const HEADS_OF_ROW_MAX: u32 = 4;
/// Invocations that share a key there, and the number of partial sums of values.
const ROW_TEAM: u32 = 16;
const VALUE_TEAMS_MAX: u32 = 8;

/// Description of an attention op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionKernels {
    /// Names of the kernels: attention, merging of splits, storing of keys, attention of one row.
    pub(crate) names: [&'static str; 4],
    /// Parameters of the op.
    pub(crate) params: WgslStruct,
    /// Source file of the op.
    pub(crate) source: &'static str,
    pub(crate) n_kv_heads: u32,
    /// Query heads that share a key head.
    pub(crate) group: u32,
    /// Columns of keys and of values in units of four.
    pub(crate) key_fours: u32,
    pub(crate) value_fours: u32,
    pub(crate) has_sinks: bool,
    pub(crate) has_gate: bool,
    /// Columns of the rows' lists of positions; 0 if there are none.
    pub(crate) n_chosen: u32,
    /// Constants of the source file.
    pub(crate) consts: [(&'static str, u32); 2],
}

/// Arrangement of queries in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryTile {
    n_queries: u32,
    /// Columns, in units of four, that are loaded together.
    slice: u32,
    /// Whether its rows' own keys come from the rows.
    from_rows: bool,
}

impl QueryTile {
    fn n_lanes(self) -> u32 {
        N_KEY_LANES * self.n_queries.min(N_LANES_MAX / N_KEY_LANES)
    }

    fn workgroup_bytes(self) -> u32 {
        let slices = (self.n_queries + N_KEYS) * (self.slice + 1);
        let weights = self.n_queries * (N_KEY_LANES + 1);
        16 * slices.max(weights) + 4 * self.n_queries * (N_KEY_LANES + 1)
    }
}

/// Arrangement of the queries of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowTile {
    /// Heads of a workgroup; a power of two.
    heads: u32,
    keys_each: u32,
    /// Invocations that add up their sums without workgroup memory.
    width: u32,
}

impl RowTile {
    fn workgroup_bytes(self, kernels: &AttentionKernels) -> u32 {
        let n_keys = N_LANES_MAX / ROW_TEAM * self.keys_each;
        let n_parts = ROW_TEAM / self.width;
        let fours = 16 * kernels.key_fours.max(kernels.value_fours);
        self.heads * (fours + 4 * n_keys * (n_parts + 2) + 4)
    }
}

impl AttentionKernels {
    /// Returns the tile for a single row, unless it has too many heads.
    fn tile_of_row(&self, limits: WorkgroupLimits) -> Option<RowTile> {
        if self.n_chosen > 0 {
            return None;
        }
        let heads = self.group.next_power_of_two().min(HEADS_OF_ROW_MAX);
        let smallest = limits.subgroup_sizes.map_or(1, |(smallest, _)| smallest.max(1));
        let mut tile = RowTile { heads, keys_each: 2, width: smallest.min(ROW_TEAM) };
        while tile.workgroup_bytes(self) > limits.workgroup_bytes_max && tile.heads > 1 {
            tile.heads /= 2;
        }
        let fits = tile.workgroup_bytes(self) <= limits.workgroup_bytes_max;
        (fits && self.group <= GROUP_OF_ROW_MAX).then_some(tile)
    }

    fn row_shader(&self, tile: RowTile) -> Shader {
        let value_lanes = self.value_fours.next_power_of_two();
        let shader = self
            .described(self.names[3], include_str!("attend_row.wgsl"), N_LANES_MAX)
            .with("FROM_ROWS", true)
            .with("HEADS", tile.heads)
            .with("KEYS_EACH", tile.keys_each)
            .with("TEAM", ROW_TEAM)
            .with("WIDTH", tile.width)
            .with("VALUE_LANES", value_lanes)
            .with("VALUE_TEAMS", (N_LANES_MAX / value_lanes).min(VALUE_TEAMS_MAX))
            .fragment(neighbours(tile.width));
        self.with_fragments(shader)
    }

    /// Returns the tile for few rows.
    pub(crate) fn tile_of_few(&self, workgroup_bytes_max: u32) -> QueryTile {
        let n_queries = self.group.next_power_of_two().clamp(4, 16);
        // Every four columns of values need an invocation.
        let least = (self.value_fours.next_power_of_two() / N_KEY_LANES).min(16);
        let n_queries = n_queries.max(least);
        let tile = QueryTile { n_queries, slice: 16, from_rows: true };
        if tile.workgroup_bytes() <= workgroup_bytes_max {
            tile
        } else {
            QueryTile { slice: 8, ..tile }
        }
    }

    /// Returns the tile for many rows: as many queries as registers can hold sums for.
    pub(crate) fn tile_of_many(&self, workgroup_bytes_max: u32) -> QueryTile {
        let n_queries = (4096 / self.value_fours.next_power_of_two()).clamp(16, 64);
        let mut tile = QueryTile { n_queries, slice: 8, from_rows: false };
        while tile.n_queries > 16 && tile.workgroup_bytes() > workgroup_bytes_max {
            tile.n_queries /= 2;
        }
        tile
    }

    fn tile_heads(&self, tile: QueryTile) -> u32 {
        // Rows with lists of their own share no keys.
        if self.n_chosen > 0 { tile.n_queries } else { self.group.min(tile.n_queries) }
    }

    /// Returns the workgroups along x.
    fn tiles(&self, tile: QueryTile) -> GridExtent {
        let heads = self.tile_heads(tile);
        GridExtent::rows_times(self.group.div_ceil(heads), tile.n_queries / heads)
    }

    fn described(&self, name: &'static str, text: &'static str, n_lanes: u32) -> Shader {
        let mut shader = Shader::new(name, self.params, text)
            .with("N_LANES", n_lanes)
            .with("N_KV_HEADS", self.n_kv_heads)
            .with("GROUP", self.group)
            .with("KEY_FOURS", self.key_fours)
            .with("VALUE_FOURS", self.value_fours)
            .with("HAS_SINKS", self.has_sinks)
            .with("N_CHOSEN", self.n_chosen)
            .with("HAS_GATE", self.has_gate);
        for (name, value) in self.consts {
            shader = shader.with(name, value);
        }
        for ((seen, splits), (n_seen, n_splits)) in SEEN_NAMES.into_iter().zip(SPLITS_OF_SEEN) {
            shader = shader.with(seen, n_seen).with(splits, n_splits);
        }
        shader
    }

    fn with_fragments(&self, shader: Shader) -> Shader {
        shader
            .fragment(include_str!("../shared/functions.wgsl"))
            .fragment(include_str!("fours.wgsl"))
            .fragment(include_str!("attend_common.wgsl"))
            .fragment(self.source)
            .state(VectorWidth::Four)
    }

    fn tile_shader(&self, tile: QueryTile) -> Shader {
        let shader = self
            .described(self.names[0], include_str!("attend_tile.wgsl"), tile.n_lanes())
            .with("FROM_ROWS", tile.from_rows)
            .with("QUERIES", tile.n_queries)
            .with("SLICE", tile.slice)
            .with("TILE_HEADS", self.tile_heads(tile))
            .with("VALUE_LANES", self.value_fours.next_power_of_two());
        self.with_fragments(shader)
    }

    fn merge_shader(&self) -> Shader {
        let shader = self
            .described(self.names[1], include_str!("attend_merge.wgsl"), N_LANES_MAX)
            .with("FROM_ROWS", false)
            .with("COLS", MERGED_COLS)
            .with("SPLITS_MAX", N_SPLITS_MAX);
        self.with_fragments(shader)
    }

    fn append_shader(&self) -> Shader {
        let shader = self
            .described(self.names[2], include_str!("attend_append.wgsl"), N_LANES_PLAIN)
            .with("FROM_ROWS", false);
        self.with_fragments(shader)
    }

    /// Returns the number of splits of many positions, given the workgroups that each process all
    /// of them.
    fn n_splits(&self, n_groups: u32, n_rows: u32) -> u32 {
        let most = PARTIAL_BYTES_MAX / (self.partial_values(n_rows, 1) * 4);
        (N_GROUPS_FULL / n_groups).clamp(1, most.clamp(1, N_SPLITS_MAX))
    }

    /// Returns the number of values that the splits of `n_rows` rows write.
    fn partial_values(&self, n_rows: u32, n_splits: u32) -> u32 {
        n_rows * self.n_kv_heads * self.group * n_splits * 4 * (self.value_fours + 1)
    }

    /// Returns all shaders for a device with these limits.
    pub(crate) fn shaders(&self, limits: WorkgroupLimits) -> Vec<Shader> {
        let few = self.tile_of_few(limits.workgroup_bytes_max);
        let many = self.tile_of_many(limits.workgroup_bytes_max);
        let row = self.tile_of_row(limits).map(|tile| self.row_shader(tile));
        let parts = [
            self.tile_shader(few),
            self.tile_shader(many),
            self.merge_shader(),
            self.append_shader(),
        ];
        parts.into_iter().chain(row).collect()
    }

    /// Returns the capacity for splits, in values: enough for one part of any of these kinds, and
    /// for many answers within the limit.
    fn n_values_max(&self, kinds: &[FewRowsKernel], n_rows_max: u32) -> u32 {
        let n_values = |kind: &FewRowsKernel| {
            let least = self.partial_values(n_rows_max.min(*kind.rows.end()), kind.n_splits);
            let of_row = self.partial_values(1, kind.n_splits);
            let n_beside = PARTIAL_BYTES_MAX / (4 * of_row);
            least.max(of_row * n_beside.min(N_ANSWERS_BESIDE).min(n_rows_max))
        };
        kinds.iter().map(n_values).max().unwrap_or(0)
    }

    /// Appends the steps; `params` creates parameters from the largest number of splits and the
    /// offset of their results.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] for heads that are too wide.
    pub(crate) fn compile<P: Params>(
        &self,
        compiler: &mut PlanCompiler<'_>,
        layer: LayerIdx,
        params: impl Fn(u32, u32) -> P,
    ) -> Result<()> {
        if self.value_fours > N_LANES_MAX {
            let problem = format!(
                "supports attention with at most {} value columns, but layer {} has {}",
                4 * N_LANES_MAX,
                layer.0,
                4 * self.value_fours
            );
            let (device, remedy) = ("the GPU backend".to_owned(), Some(Remedy::Cpu));
            return Err(Error::Device { device, problem, remedy });
        }
        let limits = WorkgroupLimits {
            workgroup_bytes_max: compiler.gpu().facts().workgroup_bytes_max,
            subgroup_sizes: compiler.subgroup_sizes(),
        };
        let n_rows_max = compiler.n_rows_max();
        let (few, row) = (self.tile_of_few(limits.workgroup_bytes_max), self.tile_of_row(limits));
        let n_few = n_rows_max.min(N_ROWS_FEW);
        let n_groups = self.n_kv_heads * self.group.div_ceil(self.tile_heads(few));
        let mut kinds = vec![FewRowsKernel {
            shader: self.tile_shader(few),
            x: self.tiles(few),
            rows: if row.is_some() { 2..=N_ROWS_FEW } else { 1..=N_ROWS_FEW },
            n_splits: self.n_splits(n_groups, n_few),
        }];
        if let Some(row) = row {
            let n_tiles = self.group.div_ceil(row.heads);
            kinds.push(FewRowsKernel {
                shader: self.row_shader(row),
                x: GridExtent::fixed(n_tiles),
                rows: 1..=1,
                n_splits: self.n_splits(self.n_kv_heads * n_tiles, 1),
            });
        }
        let n_cols = self.n_values_max(&kinds, n_rows_max).div_ceil(n_rows_max);
        let partials = compiler.scratch("partial attention", n_cols as usize)?.first;
        for kind in &kinds {
            let n_max = kind.n_splits;
            let n_values = self.partial_values(1, 1);
            let splits = Splits { n_max, n_values, n_values_max: n_cols * n_rows_max };
            self.compile_few(compiler, layer, (kind, splits, &params(n_max, partials)))?;
        }
        if n_rows_max <= N_ROWS_FEW {
            return Ok(());
        }
        self.compile_many(compiler, layer, &params(1, partials))
    }

    fn compile_few<P: Params>(
        &self,
        compiler: &mut PlanCompiler<'_>,
        layer: LayerIdx,
        (kind, splits, params): (&FewRowsKernel, Splits, &P),
    ) -> Result<()> {
        let grid = Grid::new(kind.x, GridExtent::fixed(self.n_kv_heads));
        compiler
            .step(&kind.shader, params, grid)?
            .over(Over::State(layer))
            .when(kind.rows.clone())
            .parts_along_y()
            .splits(splits);
        if kind.n_splits > 1 {
            let n_heads = GridExtent::fixed(self.n_kv_heads * self.group);
            let grid = Grid {
                z: GridExtent::fixed((4 * self.value_fours).div_ceil(MERGED_COLS)),
                ..Grid::new(n_heads, GridExtent::rows(1))
            };
            compiler
                .step(&self.merge_shader(), params, grid)?
                .over(Over::State(layer))
                .when(kind.rows.clone())
                .parts_along_y()
                .merges(splits);
        }
        Ok(())
    }

    fn compile_many<P: Params>(
        &self,
        compiler: &mut PlanCompiler<'_>,
        layer: LayerIdx,
        params: &P,
    ) -> Result<()> {
        let many = self.tile_of_many(compiler.gpu().facts().workgroup_bytes_max);
        let n_appended = self.n_kv_heads * self.key_fours.max(self.value_fours);
        let n_groups = GridExtent::fixed(n_appended.div_ceil(N_LANES_PLAIN));
        let grids = [
            (self.append_shader(), Grid::new(n_groups, GridExtent::rows(1))),
            (
                self.tile_shader(many),
                Grid::new(self.tiles(many), GridExtent::fixed(self.n_kv_heads)),
            ),
        ];
        let rows = N_ROWS_FEW + 1..=u32::MAX;
        let [(append, append_grid), (attend, grid)] = grids;
        compiler.step(&append, params, append_grid)?.over(Over::State(layer)).when(rows.clone());
        compiler.step(&attend, params, grid)?.over(Over::State(layer)).when(rows).parts_along_y();
        Ok(())
    }
}

/// Device properties that kernels depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkgroupLimits {
    pub(crate) workgroup_bytes_max: u32,
    /// `None` if kernels may not use subgroups.
    pub(crate) subgroup_sizes: Option<(u32, u32)>,
}

/// A kernel for few rows.
#[derive(Clone, Debug)]
struct FewRowsKernel {
    shader: Shader,
    /// Workgroups along x.
    x: GridExtent,
    rows: RangeInclusive<u32>,
    /// Upper bound on splits.
    n_splits: u32,
}

/// Returns the number of columns in units of four.
pub(crate) fn fours(n_cols: usize) -> u32 {
    narrow(n_cols.div_ceil(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels(n_kv_heads: u32, group: u32, key_fours: u32, value_fours: u32) -> AttentionKernels {
        AttentionKernels {
            names: ["tile", "merge", "append", "row"],
            params: WgslStruct(""),
            source: "",
            n_kv_heads,
            group,
            key_fours,
            value_fours,
            has_sinks: false,
            has_gate: false,
            n_chosen: 0,
            consts: [("A", 1), ("B", 1)],
        }
    }

    fn check_tiles(workgroup_bytes_max: u32, group: u32, value_fours: u32) {
        let kernels = kernels(1, group, value_fours, value_fours);
        let (few, many) =
            (kernels.tile_of_few(workgroup_bytes_max), kernels.tile_of_many(workgroup_bytes_max));
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
    fn splits_fill_a_device_and_leave_little() {
        let kernels = kernels(2, 8, 64, 64);
        assert_eq!(kernels.n_splits(2, 8), 128);
        let latent = self::kernels(1, 128, 144, 128);
        let n_splits = latent.n_splits(8, 8);
        assert!((8..=32).contains(&n_splits), "{n_splits}");
        assert!(latent.partial_values(8, n_splits) * 4 <= PARTIAL_BYTES_MAX);
    }

    #[test]
    fn the_kernel_of_one_row_fits_any_workgroup() {
        for workgroup_bytes_max in [16 << 10, 32 << 10] {
            for subgroup_sizes in [None, Some((4, 8)), Some((32, 32)), Some((64, 128))] {
                let limits = WorkgroupLimits { workgroup_bytes_max, subgroup_sizes };
                for (group, fours) in [(1, 1), (3, 10), (7, 64), (8, 64), (16, 256)] {
                    let kernels = kernels(2, group, fours, fours);
                    let tile = kernels.tile_of_row(limits).unwrap();
                    assert!(tile.workgroup_bytes(&kernels) <= workgroup_bytes_max, "{tile:?}");
                    assert!(N_LANES_MAX / tile.heads >= N_LANES_MAX / ROW_TEAM * tile.keys_each);
                }
                assert!(kernels(1, 17, 64, 64).tile_of_row(limits).is_none());
            }
        }
    }
}
