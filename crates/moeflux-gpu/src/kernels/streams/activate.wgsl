// out = after * f(before * x), value by value: columns along x, rows along y.

// Returns x for 0 and for NaN.
fn signed_root(x: f32) -> f32 {
    let size = abs(x);
    let root = sqrt(select(size, params.root_floor, size < params.root_floor));
    return select(select(x, root, x > 0.0), -root, x < 0.0);
}

fn function_of(x: f32) -> f32 {
    if FUNCTION == 0u {
        return silu(x);
    }
    if FUNCTION == 1u {
        return sigmoid(x);
    }
    return signed_root(x);
}

@compute @workgroup_size(N_COLS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    if id.x >= params.n_heads * params.head_dim {
        return;
    }
    let head = id.x / params.head_dim;
    let col = id.x % params.head_dim;
    let x = ws[place_of(params.x, row, head) + col];
    ws[place_of(params.out, row, head) + col] = params.after * function_of(params.before * x);
}
