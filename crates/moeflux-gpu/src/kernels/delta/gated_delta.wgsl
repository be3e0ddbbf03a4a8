// The gated delta rule over all rows, for a strip of values (along x) of a value head (along y) of
// a part (along z).
//
// Each value's keys are shared by N_KEY_LANES invocations, N_OWN times four keys each, and stay in
// registers. S k and S q are summed together, before the state is changed: with S' the new state,
// S' q = decay * S q + delta * (k . q).

// Quads of keys of a row, rounded up to the capacity of all invocations: keys beyond KEY_DIM are
// zeros.
const KEYS: u32 = N_OWN * N_KEY_LANES;
const N_STATE: u32 = N_HEADS * VALUE_DIM * KEY_DIM;
const N_INVOCATIONS: u32 = STRIP * N_KEY_LANES;

var<workgroup> queries: array<vec4<f32>, N_ROWS * KEYS>;
var<workgroup> keys: array<vec4<f32>, N_ROWS * KEYS>;

fn four_of(head_at: u32, col: u32) -> vec4<f32> {
    var four = vec4(0.0);
    for (var i = 0u; i < 4u; i++) {
        if col + i < KEY_DIM {
            four[i] = ws[head_at + col + i];
        }
    }
    return four;
}

// Loads a block of rows.
fn load_rows(first_row: u32, n_rows: u32, key_head: u32, lane: u32) {
    for (var at = lane; at < n_rows * KEYS; at += N_INVOCATIONS) {
        let row = first_row + at / KEYS;
        let col = 4u * (at % KEYS);
        queries[at] = four_of(place_of(params.q, row, key_head), col);
        keys[at] = four_of(place_of(params.k, row, key_head), col);
    }
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let lane = lane_of(lanes);
    let part = part_of(group.z);
    let head = group.y;
    let strip_first = group.x * STRIP;
    let width = min(STRIP, VALUE_DIM - strip_first);
    let value = lane / N_KEY_LANES;
    let is_value = value < width;
    let key_lane = lane % N_KEY_LANES;
    let state_at = (head * VALUE_DIM + strip_first) * KEY_DIM + value;

    let key_head = (head / params.n_shared) % params.n_key_heads;
    let found_at = part.found * N_STATE + state_at;
    let left_at = part.left * N_STATE + state_at;

    var state: array<vec4<f32>, N_OWN>;
    for (var own = 0u; own < N_OWN; own++) {
        for (var i = 0u; i < 4u; i++) {
            let key = 4u * (own * N_KEY_LANES + key_lane) + i;
            state[own][i] = 0.0;
            if is_value && key < KEY_DIM {
                state[own][i] = second[found_at + key * width];
            }
        }
    }
    for (var block = 0u; block < part.n_rows; block += N_ROWS) {
        let n_rows = min(N_ROWS, part.n_rows - block);
        // The rows of the previous block have been read.
        workgroupBarrier();
        load_rows(part.first_row + block, n_rows, key_head, lane);
        workgroupBarrier();
        for (var i = 0u; i < n_rows; i++) {
            let row = part.first_row + block + i;
            var own_sums = vec3(0.0);
            for (var own = 0u; own < N_OWN; own++) {
                let at = i * KEYS + own * N_KEY_LANES + key_lane;
                own_sums += vec3(
                    dot(state[own], keys[at]),
                    dot(state[own], queries[at]),
                    dot(keys[at], queries[at]),
                );
            }
            let sums = sum_of_keys(own_sums, lane);
            let decay = ws[place_of(params.decay, row, 0u) + head];
            let beta = ws[place_of(params.beta, row, 0u) + head];
            var delta = 0.0;
            if is_value {
                let v = ws[place_of(params.v, row, head) + strip_first + value];
                delta = (v - decay * sums.x) * beta;
                if key_lane == 0u {
                    let out = decay * sums.y + delta * sums.z;
                    ws[place_of(params.out, row, head) + strip_first + value] = out;
                }
            }
            for (var own = 0u; own < N_OWN; own++) {
                let at = i * KEYS + own * N_KEY_LANES + key_lane;
                state[own] = decay * state[own] + delta * keys[at];
            }
        }
    }
    for (var own = 0u; own < N_OWN; own++) {
        for (var i = 0u; i < 4u; i++) {
            let key = 4u * (own * N_KEY_LANES + key_lane) + i;
            if is_value && key < KEY_DIM {
                second[left_at + key * width] = state[own][i];
            }
        }
    }
}
