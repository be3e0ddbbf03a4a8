// What products per head share: where a head's rows lie in the bound part of the weight.

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
