// Products of 128 rows of matrices with 64 * BLOCKS inputs by cooperative matrices. The workgroup
// holds a unit of columns of all of them, in half precision; each of its subgroups, four for each
// block of inputs, sums the products of 32 rows with 64 inputs in single precision: the piece
// behind this one has the sums. The kernel says in `x_at` where inputs begin in `ws`, in quads.

const N_INVOCATIONS: u32 = 128u * BLOCKS;
const N_SUBGROUPS: u32 = 4u * BLOCKS;
const TILE_OUTS: u32 = 128u;
const TILE_INPUTS: u32 = 64u * BLOCKS;
// Quads of the inputs that an invocation copies, and of the row of a matrix.
const X_QUADS: u32 = TILE_INPUTS * UNIT_QUADS / N_INVOCATIONS;
const W_QUADS: u32 = TILE_OUTS * UNIT_QUADS / N_INVOCATIONS;
// From one row of a tile to the next, in quads: eight rows that are read at once lie in different
// banks, and each begins at a multiple of 16 bytes.
const ROW_QUADS: u32 = UNIT_QUADS + 2u;
// Sums that a subgroup shows at once: 16 inputs, 32 rows of the matrix.
const N_SHOWN: u32 = 512u;

var<workgroup> w_tile: array<vec4<f16>, TILE_OUTS * ROW_QUADS>;
var<workgroup> x_tile: array<vec4<f16>, TILE_INPUTS * ROW_QUADS>;
var<workgroup> shown: array<f32, N_SUBGROUPS * N_SHOWN>;

// Of the inputs that this invocation copies: `input_of(invocation, i)`.
var<private> x_at: array<u32, X_QUADS>;
// What the tiles hold next: on its way from memory while the present tiles are computed.
var<private> x_next: array<vec4<f32>, X_QUADS>;
var<private> w_next: Chunk;
var<private> affine_next: Affine;
fn input_of(invocation: u32, i: u32) -> u32 {
    return i * (N_INVOCATIONS / UNIT_QUADS) + invocation / UNIT_QUADS;
}

// Row of the tile that an invocation makes weights of, unless the kernel says otherwise.
fn own_out(invocation: u32) -> u32 {
    return invocation % TILE_OUTS;
}

// Loads a unit of the inputs. Loads do not depend on branches, so that all are on their way at
// once; those of inputs that are not there go elsewhere and are not used.
fn load_x(invocation: u32, unit: u32) {
    let quad = unit * UNIT_QUADS + invocation % UNIT_QUADS;
    for (var i = 0u; i < X_QUADS; i++) {
        let is_there = x_at[i] != NONE;
        let values = ws[select(0u, x_at[i] + quad, is_there)];
        x_next[i] = select(vec4<f32>(), values, is_there);
    }
}

// Loads a unit of a row of a matrix; for a row behind the last, of the last.
fn load_w(kind: u32, matrix: Matrix, row: u32, unit: u32) {
    let own_row = min(row, matrix.n_rows - 1u);
    w_next = load_chunk(kind, matrix, own_row, unit);
    affine_next = affine_of(kind, matrix, own_row, unit);
}

// Puts what was loaded into the tiles: the inputs,
fn keep_x(invocation: u32) {
    for (var i = 0u; i < X_QUADS; i++) {
        let place = input_of(invocation, i) * ROW_QUADS + invocation % UNIT_QUADS;
        x_tile[place] = vec4<f16>(x_next[i]);
    }
}

// some quads of a row of a matrix, as weights,
fn keep_quads(kind: u32, matrix: Matrix, row: u32, unit: u32, out: u32, first: u32) {
    let own_row = min(row, matrix.n_rows - 1u);
    for (var i = 0u; i < W_QUADS; i++) {
        let values = quad_of(kind, matrix, own_row, unit, w_next, first + i);
        let w = fma(values, vec4<f32>(affine_next.scale), vec4<f32>(affine_next.bias));
        w_tile[out * ROW_QUADS + first + i] = vec4<f16>(w);
    }
}

// and those that are the invocation's own. Which they are is a constant in each branch.
fn keep_w(kind: u32, matrix: Matrix, row: u32, unit: u32, invocation: u32, out: u32) {
    if invocation < TILE_OUTS {
        keep_quads(kind, matrix, row, unit, out, 0u);
    } else {
        keep_quads(kind, matrix, row, unit, out, UNIT_QUADS - W_QUADS);
    }
}

// Where an invocation stands: what the kernel's `take_sums` is told.
struct Stand {
    subgroup: u32,
    lane: u32,
    // The tile.
    group: vec3<u32>,
}

// Input of the tile that row `i` of 16 is; `first` is what `take_sums` is told.
fn input_shown(stand: Stand, first: u32, i: u32) -> u32 {
    return stand.subgroup / 4u * 64u + first + i;
}

// First of the 32 rows of the tile that a subgroup shows.
fn out_shown(stand: Stand) -> u32 {
    return stand.subgroup % 4u * 32u;
}

// The product of row `i` of 16 with one of the 32 rows of the matrix.
fn sum_shown(stand: Stand, i: u32, out: u32) -> f32 {
    return shown[stand.subgroup * N_SHOWN + i * 32u + out];
}
