// Without subgroups each invocation has only its own value: WIDTH is 1.
fn sum_of_neighbours(value: f32) -> f32 {
    return value;
}

fn four_sums_of_neighbours(values: vec4<f32>) -> vec4<f32> {
    return values;
}
