// Stores the keys and values of all rows: four columns of a head along x, rows along y, parts along
// z.

@compute @workgroup_size(N_LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < N_KV_HEADS * APPENDED_FOURS {
        append(part_of(id.z), id.y, id.x / APPENDED_FOURS, id.x % APPENDED_FOURS);
    }
}
