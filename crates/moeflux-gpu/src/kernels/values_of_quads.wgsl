// `ws` by single values, where it is bound as quads.
fn value_at(at: u32) -> f32 {
    return ws[at >> 2u][at & 3u];
}

fn set_value(at: u32, value: f32) {
    ws[at >> 2u][at & 3u] = value;
}
