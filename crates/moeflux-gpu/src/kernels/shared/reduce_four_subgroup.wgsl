// Four sums of a workgroup at once; requires `reduce_subgroup.wgsl`.

var<workgroup> fours_of_subgroups: array<vec4<f32>, N_LANES / 4u>;

fn four_sums_of_lanes(value: vec4<f32>, lanes: Lanes) -> vec4<f32> {
    let own = subgroupAdd(value);
    // The sums of an earlier call have been read.
    workgroupBarrier();
    if lanes.in_subgroup == 0u {
        fours_of_subgroups[lanes.subgroup] = own;
    }
    workgroupBarrier();
    var sum = vec4(0.0);
    for (var subgroup = 0u; subgroup < lanes.n_subgroups; subgroup++) {
        sum += fours_of_subgroups[subgroup];
    }
    return sum;
}
