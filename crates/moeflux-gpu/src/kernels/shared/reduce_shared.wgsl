// Sums of a workgroup of N_LANES invocations, a power of two, through workgroup memory.

struct Lanes {
    @builtin(local_invocation_index) lane: u32,
}

var<workgroup> sums_of_lanes: array<f32, N_LANES>;

fn sum_of_lanes(value: f32, lanes: Lanes) -> f32 {
    // The sum of an earlier call has been read.
    workgroupBarrier();
    sums_of_lanes[lanes.lane] = value;
    for (var level = 1u; level < N_LANES; level *= 2u) {
        workgroupBarrier();
        let other = lanes.lane + level;
        if lanes.lane % (2u * level) == 0u {
            sums_of_lanes[lanes.lane] += sums_of_lanes[other];
        }
    }
    workgroupBarrier();
    return sums_of_lanes[0];
}
