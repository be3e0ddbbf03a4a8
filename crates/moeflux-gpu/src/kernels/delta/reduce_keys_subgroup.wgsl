// Sums over the N_KEY_LANES neighbours of a subgroup that share a value.

struct Lanes {
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
}

// Numbers lanes so that neighbours in a subgroup are adjacent, whatever the order of indices.
fn lane_of(lanes: Lanes) -> u32 {
    return lanes.subgroup * lanes.subgroup_size + lanes.in_subgroup;
}

fn sum_of_keys(value: vec3<f32>, lane: u32) -> vec3<f32> {
    var sum = value;
    for (var distance = 1u; distance < N_KEY_LANES; distance *= 2u) {
        sum += subgroupShuffleXor(sum, distance);
    }
    return sum;
}
