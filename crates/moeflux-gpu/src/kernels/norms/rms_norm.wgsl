// out = x / sqrt(mean(x^2) + epsilon) * gain, then * f(gate): heads along x, rows along y.

@compute @workgroup_size(N_LANES)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let row = params.step.first_row + group.y;
    let x_at = place_of(params.x, row, group.x);
    var squares = 0.0;
    for (var col = lanes.lane; col < params.head_dim; col += N_LANES) {
        squares += ws[x_at + col] * ws[x_at + col];
    }
    let mean = sum_of_lanes(squares, lanes) / f32(params.head_dim);
    let root = root_of(mean + params.epsilon);
    let gate_at = place_of(params.gate, row, group.x);
    let gain_at = params.gain + group.x * params.gain_stride;
    let out_at = place_of(params.out, row, group.x);
    for (var col = lanes.lane; col < params.head_dim; col += N_LANES) {
        var value = ws[x_at + col] / root * vectors[gain_at + col];
        if HAS_GATE {
            let gate = ws[gate_at + col];
            value *= select(sigmoid(gate), silu(gate), IS_SILU);
        }
        ws[out_at + col] = value;
    }
}
