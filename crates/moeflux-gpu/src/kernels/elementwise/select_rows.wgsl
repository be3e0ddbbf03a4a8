// Copies the rows whose logits are wanted: columns along x, outputs along y.

@compute @workgroup_size(N_COLS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let output = params.step.first_row + id.y;
    if id.x >= params.n_cols {
        return;
    }
    let x = ws[place_of(params.x, row_of_output(output), 0u) + id.x];
    ws[place_of(params.out, output, 0u) + id.x] = x;
}
