// Shared by products per head: the location of a head's rows in the bound part of the weight.

fn bound_matrix() -> Matrix {
    return Matrix(params.codes, params.scales, params.biases, params.n_bound, params.n_cols);
}

// Returns the index of row `idx` of a head in the bound part; `n_bound` or more if it is not there.
fn matrix_row(head: u32, idx: u32) -> u32 {
    return head * params.row_stride + idx - params.first_row;
}

// Writes output `idx` if its row is bound.
fn store(row: u32, head: u32, idx: u32, product: f32) {
    if idx < params.n_rows && matrix_row(head, idx) < params.n_bound {
        ws[place_of(params.out, params.step.first_row + row, head) + idx] = product;
    }
}
