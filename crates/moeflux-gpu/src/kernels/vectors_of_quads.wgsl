// `vectors` by single values, where it is bound as quads.
fn vectors_value(at: u32) -> f32 {
    return vectors[at >> 2u][at & 3u];
}

// From a place on that is a multiple of four.
fn vectors_quad(at: u32) -> vec4<f32> {
    return vectors[at >> 2u];
}
