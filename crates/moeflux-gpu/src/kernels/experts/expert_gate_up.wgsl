// out = swiglu(gate . x, up . x) of each pair whose expert is in the bound slots: outputs along x,
// pairs along y.

const N_MATRICES: u32 = 2u;

@compute @workgroup_size(N_INVOCATIONS)
fn main(
    @builtin(local_invocation_index) invocation: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    let slot = slot_of_pair(invocation, group.y);
    if slot == NONE {
        return;
    }
    if group.x == 0u && invocation == 0u {
        note_use(routes[params.step.first_row * params.top_k + group.y].x, 1u);
    }
    let team = invocation / TEAM;
    let lane = invocation % TEAM;
    let gate = first_matrix(slot);
    let up = up_matrix(slot);
    x_at = place_of_pair(params.x, group.y);
    let first_out = (group.x * N_TEAMS + team) * OUTS;
    var sums: array<f32, N_SUMS>;
    for (var first = 0u; first < n_units_of(gate); first += BLOCK_UNITS) {
        load(GATE_KIND, gate, first_out, first, lane, 0u);
        load(UP_KIND, up, first_out, first, lane, 1u);
        workgroupBarrier();
        stage(invocation, first, params.n_cols);
        workgroupBarrier();
        add_products(GATE_KIND, gate, first_out, first, lane, 0u, &sums);
        add_products(UP_KIND, up, first_out, first, lane, 1u, &sums);
    }
    share(team, lane, &sums);
    workgroupBarrier();
    let out_at = place_of_pair(params.out, group.y);
    for (var i = invocation; i < N_TEAMS * OUTS; i += N_INVOCATIONS) {
        let idx = group.x * N_TEAMS * OUTS + i;
        if idx < params.n_outputs {
            let gate_sum = total_of(i / OUTS, i % OUTS);
            let up_sum = total_of(i / OUTS, OUTS + i % OUTS);
            ws[out_at + idx] = swiglu(group.y, idx, gate_sum, up_sum);
        }
    }
}
