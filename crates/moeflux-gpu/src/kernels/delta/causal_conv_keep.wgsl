// Stores the last inputs of at least N_TAPS - 1 rows: channels along x, parts along z.

@compute @workgroup_size(N_CHANNELS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let channel = id.x;
    if channel >= params.n_channels {
        return;
    }
    let part = part_of(id.z);
    let left_at = part.left * (N_TAPS - 1u) * params.n_channels;
    let end = part.first_row + part.n_rows;
    for (var tap = 0u; tap < N_TAPS - 1u; tap++) {
        let row = end - (N_TAPS - 1u) + tap;
        let left = left_at + tap * params.n_channels + channel;
        first[left] = ws[place_of(params.x, row, 0u) + channel];
    }
}
