// Each channel's convolution over time, then SiLU, row by row, with the inputs that are still
// needed in registers: channels along x, parts along z.

@compute @workgroup_size(N_CHANNELS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let channel = id.x;
    if channel >= params.n_channels {
        return;
    }
    let n_kept = (N_TAPS - 1u) * params.n_channels;
    let part = part_of(id.z);
    let found_at = part.found * n_kept;
    let left_at = part.left * n_kept;
    var weight: array<f32, N_TAPS>;
    var inputs: array<f32, N_TAPS>;
    for (var tap = 0u; tap < N_TAPS; tap++) {
        weight[tap] = vectors[params.weight + channel * N_TAPS + tap];
    }
    for (var tap = 0u; tap < N_TAPS - 1u; tap++) {
        inputs[tap + 1u] = first[found_at + tap * params.n_channels + channel];
    }
    for (var i = 0u; i < part.n_rows; i++) {
        let row = part.first_row + i;
        var sum = 0.0;
        for (var tap = 0u; tap < N_TAPS - 1u; tap++) {
            inputs[tap] = inputs[tap + 1u];
            sum = fma(weight[tap], inputs[tap], sum);
        }
        inputs[N_TAPS - 1u] = ws[place_of(params.x, row, 0u) + channel];
        sum = fma(weight[N_TAPS - 1u], inputs[N_TAPS - 1u], sum);
        ws[place_of(params.out, row, 0u) + channel] = silu(sum);
    }
    for (var tap = 0u; tap < N_TAPS - 1u; tap++) {
        first[left_at + tap * params.n_channels + channel] = inputs[tap + 1u];
    }
}
