// out = x + y, value by value: columns along x, rows along y.

@compute @workgroup_size(N_COLS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    if id.x >= params.n_heads * params.head_dim {
        return;
    }
    let head = id.x / params.head_dim;
    let col = id.x % params.head_dim;
    let x = ws[place_of(params.x, row, head) + col];
    let y = ws[place_of(params.y, row, head) + col];
    ws[place_of(params.out, row, head) + col] = x + y;
}
