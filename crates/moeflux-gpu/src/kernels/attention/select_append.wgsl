// Stores the index keys of all rows: four columns along x, rows along y, parts along z.

@compute @workgroup_size(N_LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let part = part_of(id.z);
    if id.x < KEY_FOURS && id.y < part.n_rows {
        let place = stored_place(part, part.position + id.y);
        let row = part.first_row + id.y;
        first[place * KEY_FOURS + id.x] = four_of(params.k, row, 0u, id.x, KEY_DIM);
    }
}
