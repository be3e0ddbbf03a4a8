// The TOP_K best experts of a row and their weights; rows along y.

@compute @workgroup_size(N_LANES)
fn main(lanes: Lanes, @builtin(workgroup_id) id: vec3<u32>) {
    choose(lanes, params.step.first_row + id.y);
}
