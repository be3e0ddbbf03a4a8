// Each channel's convolution over time, then SiLU: channels along x, rows along y, parts along z.
// Inputs before the first row are the stored ones.

@compute @workgroup_size(N_CHANNELS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let channel = id.x;
    let part = part_of(id.z);
    if channel >= params.n_channels || id.y >= part.n_rows {
        return;
    }
    let found_at = part.found * params.copy_values + params.kept_at;
    let weight_at = params.weight + channel * N_TAPS;
    var sum = 0.0;
    for (var tap = 0u; tap < N_TAPS; tap++) {
        // Counted from the oldest stored input.
        let place = id.y + tap * DILATION;
        var x = 0.0;
        if place < N_KEPT {
            x = first[found_at + place * params.n_channels + channel];
        } else {
            let row = part.first_row + place - N_KEPT;
            x = ws[place_of(params.x, row, 0u) + channel];
        }
        sum = fma(vectors[weight_at + tap], x, sum);
    }
    ws[place_of(params.out, part.first_row + id.y, 0u) + channel] = silu(sum);
}
