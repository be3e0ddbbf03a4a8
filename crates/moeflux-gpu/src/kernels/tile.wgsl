// Products of 64 rows of matrices with 8 * PER_LANE inputs. The workgroup holds a unit of columns
// of all of them; each of its 8 x 8 invocations sums 8 x PER_LANE products in registers, those of
// every eighth row with every eighth input. The kernel says in `x_at` where inputs begin in `ws`.

const N_INVOCATIONS: u32 = 64u;
const TILE_OUTS: u32 = 64u;
const TILE_INPUTS: u32 = 8u * PER_LANE;
const N_SUMS: u32 = 8u * PER_LANE;

var<workgroup> w_tile: array<vec4<f32>, TILE_OUTS * UNIT_QUADS>;
var<workgroup> x_tile: array<vec4<f32>, TILE_INPUTS * UNIT_QUADS>;
// Of the inputs that this invocation copies: `input_of(invocation, i)`.
var<private> x_at: array<u32, PER_LANE>;

fn input_of(invocation: u32, i: u32) -> u32 {
    return i * 8u + invocation / UNIT_QUADS;
}

// Rows that are read at once differ in their lower three bits: this keeps them in different banks.
fn place_in_tile(row: u32, quad: u32) -> u32 {
    return row * UNIT_QUADS + (quad ^ (row & 7u));
}

// Copies a unit of the inputs.
fn fill_x(invocation: u32, unit: u32, n_cols: u32) {
    let quad = invocation % UNIT_QUADS;
    let col = unit * UNIT_COLS + quad * 4u;
    for (var i = 0u; i < PER_LANE; i++) {
        var values = vec4<f32>();
        let at = x_at[i] + col;
        if x_at[i] != NONE && col + 3u < n_cols {
            values = vec4<f32>(ws[at], ws[at + 1u], ws[at + 2u], ws[at + 3u]);
        } else if x_at[i] != NONE {
            for (var j = 0u; j < 4u; j++) {
                if col + j < n_cols {
                    values[j] = ws[at + j];
                }
            }
        }
        x_tile[place_in_tile(input_of(invocation, i), quad)] = values;
    }
}

// Copies a unit of a row of a matrix, as weights, to row `out` of the tile.
fn fill_w(kind: u32, matrix: Matrix, row: u32, unit: u32, out: u32) {
    if row >= matrix.n_rows {
        for (var quad = 0u; quad < UNIT_QUADS; quad++) {
            w_tile[place_in_tile(out, quad)] = vec4<f32>();
        }
        return;
    }
    let chunk = load_chunk(kind, matrix, row, unit);
    let affine = affine_of(kind, matrix, row, unit);
    for (var quad = 0u; quad < UNIT_QUADS; quad++) {
        let values = quad_of(kind, matrix, row, unit, chunk, quad);
        w_tile[place_in_tile(out, quad)] =
            fma(values, vec4<f32>(affine.scale), vec4<f32>(affine.bias));
    }
}

// Adds the products of what is in the tiles: sum `i * PER_LANE + j` is that of row
// `i * 8 + invocation % 8` and input `j * 8 + invocation / 8`.
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
