// x = x / sqrt(sum(x^2) + epsilon) * factor: heads along x, rows along y.

@compute @workgroup_size(N_LANES)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let at = place_of(params.x, params.step.first_row + group.y, group.x);
    var squares = 0.0;
    for (var col = lanes.lane; col < params.head_dim; col += N_LANES) {
        squares += ws[at + col] * ws[at + col];
    }
    let root = root_of(sum_of_lanes(squares, lanes) + params.epsilon);
    for (var col = lanes.lane; col < params.head_dim; col += N_LANES) {
        ws[at + col] = ws[at + col] / root * params.factor;
    }
}
