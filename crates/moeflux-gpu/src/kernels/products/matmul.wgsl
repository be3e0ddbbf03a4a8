// out = weight . x + bias for a few rows: outputs along x, rows along y.

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
    x_at = place_of(params.x, params.step.first_row + group.y, 0u);
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
    for (var out = invocation; out < N_TEAMS * OUTS; out += N_INVOCATIONS) {
        let idx = group.x * N_TEAMS * OUTS + out;
        if idx < params.n_outputs {
            store(group.y, idx, total_of(out / OUTS, out % OUTS));
        }
    }
}
