// Merges the splits of the keys: heads along x, rows of parts along y, COLS columns along z.
// Adjacent columns have one invocation each, and SPLIT_LANES of these share the splits.

const SPLIT_LANES: u32 = N_LANES / COLS;
// Splits that an invocation reads before their factors are known.
const N_AHEAD: u32 = 8u;

// By split: its largest score and the sum of its weights; then its factor.
var<workgroup> peaks: array<vec2<f32>, SPLITS_MAX>;
var<workgroup> factors: array<f32, SPLITS_MAX>;
var<workgroup> sums: array<f32, N_LANES>;

fn value_of(first_at: u32, split: u32, col: u32) -> f32 {
    return ws[first_at + split * 4u * (VALUE_FOURS + 1u) + 4u + col];
}

@compute @workgroup_size(N_LANES)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let head = group.x;
    let part_idx = group.y / n_partial_rows();
    let row = group.y % n_partial_rows();
    let part = part_of(part_idx);
    let n_splits = n_splits_of(part);
    // Other parts of the dispatch have more rows, or see more positions.
    if row >= part.n_rows || n_splits == 1u {
        return;
    }
    let first_at = partial_at(part_idx, row, head, 0u);
    let own = group.z * COLS + lane % COLS;
    let col = min(own, 4u * VALUE_FOURS - 1u);
    let first = lane / COLS;
    var ahead: array<f32, N_AHEAD>;
    for (var i = 0u; i < N_AHEAD; i++) {
        ahead[i] = value_of(first_at, min(first + i * SPLIT_LANES, n_splits - 1u), col);
    }
    for (var split = lane; split < n_splits; split += N_LANES) {
        let at = partial_at(part_idx, row, head, split);
        peaks[split] = vec2(ws[at], ws[at + 1u]);
    }
    workgroupBarrier();
    var largest = -1e30;
    for (var split = 0u; split < n_splits; split++) {
        largest = max(largest, peaks[split].x);
    }
    for (var split = lane; split < n_splits; split += N_LANES) {
        factors[split] = exp(peaks[split].x - largest);
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < N_AHEAD; i++) {
        let split = first + i * SPLIT_LANES;
        if split < n_splits {
            sum += factors[split] * ahead[i];
        }
    }
    let behind = first + N_AHEAD * SPLIT_LANES;
    for (var split = behind; split < n_splits; split += SPLIT_LANES) {
        sum += factors[split] * value_of(first_at, split, col);
    }
    sums[lane] = sum;
    workgroupBarrier();
    if first == 0u && own < 4u * VALUE_FOURS {
        var total = 0.0;
        for (var split = 0u; split < n_splits; split++) {
            total += factors[split] * peaks[split].y;
        }
        var all = 0.0;
        for (var other = 0u; other < SPLIT_LANES; other++) {
            all += sums[other * COLS + lane];
        }
        put(part, row, head, own, all / total);
    }
}
