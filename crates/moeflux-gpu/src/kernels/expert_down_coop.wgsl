// out = down . x of tiles of pairs whose expert lies in the bound slots, by cooperative matrices:
// outputs along x, tiles along y.

fn take_sums(stand: Stand, first: u32) {
    let idx = stand.group.x * TILE_OUTS + out_shown(stand) + stand.lane;
    for (var i = 0u; i < 16u; i++) {
        let pair = pair_of(stand.group.y, input_shown(stand, first, i));
        if pair != NONE && idx < params.n_outputs {
            let at = place_of_pair(params.out, pair) + idx;
            set_value(at, sum_shown(stand, i, stand.lane));
        }
    }
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(
    @builtin(local_invocation_index) invocation: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    let slot = slot_of_tile(invocation, group.y);
    if slot == NONE {
        return;
    }
    find_quads(invocation, group.y);
    let down = first_matrix(slot);
    let first_out = group.x * TILE_OUTS;
    let own_row = first_out + own_out(invocation);
    let n_units = n_units_of(down);
    begin_sums();
    load_x(invocation, 0u);
    load_w(KIND, down, own_row, 0u);
    for (var unit = 0u; unit < n_units; unit++) {
        workgroupBarrier();
        keep_x(invocation);
        keep_w(KIND, down, own_row, unit, invocation, own_out(invocation));
        workgroupBarrier();
        load_x(invocation, min(unit + 1u, n_units - 1u));
        load_w(KIND, down, own_row, min(unit + 1u, n_units - 1u));
        add_tile(subgroup);
    }
    show_sums(Stand(subgroup, lane, group));
}
