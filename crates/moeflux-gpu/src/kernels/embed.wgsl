// out[row] = table[token of row]: columns along x, rows along y. Rows whose token lies in another
// arena are left to the step for that arena.

struct Params {
    step: Step,
    out: View,
    n_cols: u32,
    first_token: u32,
    n_tokens: u32,
    codes: u32,
}

@compute @workgroup_size(N_COLS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    // Smaller tokens wrap around to large numbers.
    let token = token_of(row) - params.first_token;
    if id.x >= params.n_cols || token >= params.n_tokens {
        return;
    }
    let value = bitcast<f32>(weights[params.codes + token * params.n_cols + id.x]);
    ws[place_of(params.out, row, 0u) + id.x] = value;
}
