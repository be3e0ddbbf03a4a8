// out = weight . x + bias for a few rows: outputs along x, ROWS rows at a time along y.

struct Params {
    step: Step,
    x: View,
    out: View,
    n_cols: u32,
    first_output: u32,
    n_outputs: u32,
    codes: u32,
    scales: u32,
    biases: u32,
    bias: u32,
}

const N_MATRICES: u32 = 1u;

@compute @workgroup_size(N_INVOCATIONS)
fn main(
    @builtin(local_invocation_index) invocation: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    let team = invocation / TEAM;
    let lane = invocation % TEAM;
    let matrix =
        Matrix(params.codes, params.scales, params.biases, params.n_outputs, params.n_cols);
    for (var row = 0u; row < ROWS; row++) {
        let idx = group.y * ROWS + row;
        let place = place_of(params.x, params.step.first_row + idx, 0u);
        x_at[row] = select(NONE, place, idx < params.step.n_rows);
    }
    let first_out = (group.x * N_TEAMS + team) * OUTS;
    var sums: array<f32, N_SUMS>;
    for (var first = 0u; first < n_units_of(matrix); first += BLOCK_UNITS) {
        load(KIND, matrix, first_out, first, lane, 0u);
        workgroupBarrier();
        stage(invocation, first, params.n_cols);
        workgroupBarrier();
        add_products(KIND, matrix, first_out, first, lane, 0u, &sums);
    }
    share(team, lane, &sums);
    workgroupBarrier();
    // Neighbours write neighbouring outputs of a row.
    for (var i = invocation; i < N_TEAMS * N_SUMS; i += N_INVOCATIONS) {
        let row = i / (N_TEAMS * OUTS);
        let out = i % (N_TEAMS * OUTS);
        let idx = group.x * N_TEAMS * OUTS + out;
        if x_at[row] != NONE && idx < params.n_outputs {
            store(group.y * ROWS + row, idx, total_of(out / OUTS, out % OUTS * ROWS + row));
        }
    }
}
