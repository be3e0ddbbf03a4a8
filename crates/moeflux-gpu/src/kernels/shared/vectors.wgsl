// Access to `vectors` by single values, if it is bound as such.
fn vectors_value(at: u32) -> f32 {
    return vectors[at];
}

fn vectors_quad(at: u32) -> vec4<f32> {
    return vec4<f32>(vectors[at], vectors[at + 1u], vectors[at + 2u], vectors[at + 3u]);
}
