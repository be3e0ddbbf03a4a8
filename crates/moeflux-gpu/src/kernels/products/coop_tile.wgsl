// Products of 128 rows of matrices with 64 * BLOCKS inputs by cooperative matrices. The workgroup
// holds a unit of columns of all of them, in half precision. Each of its subgroups, four per block
// of inputs, sums the products of 32 rows with 64 inputs in single precision; the fragment after
// this one has the sums. The kernel sets `x_at` to the offset of the inputs in `ws`, in quads.

const N_INVOCATIONS: u32 = 128u * BLOCKS;
const N_SUBGROUPS: u32 = 4u * BLOCKS;
const TILE_OUTS: u32 = 128u;
const TILE_INPUTS: u32 = 64u * BLOCKS;
// Quads that an invocation copies: of the inputs, and of a row of the matrix.
const X_QUADS: u32 = TILE_INPUTS * UNIT_QUADS / N_INVOCATIONS;
const W_QUADS: u32 = TILE_OUTS * UNIT_QUADS / N_INVOCATIONS;
// Distance between rows of a tile, in quads: eight rows that are read at once are in different
// banks, and each begins at a multiple of 16 bytes.
const ROW_QUADS: u32 = UNIT_QUADS + 2u;
// Sums that a subgroup exposes at once: 16 inputs, 32 rows of the matrix.
const N_SHOWN: u32 = 512u;

var<workgroup> w_tile: array<vec4<f16>, TILE_OUTS * ROW_QUADS>;
var<workgroup> x_tile: array<vec4<f16>, TILE_INPUTS * ROW_QUADS>;
var<workgroup> shown: array<f32, N_SUBGROUPS * N_SHOWN>;

// Offsets of the inputs that this invocation copies: `input_of(invocation, i)`.
var<private> x_at: array<u32, X_QUADS>;
// Next contents of the tiles, in flight from memory while the current tiles are computed.
var<private> x_next: array<vec4<f32>, X_QUADS>;
var<private> w_next: Chunk;
var<private> affine_next: Affine;
fn input_of(invocation: u32, i: u32) -> u32 {
    return i * (N_INVOCATIONS / UNIT_QUADS) + invocation / UNIT_QUADS;
}

// Row of the tile whose weights an invocation decodes, unless the kernel overrides it.
fn own_out(invocation: u32) -> u32 {
    return invocation % TILE_OUTS;
}

// Loads a unit of the inputs. Loads do not depend on branches, so that all are in flight at once.
// Missing inputs are loaded from a dummy offset and replaced by zeros.
fn load_x(invocation: u32, unit: u32) {
    let quad = unit * UNIT_QUADS + invocation % UNIT_QUADS;
    for (var i = 0u; i < X_QUADS; i++) {
        let is_there = x_at[i] != NONE;
        let values = ws[select(0u, x_at[i] + quad, is_there)];
        x_next[i] = select(vec4<f32>(), values, is_there);
    }
}

// Loads a unit of a row of a matrix. Rows after the last read the last one.
fn load_w(kind: u32, matrix: Matrix, row: u32, unit: u32) {
    let own_row = min(row, matrix.n_rows - 1u);
    w_next = load_chunk(kind, matrix, own_row, unit);
    affine_next = affine_of(kind, matrix, own_row, unit);
}

// Stores the loaded inputs in their tile.
fn keep_x(invocation: u32) {
    for (var i = 0u; i < X_QUADS; i++) {
        let place = input_of(invocation, i) * ROW_QUADS + invocation % UNIT_QUADS;
        x_tile[place] = vec4<f16>(x_next[i]);
    }
}

// Decodes some quads of the loaded row and stores them in the weight tile.
fn keep_quads(kind: u32, matrix: Matrix, row: u32, unit: u32, out: u32, first: u32) {
    let own_row = min(row, matrix.n_rows - 1u);
    for (var i = 0u; i < W_QUADS; i++) {
        let values = quad_of(kind, matrix, own_row, unit, w_next, first + i);
        let w = fma(values, vec4<f32>(affine_next.scale), vec4<f32>(affine_next.bias));
        w_tile[out * ROW_QUADS + first + i] = vec4<f16>(w);
    }
}

// Stores the invocation's own quads. Their index is a constant in each branch.
fn keep_w(kind: u32, matrix: Matrix, row: u32, unit: u32, invocation: u32, out: u32) {
    if invocation < TILE_OUTS {
        keep_quads(kind, matrix, row, unit, out, 0u);
    } else {
        keep_quads(kind, matrix, row, unit, out, UNIT_QUADS - W_QUADS);
    }
}

// Position of an invocation, passed to the kernel's `take_sums`.
struct Stand {
    subgroup: u32,
    lane: u32,
    // The tile.
    group: vec3<u32>,
}

// Returns the tile's input for row `i` of 16; `first` is the argument of `take_sums`.
fn input_shown(stand: Stand, first: u32, i: u32) -> u32 {
    return stand.subgroup / 4u * 64u + first + i;
}

// Returns the first of the 32 tile rows that a subgroup exposes.
fn out_shown(stand: Stand) -> u32 {
    return stand.subgroup % 4u * 32u;
}

// Returns the product of row `i` of 16 with one of the 32 rows of the matrix.
fn sum_shown(stand: Stand, i: u32, out: u32) -> f32 {
    return shown[stand.subgroup * N_SHOWN + i * 32u + out];
}
