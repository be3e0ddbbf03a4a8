// Sums of a workgroup of N_LANES invocations, with subgroups of at least four.

struct Lanes {
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) n_subgroups: u32,
}

var<workgroup> sums_of_subgroups: array<f32, N_LANES / 4u>;

fn sum_of_lanes(value: f32, lanes: Lanes) -> f32 {
    let own = subgroupAdd(value);
    // The sums of an earlier call have been read.
    workgroupBarrier();
    if lanes.in_subgroup == 0u {
        sums_of_subgroups[lanes.subgroup] = own;
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var subgroup = 0u; subgroup < lanes.n_subgroups; subgroup++) {
        sum += sums_of_subgroups[subgroup];
    }
    return sum;
}
