// The sum over WIDTH adjacent invocations; subgroups must not be smaller.
fn sum_of_neighbours(value: f32) -> f32 {
    var sum = value;
    for (var distance = 1u; distance < WIDTH; distance *= 2u) {
        sum += subgroupShuffleXor(sum, distance);
    }
    return sum;
}

fn four_sums_of_neighbours(values: vec4<f32>) -> vec4<f32> {
    var sums = values;
    for (var distance = 1u; distance < WIDTH; distance *= 2u) {
        sums += subgroupShuffleXor(sums, distance);
    }
    return sums;
}
