// Each channel's convolution over time, then SiLU, row by row, with the inputs that are still
// needed in registers: channels along x, parts along z.

@compute @workgroup_size(N_CHANNELS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let channel = id.x;
    if channel >= params.n_channels {
        return;
    }
    let part = part_of(id.z);
    let found_at = part.found * params.copy_values + params.kept_at;
    let left_at = part.left * params.copy_values + params.kept_at;
    var weight: array<f32, N_TAPS>;
    var inputs: array<f32, N_KEPT + 1u>;
    for (var tap = 0u; tap < N_TAPS; tap++) {
        weight[tap] = vectors[params.weight + channel * N_TAPS + tap];
    }
    for (var place = 0u; place < N_KEPT; place++) {
        inputs[place + 1u] = first[found_at + place * params.n_channels + channel];
    }
    for (var i = 0u; i < part.n_rows; i++) {
        let row = part.first_row + i;
        for (var place = 0u; place < N_KEPT; place++) {
            inputs[place] = inputs[place + 1u];
        }
        inputs[N_KEPT] = ws[place_of(params.x, row, 0u) + channel];
        var sum = 0.0;
        for (var tap = 0u; tap < N_TAPS; tap++) {
            sum = fma(weight[tap], inputs[tap * DILATION], sum);
        }
        ws[place_of(params.out, row, 0u) + channel] = silu(sum);
    }
    for (var place = 0u; place < N_KEPT; place++) {
        first[left_at + place * params.n_channels + channel] = inputs[place + 1u];
    }
}
