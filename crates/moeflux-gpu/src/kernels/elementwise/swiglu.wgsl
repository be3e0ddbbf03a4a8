// out = silu(gate) * up, or gpt_oss's form with a limit: columns along x, rows along y.

// Uses a comparison, since `min` and `max` may lose NaN.
fn at_most(x: f32, limit: f32) -> f32 {
    return select(x, limit, x > limit);
}

fn activated(gate: f32, up: f32) -> f32 {
    if !HAS_LIMIT {
        return silu(gate) * up;
    }
    let low = at_most(gate, params.limit);
    let bounded = -at_most(-at_most(up, params.limit), params.limit);
    return low * sigmoid(1.702 * low) * (bounded + 1.0);
}

@compute @workgroup_size(N_COLS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    if id.x >= params.n_heads * params.head_dim {
        return;
    }
    let head = id.x / params.head_dim;
    let col = id.x % params.head_dim;
    let gate = ws[place_of(params.gate, row, head) + col];
    let up = ws[place_of(params.up, row, head) + col];
    ws[place_of(params.out, row, head) + col] = activated(gate, up);
}
