// Products of a matrix's rows with one input. TEAM neighbouring invocations share OUTS rows of the
// matrix; each takes every TEAM-th unit of columns, UNITS_EACH of a block. The workgroup holds a
// block of the input. The kernel sets `x_at` to the input's offset in `ws`.

const N_TEAMS: u32 = N_INVOCATIONS / TEAM;
const BLOCK_UNITS: u32 = TEAM * UNITS_EACH;
const N_CHUNKS: u32 = OUTS * UNITS_EACH;
const N_SUMS: u32 = OUTS * N_MATRICES;
// Partial sums that remain of each sum after neighbours have added theirs up.
const N_PARTS: u32 = TEAM / WIDTH;
// Quads of a block, and how many of them each invocation loads.
const BLOCK_QUADS: u32 = UNIT_QUADS * BLOCK_UNITS;
const INPUTS_EACH: u32 = (BLOCK_QUADS + N_INVOCATIONS - 1u) / N_INVOCATIONS;

// The lanes of a team read the same four columns of their units at once, so those are adjacent.
var<workgroup> x_block: array<vec4<f32>, BLOCK_QUADS>;
var<workgroup> parts: array<f32, N_TEAMS * N_SUMS * N_PARTS>;
var<private> x_at: u32;
var<private> inputs: array<vec4<f32>, INPUTS_EACH>;

// Stored data of the block, for each of N_MATRICES; in flight while the inputs are staged.
var<private> chunks: array<Chunk, N_CHUNKS * N_MATRICES>;
var<private> affines: array<Affine, N_CHUNKS * N_MATRICES>;

fn x_value(col: u32, n_cols: u32) -> f32 {
    let is_there = col < n_cols;
    return select(0.0, value_at(select(0u, x_at + col, is_there)), is_there);
}

// Returns four values; either all or none of them exist.
fn x_quad(col: u32, n_cols: u32) -> vec4<f32> {
    let is_there = col < n_cols;
    let values = quad_at(select(0u, x_at + col, is_there));
    return select(vec4<f32>(), values, is_there);
}

// Reads this invocation's part of the block from unit `first` on.
fn read_inputs(invocation: u32, first: u32, n_cols: u32) {
    for (var own = 0u; own < INPUTS_EACH; own++) {
        let i = own * N_INVOCATIONS + invocation;
        if i < BLOCK_QUADS {
            let col = first * UNIT_COLS + i * 4u;
            if n_cols % 4u == 0u {
                inputs[own] = x_quad(col, n_cols);
            } else {
                inputs[own] = vec4<f32>(
                    x_value(col, n_cols),
                    x_value(col + 1u, n_cols),
                    x_value(col + 2u, n_cols),
                    x_value(col + 3u, n_cols),
                );
            }
        }
    }
}

// Returns the index of a block's quad in `x_block`.
fn place_of_input(i: u32) -> u32 {
    return i % UNIT_QUADS * BLOCK_UNITS + i / UNIT_QUADS;
}

// Fills `x_block` with the inputs read.
fn share_inputs(invocation: u32) {
    for (var own = 0u; own < INPUTS_EACH; own++) {
        let i = own * N_INVOCATIONS + invocation;
        if i < BLOCK_QUADS {
            x_block[place_of_input(i)] = inputs[own];
        }
    }
}

// Fills `x_block` from unit `first` on.
fn stage(invocation: u32, first: u32, n_cols: u32) {
    read_inputs(invocation, first, n_cols);
    share_inputs(invocation);
}

// Loads the block from unit `first_unit` on of OUTS rows, for matrix number `which`. Rows and units
// after the last read the last one: their inputs are zero, or their sums are ignored.
fn load(kind: u32, matrix: Matrix, first_out: u32, first_unit: u32, lane: u32, which: u32) {
    let last_unit = n_units_of(matrix) - 1u;
    for (var i = 0u; i < UNITS_EACH; i++) {
        let unit = min(first_unit + i * TEAM + lane, last_unit);
        for (var out = 0u; out < OUTS; out++) {
            let row = min(first_out + out, matrix.n_rows - 1u);
            let place = (which * UNITS_EACH + i) * OUTS + out;
            chunks[place] = load_chunk(kind, matrix, row, unit);
            affines[place] = affine_of(kind, matrix, row, unit);
        }
    }
}

// Adds the products of a matrix's loaded data: that of output `out` to sum `which * OUTS + out`.
fn add_products(
    kind: u32,
    matrix: Matrix,
    first_out: u32,
    first_unit: u32,
    lane: u32,
    which: u32,
    sums: ptr<function, array<f32, N_SUMS>>,
) {
    let last_unit = n_units_of(matrix) - 1u;
    for (var i = 0u; i < UNITS_EACH; i++) {
        let unit = min(first_unit + i * TEAM + lane, last_unit);
        var dots: array<f32, OUTS>;
        var x_sum = 0.0;
        for (var quad = 0u; quad < UNIT_QUADS; quad++) {
            let x = x_block[quad * BLOCK_UNITS + i * TEAM + lane];
            x_sum += (x.x + x.y) + (x.z + x.w);
            for (var out = 0u; out < OUTS; out++) {
                let matrix_row = min(first_out + out, matrix.n_rows - 1u);
                let chunk = chunks[(which * UNITS_EACH + i) * OUTS + out];
                let w = quad_of(kind, matrix, matrix_row, unit, chunk, quad);
                dots[out] = dot_onto(w, x, dots[out]);
            }
        }
        for (var out = 0u; out < OUTS; out++) {
            let affine = affines[(which * UNITS_EACH + i) * OUTS + out];
            let place = which * OUTS + out;
            (*sums)[place] = fma(affine.scale, dots[out], (*sums)[place]);
            if has_bias(kind) {
                (*sums)[place] = fma(affine.bias, x_sum, (*sums)[place]);
            }
        }
    }
}

// Stores the sums of all lanes of a team for `total_of`, which must follow a barrier.
fn share(team: u32, lane: u32, sums: ptr<function, array<f32, N_SUMS>>) {
    for (var i = 0u; i < N_SUMS; i++) {
        let part = sum_of_neighbours((*sums)[i]);
        if lane % WIDTH == 0u {
            parts[(team * N_SUMS + i) * N_PARTS + lane / WIDTH] = part;
        }
    }
}

fn total_of(team: u32, sum: u32) -> f32 {
    var total = 0.0;
    for (var part = 0u; part < N_PARTS; part++) {
        total += parts[(team * N_SUMS + sum) * N_PARTS + part];
    }
    return total;
}
