// The matrix of up, and the activation of gate and up. Comparisons keep NaN, which `min` may lose.
fn up_matrix(slot: u32) -> Matrix {
    let first = word_of_slot(slot, params.n_words);
    return Matrix(
        first + params.up_codes,
        first + params.up_scales,
        first + params.up_biases,
        params.n_outputs,
        params.n_cols,
    );
}

fn swiglu(pair: u32, idx: u32, gate_product: f32, up_product: f32) -> f32 {
    let gate = with_bias(params.bias, pair, idx, gate_product);
    let up = with_bias(params.up_bias, pair, idx, up_product);
    if !HAS_LIMIT {
        return gate / (1.0 + exp(-gate)) * up;
    }
    let low_gate = select(gate, params.limit, gate > params.limit);
    let low_up = select(up, params.limit, up > params.limit);
    let cut_up = select(low_up, -params.limit, low_up < -params.limit);
    return low_gate / (1.0 + exp(-1.702 * low_gate)) * (cut_up + 1.0);
}
