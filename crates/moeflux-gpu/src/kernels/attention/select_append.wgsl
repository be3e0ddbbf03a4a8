// Stores the index keys of rows that complete a block: four columns along x, rows along y, parts
// along z.

@compute @workgroup_size(N_LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let part = part_of(id.z);
    let position = part.position + id.y;
    if id.x < KEY_FOURS && id.y < part.n_rows && (position + 1u) % BLOCK == 0u {
        let place = stored_place(part, position);
        let row = part.first_row + id.y;
        first[place * KEY_FOURS + id.x] = four_of(params.k, row, 0u, id.x, KEY_DIM);
    }
}
