// out = weight . x for every head, with its own rows of the weight, for many inputs: tiles of
// outputs along x, of rows along y, heads along z.

@compute @workgroup_size(N_INVOCATIONS)
fn main(
    @builtin(local_invocation_index) invocation: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    let matrix = bound_matrix();
    let first_row = group.y * TILE_INPUTS;
    for (var i = 0u; i < PER_LANE; i++) {
        let row = first_row + input_of(invocation, i);
        let place = place_of(params.x, params.step.first_row + row, group.z);
        x_at[i] = select(NONE, place, row < params.step.n_rows);
    }
    let first_out = group.x * TILE_OUTS;
    let own_row = matrix_row(group.z, first_out + invocation);
    var sums: array<f32, N_SUMS>;
    let n_units = n_units_of(matrix);
    load_x(invocation, 0u, params.n_cols);
    load_w(KIND, matrix, own_row, 0u);
    for (var unit = 0u; unit < n_units; unit++) {
        workgroupBarrier();
        keep_x(invocation);
        keep_w(KIND, matrix, own_row, unit, invocation);
        workgroupBarrier();
        load_x(invocation, min(unit + 1u, n_units - 1u), params.n_cols);
        load_w(KIND, matrix, own_row, min(unit + 1u, n_units - 1u));
        add_tile(invocation, &sums);
    }
    for (var j = 0u; j < PER_LANE; j++) {
        let row = first_row + j * 8u + invocation / 8u;
        for (var i = 0u; i < 8u; i++) {
            if row < params.step.n_rows {
                let idx = first_out + i * 8u + invocation % 8u;
                store(row, group.z, idx, sums[i * PER_LANE + j]);
            }
        }
    }
}
