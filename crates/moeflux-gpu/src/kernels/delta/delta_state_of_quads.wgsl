// The state of a delta layer by quads, if heads have a multiple of four values.

fn kept(at: u32) -> f32 {
    return first[at >> 2u][at & 3u];
}

fn keep(at: u32, value: f32) {
    first[at >> 2u][at & 3u] = value;
}

// `at` is within the state for every invocation.
fn state_four(at: u32, lane: u32) -> vec4<f32> {
    return second[at >> 2u];
}

fn set_state_four(at: u32, four: vec4<f32>, lane: u32) {
    if n_values_of(lane) > 0u {
        second[at >> 2u] = four;
    }
}
