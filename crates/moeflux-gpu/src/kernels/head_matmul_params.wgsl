// What products per head share: where a head's rows lie in the bound part of the weight.

struct Params {
    step: Step,
    x: View,
    out: View,
    n_cols: u32,
    // Of one head's matrix, and from one head's first to the next one's.
    n_rows: u32,
    row_stride: u32,
    // Row of head 0 that the bound part begins with, as a number that wraps around.
    first_row: u32,
    n_bound: u32,
    codes: u32,
    scales: u32,
    biases: u32,
    // Whether other parts have already left sums in `out`.
    adds: u32,
}

fn bound_matrix() -> Matrix {
    return Matrix(params.codes, params.scales, params.biases, params.n_bound, params.n_cols);
}

// Where row `idx` of a head lies in the bound part: `n_bound` or more if it does not.
fn matrix_row(head: u32, idx: u32) -> u32 {
    return head * params.row_stride + idx - params.first_row;
}

// Writes output `idx` if its row is bound.
fn store(row: u32, head: u32, idx: u32, product: f32) {
    if idx < params.n_rows && matrix_row(head, idx) < params.n_bound {
        ws[place_of(params.out, params.step.first_row + row, head) + idx] = product;
    }
}
