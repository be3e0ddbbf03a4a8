// Puts the splits of the keys together: heads along x, rows along y.

@compute @workgroup_size(N_LANES)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let head = group.x;
    let row = group.y;
    var largest = -1e30;
    for (var split = 0u; split < params.n_splits; split++) {
        largest = max(largest, ws[partial_at(row, head, split)]);
    }
    for (var col = lane; col < 4u * VALUE_FOURS; col += N_LANES) {
        var total = 0.0;
        var sum = 0.0;
        for (var split = 0u; split < params.n_splits; split++) {
            let at = partial_at(row, head, split);
            let factor = exp(ws[at] - largest);
            total += factor * ws[at + 1u];
            sum += factor * ws[at + 4u + col];
        }
        put(row, head, col, sum / total);
    }
}
