// Access to `vectors` by single values, if it is bound as quads.
fn vectors_value(at: u32) -> f32 {
    return vectors[at >> 2u][at & 3u];
}

// Requires an offset that is a multiple of four.
fn vectors_quad(at: u32) -> vec4<f32> {
    return vectors[at >> 2u];
}
