// Access to `ws` by single values, if it is bound as such.
fn value_at(at: u32) -> f32 {
    return ws[at];
}

fn set_value(at: u32, value: f32) {
    ws[at] = value;
}

// Returns four values from any offset on.
fn quad_at(at: u32) -> vec4<f32> {
    return vec4<f32>(ws[at], ws[at + 1u], ws[at + 2u], ws[at + 3u]);
}

fn set_quad(at: u32, values: vec4<f32>) {
    ws[at] = values.x;
    ws[at + 1u] = values.y;
    ws[at + 2u] = values.z;
    ws[at + 3u] = values.w;
}
