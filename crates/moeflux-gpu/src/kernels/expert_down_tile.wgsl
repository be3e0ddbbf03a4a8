// out = down . x of tiles of pairs whose expert lies in the bound slots: outputs along x, tiles
// along y.

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
    for (var unit = 0u; unit < n_units_of(down); unit++) {
        workgroupBarrier();
        fill_x(invocation, unit, params.n_cols);
        fill_w(KIND, down, first_out + invocation, unit, invocation);
        workgroupBarrier();
        add_tile(invocation, &sums);
    }
    for (var j = 0u; j < PER_LANE; j++) {
        let pair = pair_of(group.y, j * 8u + invocation / 8u);
        for (var i = 0u; i < 8u; i++) {
            let idx = first_out + i * 8u + invocation % 8u;
            if pair != NONE && idx < params.n_outputs {
                ws[place_of_pair(params.out, pair) + idx] = sums[i * PER_LANE + j];
            }
        }
    }
}
