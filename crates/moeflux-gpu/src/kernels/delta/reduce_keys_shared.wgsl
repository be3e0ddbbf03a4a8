// Sums over the N_KEY_LANES neighbouring invocations that share a value, through workgroup memory.

struct Lanes {
    @builtin(local_invocation_index) lane: u32,
}

var<workgroup> sums_of_keys: array<vec3<f32>, STRIP * N_KEY_LANES>;

fn lane_of(lanes: Lanes) -> u32 {
    return lanes.lane;
}

fn sum_of_keys(value: vec3<f32>, lane: u32) -> vec3<f32> {
    // The sums of an earlier call have been read.
    workgroupBarrier();
    sums_of_keys[lane] = value;
    workgroupBarrier();
    let begin = lane - lane % N_KEY_LANES;
    var sum = vec3(0.0);
    for (var other = 0u; other < N_KEY_LANES; other++) {
        sum += sums_of_keys[begin + other];
    }
    return sum;
}
