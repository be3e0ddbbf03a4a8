// out = swiglu(gate . x, up . x) of tiles of pairs whose expert is in the bound slots: outputs
// along x, tiles along y. The first half of a tile's rows belongs to gate, the second half to up.

const N_OUTS: u32 = TILE_OUTS / 2u;

// An invocation's half of the tile determines the matrix it reads.
fn own_matrix(invocation: u32, slot: u32) -> Matrix {
    if invocation >= N_OUTS {
        return up_matrix(slot);
    }
    return first_matrix(slot);
}

fn is_gate(invocation: u32) -> bool {
    return GATE_KIND == UP_KIND || invocation < N_OUTS;
}

fn load_gate_or_up(invocation: u32, matrix: Matrix, row: u32, unit: u32) {
    if is_gate(invocation) {
        load_w(GATE_KIND, matrix, row, unit);
    } else {
        load_w(UP_KIND, matrix, row, unit);
    }
}

fn keep_gate_or_up(invocation: u32, matrix: Matrix, row: u32, unit: u32) {
    if is_gate(invocation) {
        keep_w(GATE_KIND, matrix, row, unit, invocation);
    } else {
        keep_w(UP_KIND, matrix, row, unit, invocation);
    }
}

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
    let first_out = group.x * N_OUTS;
    var sums: array<f32, N_SUMS>;
    let matrix = own_matrix(invocation, slot);
    let own_row = first_out + invocation % N_OUTS;
    let n_units = n_units_of(first_matrix(slot));
    load_x(invocation, 0u, params.n_cols);
    load_gate_or_up(invocation, matrix, own_row, 0u);
    for (var unit = 0u; unit < n_units; unit++) {
        workgroupBarrier();
        keep_x(invocation);
        keep_gate_or_up(invocation, matrix, own_row, unit);
        workgroupBarrier();
        load_x(invocation, min(unit + 1u, n_units - 1u), params.n_cols);
        load_gate_or_up(invocation, matrix, own_row, min(unit + 1u, n_units - 1u));
        add_tile(invocation, &sums);
    }
    for (var j = 0u; j < PER_LANE; j++) {
        let pair = pair_of(group.y, j * 8u + invocation / 8u);
        for (var i = 0u; i < 4u; i++) {
            let idx = first_out + i * 8u + invocation % 8u;
            if pair != NONE && idx < params.n_outputs {
                let up = sums[(i + 4u) * PER_LANE + j];
                ws[place_of_pair(params.out, pair) + idx] =
                    swiglu(pair, idx, sums[i * PER_LANE + j], up);
            }
        }
    }
}
