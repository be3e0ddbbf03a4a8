// The state of a delta layer by single values: any number of values per head.

fn kept(at: u32) -> f32 {
    return first[at];
}

fn keep(at: u32, value: f32) {
    first[at] = value;
}

// Returns four values of a key from `at` on; those after the head's last are zero.
fn state_four(at: u32, lane: u32) -> vec4<f32> {
    var four = vec4(0.0);
    for (var i = 0u; i < n_values_of(lane); i++) {
        four[i] = second[at + i];
    }
    return four;
}

fn set_state_four(at: u32, four: vec4<f32>, lane: u32) {
    for (var i = 0u; i < n_values_of(lane); i++) {
        second[at + i] = four[i];
    }
}
