// Products of 64 rows of matrices with 8 * PER_LANE inputs. The workgroup holds a unit of columns
// of all of them; each of its 8 x 8 invocations sums 8 x PER_LANE products in registers, those of
// every eighth row with every eighth input. The kernel sets `x_at` to the offsets of inputs in
// `ws`.

const N_INVOCATIONS: u32 = 64u;
const TILE_OUTS: u32 = 64u;
const TILE_INPUTS: u32 = 8u * PER_LANE;
const N_SUMS: u32 = 8u * PER_LANE;

var<workgroup> w_tile: array<vec4<f32>, TILE_OUTS * UNIT_QUADS>;
var<workgroup> x_tile: array<vec4<f32>, TILE_INPUTS * UNIT_QUADS>;
// Offsets of the inputs that this invocation copies: `input_of(invocation, i)`.
var<private> x_at: array<u32, PER_LANE>;

fn input_of(invocation: u32, i: u32) -> u32 {
    return i * 8u + invocation / UNIT_QUADS;
}

// Rows that are read at once differ in their lower three bits: this keeps them in different banks.
fn place_in_tile(row: u32, quad: u32) -> u32 {
    return row * UNIT_QUADS + (quad ^ (row & 7u));
}

// Next contents of the tiles, in flight from memory while the current tiles are computed.
var<private> x_next: array<vec4<f32>, PER_LANE>;
var<private> w_next: Chunk;
var<private> affine_next: Affine;

// Loads a unit of the inputs. Loads do not depend on branches, so that all are in flight at once.
// Missing inputs and columns are loaded from a dummy offset and replaced by zeros.
fn load_x(invocation: u32, unit: u32, n_cols: u32) {
    let col = unit * UNIT_COLS + invocation % UNIT_QUADS * 4u;
    if n_cols % 4u == 0u {
        for (var i = 0u; i < PER_LANE; i++) {
            let is_there = x_at[i] != NONE && col < n_cols;
            let at = select(0u, x_at[i] + col, is_there);
            let values = vec4<f32>(ws[at], ws[at + 1u], ws[at + 2u], ws[at + 3u]);
            x_next[i] = select(vec4<f32>(), values, is_there);
        }
        return;
    }
    for (var i = 0u; i < PER_LANE; i++) {
        for (var j = 0u; j < 4u; j++) {
            let is_there = x_at[i] != NONE && col + j < n_cols;
            let value = ws[select(0u, x_at[i] + col + j, is_there)];
            x_next[i][j] = select(0.0, value, is_there);
        }
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
    for (var i = 0u; i < PER_LANE; i++) {
        let place = place_in_tile(input_of(invocation, i), invocation % UNIT_QUADS);
        x_tile[place] = x_next[i];
    }
}

// Decodes the loaded row of a matrix into row `out` of the weight tile.
fn keep_w(kind: u32, matrix: Matrix, row: u32, unit: u32, out: u32) {
    let own_row = min(row, matrix.n_rows - 1u);
    for (var quad = 0u; quad < UNIT_QUADS; quad++) {
        let values = quad_of(kind, matrix, own_row, unit, w_next, quad);
        w_tile[place_in_tile(out, quad)] =
            fma(values, vec4<f32>(affine_next.scale), vec4<f32>(affine_next.bias));
    }
}

// Adds the products of the tiles: sum `i * PER_LANE + j` is that of row `i * 8 + invocation % 8`
// and input `j * 8 + invocation / 8`.
fn add_tile(invocation: u32, sums: ptr<function, array<f32, N_SUMS>>) {
    let out = invocation % 8u;
    let input = invocation / 8u;
    for (var quad = 0u; quad < UNIT_QUADS; quad++) {
        var x: array<vec4<f32>, PER_LANE>;
        for (var j = 0u; j < PER_LANE; j++) {
            x[j] = x_tile[place_in_tile(j * 8u + input, quad)];
        }
        for (var i = 0u; i < 8u; i++) {
            let w = w_tile[place_in_tile(i * 8u + out, quad)];
            for (var j = 0u; j < PER_LANE; j++) {
                let place = i * PER_LANE + j;
                (*sums)[place] = dot_onto(w, x[j], (*sums)[place]);
            }
        }
    }
}
