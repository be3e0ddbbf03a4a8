// out = sum over streams of weight * stream, ascending: columns along x, rows along y.

@compute @workgroup_size(N_COLS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    let col = id.x;
    if col >= params.n_cols {
        return;
    }
    var sum = 0.0;
    for (var stream = 0u; stream < params.n_streams; stream++) {
        var weight = 0.0;
        if PER_VALUE {
            weight = ws[place_of(params.weights, row, stream) + col];
        } else {
            weight = ws[place_of(params.weights, row, 0u) + stream];
        }
        sum = fma(weight, ws[place_of(params.streams, row, stream) + col], sum);
    }
    ws[place_of(params.out, row, 0u) + col] = sum;
}
