// out = residual + (weighted partials of the chosen experts, ascending + shared): columns along x,
// rows along y. `routes` are ascending by expert, and rank `k` of `partials` is that of `routes`.

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    let col = id.x;
    if col >= params.n_cols {
        return;
    }
    var sum = 0.0;
    for (var rank = 0u; rank < params.top_k; rank++) {
        let weight = bitcast<f32>(routes[row * params.top_k + rank].y);
        sum = fma(weight, ws[place_of(params.partials, row, rank) + col], sum);
    }
    if HAS_SHARED {
        var factor = 1.0;
        if HAS_GATE {
            factor = sigmoid(ws[place_of(params.shared_gate, row, 0u)]);
        }
        sum = fma(factor, ws[place_of(params.shared_out, row, 0u) + col], sum);
    }
    if params.residual.first != NONE {
        sum += ws[place_of(params.residual, row, 0u) + col];
    }
    ws[place_of(params.out, row, 0u) + col] = sum;
}
