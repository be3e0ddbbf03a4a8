// Averages the index keys of each block that a row completes: four columns along x, rows along y,
// parts along z. The row's own key is not stored.

@compute @workgroup_size(N_LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let part = part_of(id.z);
    let position = part.position + id.y;
    if id.x >= KEY_FOURS || id.y >= part.n_rows || (position + 1u) % BLOCK != 0u {
        return;
    }
    var sum = vec4(0.0);
    for (var earlier = position + 1u - BLOCK; earlier < position; earlier++) {
        sum += first[stored_place(part, earlier) * KEY_FOURS + id.x];
    }
    let row = part.first_row + id.y;
    sum += four_of(params.k, row, 0u, id.x, KEY_DIM);
    put_four(params.out, row, 0u, id.x, KEY_DIM, sum / f32(BLOCK));
}
