// out = weight . x + bias for many rows, by cooperative matrices: tiles of outputs along x, of rows
// along y.

fn take_sums(stand: Stand, first: u32) {
    let idx = stand.group.x * TILE_OUTS + out_shown(stand) + stand.lane;
    for (var i = 0u; i < 16u; i++) {
        let row = stand.group.y * TILE_INPUTS + input_shown(stand, first, i);
        if row < params.step.n_rows && idx < params.n_outputs {
            store(row, idx, sum_shown(stand, i, stand.lane));
        }
    }
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(unit: Unit, @builtin(workgroup_id) group: vec3<u32>) {
    let invocation = unit.invocation;
    let stand = stand_of(unit, group);
    let matrix =
        Matrix(params.codes, params.scales, params.biases, params.n_outputs, params.n_cols);
    let first_row = group.y * TILE_INPUTS;
    for (var i = 0u; i < X_QUADS; i++) {
        let row = first_row + input_of(invocation, i);
        let place = place_of(params.x, params.step.first_row + row, 0u) / 4u;
        x_at[i] = select(NONE, place, row < params.step.n_rows);
    }
    let first_out = group.x * TILE_OUTS;
    let own_row = first_out + own_out(invocation);
    let n_units = n_units_of(matrix);
    begin_sums();
    load_x(invocation, 0u);
    load_w(KIND, matrix, own_row, 0u);
    for (var at = 0u; at < n_units; at++) {
        workgroupBarrier();
        keep_x(invocation);
        keep_w(KIND, matrix, own_row, at, invocation, own_out(invocation));
        workgroupBarrier();
        load_x(invocation, min(at + 1u, n_units - 1u));
        load_w(KIND, matrix, own_row, min(at + 1u, n_units - 1u));
        add_tile(stand);
    }
    show_sums(stand);
}
