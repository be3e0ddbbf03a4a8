// The experts of a row, by its first workgroup, and an independent product, by the others: outputs
// along x, rows along y.

const N_MATRICES: u32 = 1u;

fn multiply(invocation: u32, group: u32, row: u32) {
    let team = invocation / TEAM;
    let lane = invocation % TEAM;
    let matrix =
        Matrix(params.codes, params.scales, params.biases, params.n_outputs, params.n_cols);
    x_at = place_of(params.x, row, 0u);
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
    let out_at = place_of(params.out, row, 0u);
    for (var i = invocation; i < N_TEAMS * OUTS; i += N_INVOCATIONS) {
        let idx = group * N_TEAMS * OUTS + i;
        if idx < params.n_outputs {
            ws[out_at + idx] = total_of(i / OUTS, i % OUTS);
        }
    }
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let row = params.step.first_row + group.y;
    if group.x == 0u {
        choose(lanes, row);
    } else {
        multiply(lanes.lane, group.x - 1u, row);
    }
}
