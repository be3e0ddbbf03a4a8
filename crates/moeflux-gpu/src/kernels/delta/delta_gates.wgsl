// decay and beta of every value head: heads along x, rows along y.

@compute @workgroup_size(N_HEADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    let head = id.x;
    if head >= params.n_heads {
        return;
    }
    // All inputs are read before any output is written, because they may alias.
    let a = ws[place_of(params.a, row, 0u) + head];
    let b = ws[place_of(params.b, row, 0u) + head];
    let decay = decay_of(a, vectors[params.a_log + head], vectors[params.dt_bias + head]);
    ws[place_of(params.decay, row, 0u) + head] = decay;
    ws[place_of(params.beta, row, 0u) + head] = sigmoid(b);
}
