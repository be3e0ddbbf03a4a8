// What the kernels of attention share: columns by four, and where splits of the keys leave what
// they give to a query: its largest score, the sum of its weights, then the sum of values.

// Columns of a head, with zeros beyond its end.
fn four_of(view: View, row: u32, head: u32, four: u32, head_dim: u32) -> vec4<f32> {
    let at = place_of(view, row, head) + 4u * four;
    if 4u * four + 3u < head_dim {
        return vec4(ws[at], ws[at + 1u], ws[at + 2u], ws[at + 3u]);
    }
    var value = vec4(0.0);
    for (var i = 0u; i < 4u; i++) {
        if 4u * four + i < head_dim {
            value[i] = ws[at + i];
        }
    }
    return value;
}

// Rows are those of the segment.
fn partial_at(row: u32, head: u32, split: u32) -> u32 {
    let query = row * N_HEADS + head;
    return params.partials + (query * params.n_splits + split) * 4u * (VALUE_FOURS + 1u);
}
