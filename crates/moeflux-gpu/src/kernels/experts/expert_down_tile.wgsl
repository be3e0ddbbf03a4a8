// out = down . x of tiles of pairs whose expert is in the bound slots: outputs along x, tiles along
// y.

@compute @workgroup_size(N_INVOCATIONS)
fn main(
    @builtin(local_invocation_index) invocation: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    let slot = slot_of_tile(invocation, group.y);
    if slot == NONE {
        return;
    }
    find_inputs(invocation, group.y);
    let down = first_matrix(slot);
    let first_out = group.x * TILE_OUTS;
    var sums: array<f32, N_SUMS>;
    let own_row = first_out + invocation;
    let n_units = n_units_of(down);
    load_x(invocation, 0u, params.n_cols);
    load_w(KIND, down, own_row, 0u);
    for (var unit = 0u; unit < n_units; unit++) {
        workgroupBarrier();
        keep_x(invocation);
        keep_w(KIND, down, own_row, unit, invocation);
        workgroupBarrier();
        load_x(invocation, min(unit + 1u, n_units - 1u), params.n_cols);
        load_w(KIND, down, own_row, min(unit + 1u, n_units - 1u));
        add_tile(invocation, &sums);
    }
    for (var j = 0u; j < PER_LANE; j++) {
        let pair = pair_of(group.y, j * 8u + invocation / 8u);
        for (var i = 0u; i < 8u; i++) {
            let idx = first_out + i * 8u + invocation % 8u;
            if pair != NONE && idx < params.n_outputs {
                ws[place_of_pair(params.out, pair) + idx] =
                    with_bias(params.bias, pair, idx, sums[i * PER_LANE + j]);
            }
        }
    }
}
