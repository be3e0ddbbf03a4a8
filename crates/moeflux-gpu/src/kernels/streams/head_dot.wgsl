// out[head] = factor * (x[head] . y[head]): heads along x, rows along y.

@compute @workgroup_size(N_LANES)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let row = params.step.first_row + group.y;
    let x_at = place_of(params.x, row, group.x);
    let y_at = place_of(params.y, row, group.x);
    var products = 0.0;
    for (var col = lanes.lane; col < params.head_dim; col += N_LANES) {
        products = fma(ws[x_at + col], ws[y_at + col], products);
    }
    let sum = sum_of_lanes(products, lanes);
    if lanes.lane == 0u {
        ws[place_of(params.out, row, 0u) + group.x] = sum * params.factor;
    }
}
