// Shared by the attention kernels: the layout of partial results. A split stores for each query its
// largest score, the sum of its weights, then the sum of values.

// Returns the number of splits of a part's positions, independent of other parts.
fn n_splits_of(part: Part) -> u32 {
    let n_seen = part.position + part.n_rows;
    var n_splits = params.n_splits;
    if n_seen <= SEEN_0 {
        n_splits = SPLITS_0;
    } else if n_seen <= SEEN_1 {
        n_splits = SPLITS_1;
    } else if n_seen <= SEEN_2 {
        n_splits = SPLITS_2;
    } else if n_seen <= SEEN_3 {
        n_splits = SPLITS_3;
    }
    return min(n_splits, params.n_splits);
}

// Returns the row capacity per part for splits in this dispatch.
fn n_partial_rows() -> u32 {
    return params.step.first_row >> 16u;
}

// Returns the offset of a partial result; `row` is a row of part `idx` of the dispatch.
fn partial_at(idx: u32, row: u32, head: u32, split: u32) -> u32 {
    let query = (idx * n_partial_rows() + row) * N_HEADS + head;
    let n_splits = params.step.first_row & 0xffffu;
    return params.partials + (query * n_splits + split) * 4u * (VALUE_FOURS + 1u);
}
