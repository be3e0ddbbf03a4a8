// The norm of heads of queries and keys, then their rope: all heads along x, those of queries
// first; rows along y.

var<workgroup> normed: array<f32, HEAD_DIM>;

// Returns the two channels of a pair.
fn cols_of(pair: u32) -> vec2<u32> {
    if ARE_NEIGHBOURS {
        return params.first_col + vec2(2u * pair, 2u * pair + 1u);
    }
    return params.first_col + vec2(pair, pair + params.n_pairs);
}

@compute @workgroup_size(N_LANES)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let row = params.step.first_row + group.y;
    var x_at = place_of(params.q, row, group.x);
    var out_at = place_of(params.q_out, row, group.x);
    var gain = params.q_gain;
    if group.x >= params.n_q_heads {
        let head = group.x - params.n_q_heads;
        x_at = place_of(params.k, row, head);
        out_at = place_of(params.k_out, row, head);
        gain = params.k_gain;
    }
    var squares = 0.0;
    for (var col = lanes.lane; col < HEAD_DIM; col += N_LANES) {
        let x = ws[x_at + col];
        normed[col] = x;
        squares += x * x;
    }
    let root = root_of(sum_of_lanes(squares, lanes) / f32(HEAD_DIM) + params.epsilon);
    for (var col = lanes.lane; col < HEAD_DIM; col += N_LANES) {
        normed[col] = normed[col] / root * vectors[gain + col];
    }
    workgroupBarrier();
    for (var col = lanes.lane; col < HEAD_DIM; col += N_LANES) {
        let turns = col >= params.first_col && col < params.first_col + 2u * params.n_pairs;
        if !turns {
            ws[out_at + col] = normed[col];
        }
    }
    for (var pair = lanes.lane; pair < params.n_pairs; pair += N_LANES) {
        let cols = cols_of(pair);
        let turn = turn_of(f32(position_of(row)) * vectors[params.frequencies + pair])
            * params.amplitude;
        let a = normed[cols.x];
        let b = normed[cols.y];
        ws[out_at + cols.x] = a * turn.x - b * turn.y;
        ws[out_at + cols.y] = a * turn.y + b * turn.x;
    }
}
