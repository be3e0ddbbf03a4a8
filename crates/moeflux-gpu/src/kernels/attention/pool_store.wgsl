// Stores and passes on the index keys of rows that do not complete a block: four columns along x,
// rows along y, parts along z.

@compute @workgroup_size(N_LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let part = part_of(id.z);
    let position = part.position + id.y;
    if id.x >= KEY_FOURS || id.y >= part.n_rows || (position + 1u) % BLOCK == 0u {
        return;
    }
    let row = part.first_row + id.y;
    let value = four_of(params.k, row, 0u, id.x, KEY_DIM);
    first[stored_place(part, position) * KEY_FOURS + id.x] = value;
    put_four(params.out, row, 0u, id.x, KEY_DIM, value);
}
