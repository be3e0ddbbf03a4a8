// Access to `ws` by single values, if it is bound as quads.
fn value_at(at: u32) -> f32 {
    return ws[at >> 2u][at & 3u];
}

fn set_value(at: u32, value: f32) {
    ws[at >> 2u][at & 3u] = value;
}

// Returns four values from an offset that is a multiple of four.
fn quad_at(at: u32) -> vec4<f32> {
    return ws[at >> 2u];
}

fn set_quad(at: u32, values: vec4<f32>) {
    ws[at >> 2u] = values;
}
