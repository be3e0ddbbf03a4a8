// out = down . x of each pair whose expert is in the bound slots: outputs along x, pairs along y.

const N_MATRICES: u32 = 1u;

@compute @workgroup_size(N_INVOCATIONS)
fn main(
    @builtin(local_invocation_index) invocation: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    let slot = slot_of_pair(invocation, group.y);
    if slot == NONE {
        return;
    }
    let team = invocation / TEAM;
    let lane = invocation % TEAM;
    let down = first_matrix(slot);
    x_at = place_of_pair(params.x, group.y);
    let first_out = (group.x * N_TEAMS + team) * OUTS;
    var sums: array<f32, N_SUMS>;
    for (var first = 0u; first < n_units_of(down); first += BLOCK_UNITS) {
        load(KIND, down, first_out, first, lane, 0u);
        workgroupBarrier();
        stage(invocation, first, params.n_cols);
        workgroupBarrier();
        add_products(KIND, down, first_out, first, lane, 0u, &sums);
    }
    share(team, lane, &sums);
    workgroupBarrier();
    let out_at = place_of_pair(params.out, group.y);
    for (var i = invocation; i < N_TEAMS * OUTS; i += N_INVOCATIONS) {
        let idx = group.x * N_TEAMS * OUTS + i;
        if idx < params.n_outputs {
            let sum = total_of(i / OUTS, i % OUTS);
            ws[out_at + idx] = with_bias(params.bias, group.y, idx, sum);
        }
    }
}
