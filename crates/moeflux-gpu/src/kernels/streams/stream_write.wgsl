// out[stream] = base[stream] + beta[stream] * x: columns along x, rows along y. The base is nothing
// (0), the streams (1), or their sums weighted by a matrix (2). A column of all streams is read
// before one is written, since the output may be the streams.

@compute @workgroup_size(N_COLS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    let col = id.x;
    if col >= params.n_cols {
        return;
    }
    var values: array<f32, N_STREAMS>;
    for (var stream = 0u; stream < N_STREAMS; stream++) {
        if BASE == 1u {
            values[stream] = ws[place_of(params.streams, row, stream) + col];
        } else {
            values[stream] = 0.0;
        }
    }
    if BASE == 2u {
        for (var origin = 0u; origin < N_STREAMS; origin++) {
            let value = ws[place_of(params.streams, row, origin) + col];
            let mix_at = place_of(params.mix, row, origin);
            for (var stream = 0u; stream < N_STREAMS; stream++) {
                values[stream] = fma(ws[mix_at + stream], value, values[stream]);
            }
        }
    }
    let x = ws[place_of(params.x, row, 0u) + col];
    for (var stream = 0u; stream < N_STREAMS; stream++) {
        let beta = ws[place_of(params.beta, row, 0u) + stream];
        ws[place_of(params.out, row, stream) + col] = fma(beta, x, values[stream]);
    }
}
