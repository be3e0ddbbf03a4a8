// The experts of one row, by the first workgroup, and a product that does not wait for them, by the
// others: outputs along x.

struct Params {
    step: Step,
    logits: View,
    correction: u32,
    factor: f32,
    guess: View,
    x: u32,
    out: u32,
    n_cols: u32,
    n_outputs: u32,
    codes: u32,
    scales: u32,
    biases: u32,
}

const N_MATRICES: u32 = 1u;

fn multiply(invocation: u32, group: u32) {
    let team = invocation / TEAM;
    let lane = invocation % TEAM;
    let matrix =
        Matrix(params.codes, params.scales, params.biases, params.n_outputs, params.n_cols);
    x_at[0] = params.x;
    let first_out = (group * N_TEAMS + team) * OUTS;
    var sums: array<f32, N_SUMS>;
    for (var first = 0u; first < n_units_of(matrix); first += BLOCK_UNITS) {
        load(KIND, matrix, first_out, first, lane, 0u);
        read_inputs(invocation, first, params.n_cols);
        workgroupBarrier();
        share_inputs(invocation);
        workgroupBarrier();
        add_products(KIND, matrix, first_out, first, lane, 0u, &sums);
    }
    share(team, lane, &sums);
    workgroupBarrier();
    for (var i = invocation; i < N_TEAMS * OUTS; i += N_INVOCATIONS) {
        let idx = group * N_TEAMS * OUTS + i;
        if idx < params.n_outputs {
            ws[params.out + idx] = total_of(i / OUTS, i % OUTS);
        }
    }
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    if group.x == 0u {
        choose(lanes, params.step.first_row);
    } else {
        multiply(lanes.lane, group.x - 1u);
    }
}
