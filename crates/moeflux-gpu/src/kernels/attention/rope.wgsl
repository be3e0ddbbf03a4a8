// Rotates pairs of channels by position * frequency: pairs of all heads along x, rows along y. The
// position is that of the first of the row's block.

@compute @workgroup_size(N_PAIRS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    if id.x >= params.n_heads * params.n_pairs {
        return;
    }
    let head = id.x / params.n_pairs;
    let pair = id.x % params.n_pairs;
    let position = position_of(row) / params.block * params.block;
    // The product is rounded to f32, as in transformers.
    let turn = turn_of(f32(position) * vectors[params.frequencies + pair])
        * params.amplitude;
    let head_at = place_of(params.x, row, head);
    let a_at = head_at + select(pair, 2u * pair, ARE_NEIGHBOURS);
    let b_at = head_at + select(pair + params.n_pairs, 2u * pair + 1u, ARE_NEIGHBOURS);
    let a = ws[a_at];
    let b = ws[b_at];
    ws[a_at] = a * turn.x - b * turn.y;
    ws[b_at] = a * turn.y + b * turn.x;
}
