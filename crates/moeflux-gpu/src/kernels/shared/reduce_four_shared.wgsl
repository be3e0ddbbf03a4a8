// Four sums of a workgroup at once; requires `reduce_shared.wgsl`.

var<workgroup> fours_of_lanes: array<vec4<f32>, N_LANES>;

fn four_sums_of_lanes(value: vec4<f32>, lanes: Lanes) -> vec4<f32> {
    // The sums of an earlier call have been read.
    workgroupBarrier();
    fours_of_lanes[lanes.lane] = value;
    for (var level = 1u; level < N_LANES; level *= 2u) {
        workgroupBarrier();
        let other = lanes.lane + level;
        if lanes.lane % (2u * level) == 0u {
            fours_of_lanes[lanes.lane] += fours_of_lanes[other];
        }
    }
    workgroupBarrier();
    return fours_of_lanes[0];
}
