// Stores the last inputs of at least N_KEPT rows: channels along x, parts along z.

@compute @workgroup_size(N_CHANNELS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let channel = id.x;
    if channel >= params.n_channels {
        return;
    }
    let part = part_of(id.z);
    let left_at = part.left * params.copy_values + params.kept_at;
    let end = part.first_row + part.n_rows;
    for (var place = 0u; place < N_KEPT; place++) {
        let row = end - N_KEPT + place;
        let left = left_at + place * params.n_channels + channel;
        first[left] = ws[place_of(params.x, row, 0u) + channel];
    }
}
