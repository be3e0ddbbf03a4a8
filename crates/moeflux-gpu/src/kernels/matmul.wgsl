// out = weight . x + bias: outputs along x, rows along y.

struct Params {
    step: Step,
    x: View,
    out: View,
    n_cols: u32,
    first_output: u32,
    n_outputs: u32,
    codes: u32,
    bias: u32,
}

@compute @workgroup_size(N_OUTPUTS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.step.first_row + id.y;
    if id.x >= params.n_outputs {
        return;
    }
    let x_at = place_of(params.x, row, 0u);
    let weight_at = params.codes + id.x * params.n_cols;
    var sum = 0.0;
    for (var col = 0u; col < params.n_cols; col++) {
        sum = fma(bitcast<f32>(weights[weight_at + col]), ws[x_at + col], sum);
    }
    let output = params.first_output + id.x;
    if params.bias != NONE {
        sum += vectors[params.bias + output];
    }
    ws[place_of(params.out, row, 0u) + output] = sum;
}
