// Products of rows with several matrices in one dispatch, outputs along x and rows along y. Each
// workgroup has outputs of one matrix. With HAS_NORM, the row is normed first. If N_MATRICES is
// two, the first product is a gate and the second its multiplier, and they share workgroups. With
// HAS_SUM, the only product is added to a residual.

struct ProductOffsets {
    codes: u32,
    scales: u32,
    biases: u32,
    n_outputs: u32,
    // Offset of the outputs.
    out: u32,
}

const HAS_PAIR: bool = N_MATRICES == 2u;

// The batch row of this workgroup.
var<private> row: u32;

fn out_stride_of(idx: u32) -> u32 {
    switch idx {
        case 0u: {
            return OUT_STRIDE_0;
        }
        case 1u: {
            return OUT_STRIDE_1;
        }
        case 2u: {
            return OUT_STRIDE_2;
        }
        default: {
            return OUT_STRIDE_3;
        }
    }
}

fn out_at(idx: u32) -> u32 {
    return part_of(idx).out + row * out_stride_of(idx);
}

fn part_of(idx: u32) -> ProductOffsets {
    switch idx {
        case 0u: {
            return params.part_0;
        }
        case 1u: {
            return params.part_1;
        }
        case 2u: {
            return params.part_2;
        }
        default: {
            return params.part_3;
        }
    }
}

fn matrix_of(part: ProductOffsets) -> Matrix {
    return Matrix(part.codes, part.scales, part.biases, part.n_outputs, params.n_cols);
}

// Returns the workgroups of a product; the second of a pair has none of its own.
fn n_groups_of(idx: u32) -> u32 {
    let n = (part_of(idx).n_outputs + N_TEAMS * OUTS - 1u) / (N_TEAMS * OUTS);
    return select(n, 0u, HAS_PAIR && idx == 1u);
}

fn x_first() -> u32 {
    return params.x + row * X_STRIDE;
}

// Returns column `first` of the row and the next three; those after the last are zero.
fn input_quad(first: u32) -> vec4<f32> {
    if IS_QUADS {
        let is_there = first < params.n_cols;
        return select(vec4<f32>(), quad_at(x_first() + select(0u, first, is_there)), is_there);
    }
    var values: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        let is_there = first + i < params.n_cols;
        values[i] = select(0.0, value_at(x_first() + select(0u, first + i, is_there)), is_there);
    }
    return values;
}

fn gain_quad(first: u32) -> vec4<f32> {
    if IS_QUADS {
        return vectors_quad(params.gain + min(first, params.n_cols - 4u));
    }
    var values: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        values[i] = vectors_value(params.gain + min(first + i, params.n_cols - 1u));
    }
    return values;
}

// Gains of the inputs that this invocation loads for a block.
var<private> gains: array<vec4<f32>, INPUTS_EACH>;
// Residual of the output that this invocation stores.
var<private> residual: f32;

// Reads the row from unit `first` on.
fn read_row(invocation: u32, first: u32) {
    for (var own = 0u; own < INPUTS_EACH; own++) {
        let i = own * N_INVOCATIONS + invocation;
        inputs[own] = input_quad(first * UNIT_COLS + i * 4u);
        if HAS_NORM {
            gains[own] = gain_quad(first * UNIT_COLS + i * 4u);
        }
    }
}

// Returns the factor of a normed row, whose first block has been read. The order of the sum depends
// on the row's length alone, so the factor is the same in all plans.
fn factor_of(lanes: Lanes) -> f32 {
    var squares = 0.0;
    for (var own = 0u; own < INPUTS_EACH; own++) {
        squares += dot(inputs[own], inputs[own]);
    }
    let behind = INPUTS_EACH * N_INVOCATIONS + lanes.lane;
    for (var col = 4u * behind; col < params.n_cols; col += 4u * N_INVOCATIONS) {
        let values = input_quad(col);
        squares += dot(values, values);
    }
    return 1.0 / root_of(sum_of_lanes(squares, lanes) / f32(params.n_cols) + params.epsilon);
}

// Fills `x_block` with the row as it is multiplied. The values are the same whether products share
// the norm's dispatch or read the normed row. One workgroup writes that row, as others read it too.
fn share_row(invocation: u32, group: u32, first: u32, factor: f32) {
    for (var own = 0u; own < INPUTS_EACH; own++) {
        let i = own * N_INVOCATIONS + invocation;
        if i < BLOCK_QUADS {
            var values = inputs[own];
            if HAS_NORM {
                values = values * factor * gains[own];
            }
            x_block[place_of_input(i)] = values;
            if HAS_NORM && group == 0u {
                leave_normed(first * UNIT_COLS + i * 4u, values);
            }
        }
    }
}

fn leave_normed(first: u32, values: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if first + i < params.n_cols {
            set_value(params.normed + row * NORMED_STRIDE + first + i, values[i]);
        }
    }
}

// Writes output `idx`, whose sum is number `out` of a team.
fn store(which: u32, idx: u32, team: u32, out: u32) {
    let place = out_at(which) + idx;
    let product = total_of(team, out);
    if HAS_PAIR && which == 0u {
        let up = total_of(team, OUTS + out);
        set_value(out_at(1u) + idx, up);
        set_value(place, silu(product) * up);
        return;
    }
    set_value(place, product);
    if HAS_SUM {
        set_value(params.sum + row * SUM_STRIDE + idx, residual + product);
    }
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    row = params.step.first_row + group.y;
    let team = lanes.lane / TEAM;
    let lane = lanes.lane % TEAM;
    var which = 0u;
    var own = group.x;
    for (var idx = 0u; idx + 1u < N_PRODUCTS; idx++) {
        let n_groups = n_groups_of(idx);
        if which == idx && own >= n_groups {
            which = idx + 1u;
            own -= n_groups;
        }
    }
    let matrix = matrix_of(part_of(which));
    let is_other = ((OTHERS >> which) & 1u) == 1u;
    let is_pair = HAS_PAIR && which == 0u;
    let first_out = (own * N_TEAMS + team) * OUTS;
    // A workgroup has fewer outputs than invocations.
    let own_out = own * N_TEAMS * OUTS + lanes.lane;
    let has_out = lanes.lane < N_TEAMS * OUTS && own_out < matrix.n_rows;
    if HAS_SUM && has_out {
        residual = value_at(params.residual + row * RESIDUAL_STRIDE + own_out);
    }
    var factor = 1.0;
    var sums: array<f32, N_SUMS>;
    for (var first = 0u; first < n_units_of(matrix); first += BLOCK_UNITS) {
        // Weights are in flight while the row is staged.
        if OTHERS != 0u && is_other {
            load(OTHER_KIND, matrix, first_out, first, lane, 0u);
        } else {
            load(KIND, matrix, first_out, first, lane, 0u);
        }
        if is_pair {
            load(KIND, matrix_of(params.part_1), first_out, first, lane, N_MATRICES - 1u);
        }
        read_row(lanes.lane, first);
        if first > 0u {
            workgroupBarrier();
        } else if HAS_NORM {
            factor = factor_of(lanes);
        }
        share_row(lanes.lane, group.x, first, factor);
        workgroupBarrier();
        if OTHERS != 0u && is_other {
            add_products(OTHER_KIND, matrix, first_out, first, lane, 0u, &sums);
        } else {
            add_products(KIND, matrix, first_out, first, lane, 0u, &sums);
        }
        if is_pair {
            let up = matrix_of(params.part_1);
            add_products(KIND, up, first_out, first, lane, N_MATRICES - 1u, &sums);
        }
    }
    share(team, lane, &sums);
    workgroupBarrier();
    if has_out {
        store(which, own_out, lanes.lane / OUTS, lanes.lane % OUTS);
    }
}
