// out[col] = sum over a head's rows of weight[row][col] * x[row]: a unit of columns per workgroup
// along x, rows of the batch along y, heads along z. Each invocation takes every 64th row.

const N_INVOCATIONS: u32 = 64u;
const N_PARTS: u32 = N_INVOCATIONS / UNIT_QUADS;

var<workgroup> sums_of_rows: array<vec4<f32>, N_INVOCATIONS * UNIT_QUADS>;

fn add_row(matrix: Matrix, row: u32, unit: u32, x: f32, sums: ptr<function, array<vec4<f32>, 8>>) {
    let chunk = load_chunk(KIND, matrix, row, unit);
    let affine = affine_of(KIND, matrix, row, unit);
    for (var quad = 0u; quad < UNIT_QUADS; quad++) {
        let values = quad_of(KIND, matrix, row, unit, chunk, quad);
        let w = fma(values, vec4<f32>(affine.scale), vec4<f32>(affine.bias));
        (*sums)[quad] = fma(w, vec4<f32>(x), (*sums)[quad]);
    }
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(
    @builtin(local_invocation_index) invocation: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    let matrix = bound_matrix();
    let row = params.step.first_row + group.y;
    let x_at = place_of(params.x, row, group.z);
    var sums: array<vec4<f32>, 8>;
    for (var i = invocation; i < params.n_rows; i += N_INVOCATIONS) {
        let own_row = matrix_row(group.z, i);
        if own_row < params.n_bound {
            add_row(matrix, own_row, group.x, ws[x_at + i], &sums);
        }
    }
    for (var quad = 0u; quad < UNIT_QUADS; quad++) {
        sums_of_rows[invocation * UNIT_QUADS + quad] = sums[quad];
    }
    workgroupBarrier();
    // Each invocation adds up four columns of eight others, then the first eight add up the
    // results.
    let quad = invocation % UNIT_QUADS;
    let part = invocation / UNIT_QUADS;
    var sum = vec4<f32>();
    for (var i = 0u; i < N_PARTS; i++) {
        sum += sums_of_rows[(part * N_PARTS + i) * UNIT_QUADS + quad];
    }
    workgroupBarrier();
    sums_of_rows[invocation] = sum;
    workgroupBarrier();
    if part > 0u {
        return;
    }
    for (var i = 1u; i < N_PARTS; i++) {
        sum += sums_of_rows[i * UNIT_QUADS + quad];
    }
    let out_at = place_of(params.out, row, group.z);
    for (var i = 0u; i < 4u; i++) {
        let col = (group.x * UNIT_QUADS + quad) * 4u + i;
        if col < params.n_cols {
            let before = select(0.0, ws[out_at + col], params.adds == 1u);
            ws[out_at + col] = before + sum[i];
        }
    }
}
