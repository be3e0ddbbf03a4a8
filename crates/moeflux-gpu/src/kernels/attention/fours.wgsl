// Returns four columns of a head, with zeros beyond its end.
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
