// out = down . x of tiles of pairs whose expert is in the bound slots, by cooperative matrices:
// outputs along x, tiles along y.

fn take_sums(stand: Stand, first: u32) {
    let idx = stand.group.x * TILE_OUTS + out_shown(stand) + stand.lane;
    for (var i = 0u; i < 16u; i++) {
        let pair = pair_of(stand.group.y, input_shown(stand, first, i));
        if pair != NONE && idx < params.n_outputs {
            let at = place_of_pair(params.out, pair) + idx;
            let sum = sum_shown(stand, i, stand.lane);
            set_value(at, with_bias(params.bias, pair, idx, sum));
        }
    }
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(unit: Unit, @builtin(workgroup_id) group: vec3<u32>) {
    let invocation = unit.invocation;
    let stand = stand_of(unit, group);
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
    for (var at = 0u; at < n_units; at++) {
        workgroupBarrier();
        keep_x(invocation);
        keep_w(KIND, down, own_row, at, invocation, own_out(invocation));
        workgroupBarrier();
        load_x(invocation, min(at + 1u, n_units - 1u));
        load_w(KIND, down, own_row, min(at + 1u, n_units - 1u));
        add_tile(stand);
    }
    show_sums(stand);
}
