// out = swiglu(gate . x, up . x) of tiles of pairs whose expert lies in the bound slots: outputs
// along x, tiles along y. The first half of a tile's rows are gate's, the second the same of up.

const N_OUTS: u32 = TILE_OUTS / 2u;

fn fill_gate_and_up(invocation: u32, slot: u32, row: u32, unit: u32) {
    var matrix = first_matrix(slot);
    if invocation >= N_OUTS {
        matrix = up_matrix(slot);
    }
    if GATE_KIND == UP_KIND || invocation < N_OUTS {
        fill_w(GATE_KIND, matrix, row, unit, invocation);
    } else {
        fill_w(UP_KIND, matrix, row, unit, invocation);
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
    for (var unit = 0u; unit < n_units_of(first_matrix(slot)); unit++) {
        workgroupBarrier();
        fill_x(invocation, unit, params.n_cols);
        fill_gate_and_up(invocation, slot, first_out + invocation % N_OUTS, unit);
        workgroupBarrier();
        add_tile(invocation, &sums);
    }
    for (var j = 0u; j < PER_LANE; j++) {
        let pair = pair_of(group.y, j * 8u + invocation / 8u);
        for (var i = 0u; i < 4u; i++) {
            let idx = first_out + i * 8u + invocation % 8u;
            if pair != NONE && idx < params.n_outputs {
                ws[place_of_pair(params.out, pair) + idx] =
                    swiglu(sums[i * PER_LANE + j], sums[(i + 4u) * PER_LANE + j]);
            }
        }
    }
}
