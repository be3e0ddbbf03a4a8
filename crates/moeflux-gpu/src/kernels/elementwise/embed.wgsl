// out[row] = table[token of row] in every head: four columns per invocation along x, rows along y.
// Rows whose token is in another arena are left to the step for that arena.

@compute @workgroup_size(N_INVOCATIONS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    // Smaller tokens wrap around to large numbers.
    let token = token_of(row) - params.first_token;
    let col = id.x * 4u;
    if col >= params.n_cols || token >= params.n_tokens {
        return;
    }
    let table = Matrix(params.codes, params.scales, params.biases, params.n_tokens, params.n_cols);
    let unit = id.x / UNIT_QUADS;
    let chunk = load_chunk(KIND, table, token, unit);
    var values = quad_of(KIND, table, token, unit, chunk, id.x % UNIT_QUADS);
    if !is_plain(KIND) {
        let affine = affine_of(KIND, table, token, unit);
        values = values * affine.scale + affine.bias;
    }
    for (var head = 0u; head < params.n_heads; head++) {
        let at = place_of(params.out, row, head) + col;
        for (var i = 0u; i < 4u; i++) {
            if col + i < params.n_cols {
                ws[at + i] = values[i];
            }
        }
    }
}
