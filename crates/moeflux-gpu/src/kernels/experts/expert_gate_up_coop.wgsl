// out = swiglu(gate . x, up . x) of tiles of pairs whose expert is in the bound slots, by
// cooperative matrices: outputs along x, tiles along y. Of a subgroup's 32 rows of a tile, the
// first 16 belong to gate, the others are the corresponding rows of up.

const N_OUTS: u32 = TILE_OUTS / 2u;

// All invocations of a subgroup read the same matrix. Both matrices are of one kind: branches that
// diverge within a subgroup may not reconverge before matrices are multiplied.
fn is_up(invocation: u32) -> bool {
    return invocation / 32u % 2u == 1u;
}

// Returns the row of gate or up, relative to the tile.
fn row_of_gate_or_up(invocation: u32) -> u32 {
    return invocation / 64u * 32u + invocation % 32u;
}

// Returns the position of that row in the tile.
fn out_of_gate_or_up(invocation: u32) -> u32 {
    let row = row_of_gate_or_up(invocation);
    return row / 16u * 32u + invocation / 32u % 2u * 16u + row % 16u;
}

fn own_matrix(invocation: u32, slot: u32) -> Matrix {
    if is_up(invocation) {
        return up_matrix(slot);
    }
    return first_matrix(slot);
}

// A subgroup's first 16 invocations take one input's products, the others the next one's.
fn take_sums(stand: Stand, first: u32) {
    let out = stand.lane % 16u;
    let idx = stand.group.x * N_OUTS + out_shown(stand) / 2u + out;
    for (var i = 0u; i < 16u; i += 2u) {
        let row = i + stand.lane / 16u;
        let pair = pair_of(stand.group.y, input_shown(stand, first, row));
        if pair != NONE && idx < params.n_outputs {
            let gate = sum_shown(stand, row, out);
            let up = sum_shown(stand, row, out + 16u);
            set_value(place_of_pair(params.out, pair) + idx, swiglu(pair, idx, gate, up));
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
    let first_out = group.x * N_OUTS;
    let matrix = own_matrix(invocation, slot);
    let own_row = first_out + row_of_gate_or_up(invocation);
    let out = out_of_gate_or_up(invocation);
    let n_units = n_units_of(first_matrix(slot));
    begin_sums();
    load_x(invocation, 0u);
    load_w(GATE_KIND, matrix, own_row, 0u);
    for (var at = 0u; at < n_units; at++) {
        workgroupBarrier();
        keep_x(invocation);
        keep_w(GATE_KIND, matrix, own_row, at, invocation, out);
        workgroupBarrier();
        load_x(invocation, min(at + 1u, n_units - 1u));
        load_w(GATE_KIND, matrix, own_row, min(at + 1u, n_units - 1u));
        add_tile(stand);
    }
    show_sums(stand);
}
