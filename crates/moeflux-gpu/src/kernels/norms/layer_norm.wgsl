// out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * gain + bias: heads along x, rows
// along y.

@compute @workgroup_size(N_LANES)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let row = params.step.first_row + group.y;
    let x_at = place_of(params.x, row, group.x);
    var sum = 0.0;
    for (var col = lanes.lane; col < params.head_dim; col += N_LANES) {
        sum += ws[x_at + col];
    }
    let mean = sum_of_lanes(sum, lanes) / f32(params.head_dim);
    var squares = 0.0;
    for (var col = lanes.lane; col < params.head_dim; col += N_LANES) {
        let deviation = ws[x_at + col] - mean;
        squares += deviation * deviation;
    }
    let variance = sum_of_lanes(squares, lanes) / f32(params.head_dim);
    let root = root_of(variance + params.epsilon);
    let out_at = place_of(params.out, row, group.x);
    for (var col = lanes.lane; col < params.head_dim; col += N_LANES) {
        let normed = (ws[x_at + col] - mean) / root;
        ws[out_at + col] = normed * vectors[params.gain + col] + vectors[params.bias + col];
    }
}
